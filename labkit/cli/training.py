"""Commands that train: `run` and `sft`."""

from __future__ import annotations
