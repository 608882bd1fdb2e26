"""How much memory this process has had."""

from __future__ import annotations

import resource
import sys


def peak_rss() -> int:
    """The largest resident size of this process since its start, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
