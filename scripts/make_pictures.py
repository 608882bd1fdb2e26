"""Draw the pictures of the README from the library and the stored results: python scripts/make_pictures.py"""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from labkit import mesh, resources
from labkit.evaluate import EvalResult
from labkit.mesh import figures
from labkit.pipeline import report

OUT = Path(__file__).resolve().parent.parent / "docs" / "pictures"
RESULTS = "models/tiny-gemma4-sft/results"


def pictures() -> dict[str, go.Figure]:
    """The mesh of a 31B model on sixteen chips, its memory, and pass@1 by family before and after fine-tuning."""
    plan = mesh.plan("gemma4-31b", "v5p-32", seq=4096, batch=16, axes={"fsdp": 4, "tp": 4})
    base, tuned = (EvalResult.from_dict(resources.load_json(f"{RESULTS}/{name}.json")) for name in ("base", "sft"))
    return {
        "mesh": figures.topology_figure(mesh.topology("v5p-32", plan.axes)),
        "memory": figures.memory_figure(plan),
        "families": report.by_family(base, tuned),
    }


def main() -> None:
    """Write each picture, on white, which reads in both of GitHub's themes."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, figure in pictures().items():
        figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
        figure.write_image(OUT / f"{name}.png")
        print(OUT / f"{name}.png")


if __name__ == "__main__":
    main()
