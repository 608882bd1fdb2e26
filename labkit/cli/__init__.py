"""The `labkit` command: arguments in, one library call, a record out. Nothing is computed here.

With `--json` stdout holds exactly one JSON object: the record, or `{"error": ..., "hint": ...}`. Progress and all else
go to stderr. Exit codes: 0; 1 for an error that the user can mend; 2 for a wrong call; 130 for an interrupt.
"""

from labkit.cli import cluster, converting, evaluating, machine, planning, rehearsing, training
from labkit.cli.app import app, main

__all__ = ["app", "cluster", "converting", "evaluating", "machine", "main", "planning", "rehearsing", "training"]
