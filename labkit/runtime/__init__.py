"""The ground under a lab: platform, simulated devices, scale, quiet logs, and hosted notebooks.

`start` is every notebook's first call, also as `labkit.start`. Importing this package does not import JAX.
"""

from labkit.runtime.chips import Chips, gpu, tpu, tpu_holders
from labkit.runtime.hosted import (
    DISTRIBUTION,
    FIRST_CELL,
    checkpoint_dir,
    missing_requirements,
    on_colab,
    prepare_colab,
)
from labkit.runtime.launch import SCALES, Runtime, Scale, jax_started, quiet_logs, slice_name, start
from labkit.runtime.notebooks import Notebooks, notebooks, open_lab

__all__ = [
    "DISTRIBUTION",
    "FIRST_CELL",
    "SCALES",
    "Chips",
    "Notebooks",
    "Runtime",
    "Scale",
    "checkpoint_dir",
    "gpu",
    "jax_started",
    "missing_requirements",
    "notebooks",
    "on_colab",
    "open_lab",
    "prepare_colab",
    "quiet_logs",
    "slice_name",
    "start",
    "tpu",
    "tpu_holders",
]
