"""The real TPU compiler's verdict on a step, with no TPU: what it needs, what it runs, why it fails."""

from labkit.rehearse.compiling import compile_in_worker
from labkit.rehearse.failures import Buffer, OutOfMemory, diagnose
from labkit.rehearse.hlo import Instruction, Module, Shape, parse
from labkit.rehearse.program import Job, Program
from labkit.rehearse.traffic import Collective, collectives

__all__ = [
    "Buffer",
    "Collective",
    "Instruction",
    "Job",
    "Module",
    "OutOfMemory",
    "Program",
    "Shape",
    "collectives",
    "compile_in_worker",
    "diagnose",
    "parse",
]
