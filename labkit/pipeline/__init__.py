"""The main job, from a base model to a judged and exported one: what `labkit run` runs."""

from labkit.pipeline.run import RECIPE, RunReport, Summary, run

__all__ = ["RECIPE", "RunReport", "Summary", "run"]
