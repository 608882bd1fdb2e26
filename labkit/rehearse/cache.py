"""Rehearsals that are kept: those shipped in `data/rehearsals`, and the user's own.

A rehearsal is found by its job: step, arguments, slice, axes and flags. One that other versions of the compiler or the
libraries made is still an answer, with a note; the one made by the versions here comes first.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit import resources
from labkit.errors import LabError
from labkit.records import Record, write_atomic
from labkit.rehearse.costs import Op
from labkit.rehearse.liveness import Moment
from labkit.rehearse.program import Job
from labkit.rehearse.report import Report

_SHIPPED = "rehearsals"


@dataclasses.dataclass(frozen=True)
class Schedule(Record):
    """What runs in one step, in order, and what lies in HBM meanwhile (thinned out, the peak kept)."""

    ops: tuple[Op, ...]
    moments: tuple[Moment, ...]

    def __str__(self) -> str:
        return f"{len(self.ops):,} instructions"


def folder() -> Path:
    """The user's own rehearsals: `$LABKIT_CACHE`, else the usual cache folder of the system, then `rehearsals`."""
    base = os.environ.get("LABKIT_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit"
    return (Path(base) if base else home) / "rehearsals"


def key(job: Job) -> str:
    """A name for a job; the name of a function without a module has its own digest in it."""
    return hashlib.sha256(json.dumps(job.to_dict(), sort_keys=True).encode()).hexdigest()[:20]


def find(name: str) -> Report | None:
    """The kept report of this key, marked as replayed; None if there is none.

    Raises:
        LabError: a file that is no report; it is named.
    """
    found = [_read(path) for path in _files(name)]
    here = {library: version(library) for library in found[0].versions} if found else {}
    found.sort(key=lambda report: report.versions != here)
    if not found:
        return None
    made = {k: v for k, v in found[0].versions.items() if here[k] != v}
    note = f"made with {', '.join(f'{k} {v}' for k, v in made.items())}" if made else ""
    return dataclasses.replace(found[0], replayed=True, note=note)


def keep(name: str, report: Report, schedule: Schedule | None, into: Path | None = None) -> Path:
    """Store a report, and its schedule beside it; returns the report's file."""
    path = (into or folder()) / f"{name}-{_stamp(report.versions)}.json"
    if schedule is not None:
        raw = gzip.compress(schedule.to_json().encode(), mtime=0)
        write_atomic(path.with_suffix(".schedule.gz"), raw)
    report.save(path)
    return path


def schedule(name: str) -> Schedule:
    """The kept schedule of this key; a `LabError` if it was not kept, or is damaged."""
    for path in _files(name):
        side = path.with_suffix(".schedule.gz")
        if side.exists():
            return _read_schedule(side)
    raise LabError(
        "The schedule of this rehearsal is not stored here.", hint="Rehearse with cache=False (--no-cache), on Linux."
    )


def _read_schedule(path: Path) -> Schedule:
    try:
        return Schedule.from_json(gzip.decompress(path.read_bytes()).decode())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, LabError) as error:
        raise LabError(f"{path} is no stored schedule: {error}.", hint="Delete it, and rehearse again.") from error


def _files(name: str) -> Iterator[Path]:
    shipped = resources.data_dir() / _SHIPPED
    for place in (folder(), shipped):
        yield from sorted(place.glob(f"{name}-*.json"))


def _read(path: Path) -> Report:
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, LabError) as error:
        what = error.what if isinstance(error, LabError) else error
        raise LabError(f"{path} is no stored rehearsal: {what}", hint="Delete it, and rehearse again.") from error


def _stamp(versions: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()[:8]


def version(library: str) -> str:
    """The installed version of a library, "none" if it is not there."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "none"


def jsonable(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a step as they stand in a job: JSON values alone.

    Raises:
        LabError: a value that JSON does not have.
    """
    try:
        made: dict[str, Any] = json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise LabError(
            f"An argument of the step is no plain value: {error}.", hint="Give numbers, strings, lists."
        ) from error
    return made
