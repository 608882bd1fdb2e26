"""The real TPU compiler's verdict on a step, with no TPU: what it needs, what it runs, why it fails."""

from labkit.rehearse.cache import Schedule
from labkit.rehearse.compiling import compile_in_worker
from labkit.rehearse.costs import Op
from labkit.rehearse.extrapolation import extrapolate
from labkit.rehearse.failures import Buffer, OutOfMemory, diagnose
from labkit.rehearse.hlo import Instruction, Module, Shape, parse
from labkit.rehearse.liveness import Moment
from labkit.rehearse.program import Job, Program
from labkit.rehearse.rehearsal import STEPS, rehearse, schedule
from labkit.rehearse.remedies import Fix, Remedy, fix
from labkit.rehearse.report import Difference, Listing, Report, diff
from labkit.rehearse.timing import Moved
from labkit.rehearse.trace import write_trace
from labkit.rehearse.traffic import Collective, collectives

__all__ = [
    "STEPS",
    "Buffer",
    "Collective",
    "Difference",
    "Fix",
    "Instruction",
    "Job",
    "Listing",
    "Module",
    "Moment",
    "Moved",
    "Op",
    "OutOfMemory",
    "Program",
    "Remedy",
    "Report",
    "Schedule",
    "Shape",
    "collectives",
    "compile_in_worker",
    "diagnose",
    "diff",
    "extrapolate",
    "fix",
    "parse",
    "rehearse",
    "schedule",
    "write_trace",
]
