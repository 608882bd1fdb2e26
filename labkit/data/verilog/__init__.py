"""Specification to Verilog: families of problems, the generator, testbenches and pretraining documents."""

from labkit.data.decontaminate import Contamination, decontaminate, normal_form
from labkit.data.verilog import (  # noqa: F401 (importing a module registers its families)
    arithmetic,
    coding,
    comparison,
    counters,
    detectors,
    formats,
    fsm,
    gates,
    memories,
    operations,
    periodic,
    selection,
    sequential,
    streams,
    timing,
)
from labkit.data.verilog.corpus import corpus
from labkit.data.verilog.generate import drafts, examples, families, problems

__all__ = ["Contamination", "corpus", "decontaminate", "drafts", "examples", "families", "normal_form", "problems"]
