"""Specification to Verilog: families of problems, the generator, testbenches and pretraining documents."""

from labkit.data.decontaminate import Contamination, decontaminate, normal_form
from labkit.data.verilog import (  # importing a module registers its families
    arithmetic,
    coding,
    combinational,
    counters,
    detectors,
    fsm,
    memories,
    numbers,
    periodic,
    sequential,
    streams,
    timing,
)
from labkit.data.verilog.corpus import corpus
from labkit.data.verilog.generate import drafts, examples, families, problems

__all__ = ["Contamination", "corpus", "decontaminate", "drafts", "examples", "families", "normal_form", "problems"]
