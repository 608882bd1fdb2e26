"""The frozen dataclasses that travel between rooms: one readable line, a table in a notebook, JSON both ways."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import os
import tempfile
import types
import typing
from abc import ABC, abstractmethod
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from labkit.errors import LabError, nearest

_SCALARS: dict[type, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}


class Record:
    """Base of the dataclasses that labkit hands out.

    A subclass is a frozen dataclass whose fields are JSON values, other records, or tuples and dictionaries of these.
    It overrides `__str__` with one readable line.
    """

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, nested records included."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The record that `to_dict` wrote. Unknown or missing keys are a `LabError`."""
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for key in values:
            if key not in fields:
                raise LabError(f"{cls.__name__} has no field {key!r}.", hint=f"Nearest: {nearest(key, list(fields))}.")
        hints = typing.get_type_hints(cls)
        typed = {name: _field(cls, name, hints[name], value) for name, value in values.items()}
        try:
            return cls(**typed)
        except TypeError as error:
            raise LabError(f"{cls.__name__} cannot be made from these values: {error}.") from error

    def to_json(self, **options: Any) -> str:
        """The record as one JSON object. A number that JSON does not have (NaN, infinity) becomes null."""
        return json.dumps(self.to_dict(), allow_nan=False, **options)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The record that `to_json` wrote. Anything else is a `LabError`."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise LabError(f"This is not the JSON of a {cls.__name__}: {error}.") from error
        if not isinstance(values, dict):
            raise LabError(f"A {cls.__name__} is a JSON object, not {type(values).__name__}.")
        return cls.from_dict(values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record as JSON, atomically."""
        write_atomic(path, self.to_json(indent=1) + "\n")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(f.name)}</th>"
            f"<td style='text-align:left'>{html.escape(_cell(getattr(self, f.name), f.metadata.get('unit')))}</td></tr>"
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
        )
        return f"<table><caption style='text-align:left'>{html.escape(str(self))}</caption>{rows}</table>"


Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]  # title, columns and rows


class Tabled(Record, ABC):
    """A record that is read as a few tables, in a terminal and in a notebook alike."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """The tables; one without rows is left out."""

    def _lines(self) -> tuple[str, ...]:
        """What a terminal shows above the tables."""
        return (str(self),)

    def __rich__(self) -> Any:
        from rich import table
        from rich.console import Group

        parts: list[Any] = list(self._lines())
        for title, columns, rows in filter(itemgetter(2), self.tables()):
            made = table.Table(*columns, title=title, title_justify="left", min_width=60)
            for row in rows:
                made.add_row(*row)
            parts.append(made)
        return Group(*parts)

    def _repr_html_(self) -> str:
        made = f"<p><b>{html.escape(str(self))}</b></p>"
        for title, columns, rows in filter(itemgetter(2), self.tables()):
            head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
            caption = f"<caption style='text-align:left'>{html.escape(title)}</caption>"
            made += f"<table>{caption}<tr>{head}</tr>{body}</table>"
        return made


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that a kill at any point leaves the old file or the new one."""
    target = Path(path)
    raw = content.encode("utf-8") if isinstance(content, str) else content
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        raise LabError(
            f"{target} could not be written: {error.strerror}.",
            hint="Free some space, or choose another folder.",
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)  # it is gone already if all went well


def _umask() -> int:
    """The permissions that new files of this process lack (mkstemp's own are for the owner alone)."""
    value = os.umask(0o077)
    os.umask(value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a NumPy or JAX scalar
        return _plain(value.item())
    return value


def _field(record: type, name: str, hint: Any, value: Any) -> Any:
    try:
        return _typed(hint, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise LabError(f"{record.__name__}.{name} cannot be {value!r}: {error}.") from error


def _typed(hint: Any, value: Any) -> Any:
    """`value` from JSON as the type of the annotation: records, tuples and dictionaries are rebuilt."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value)
    if hint in _SCALARS:
        return _scalar(hint, value)
    if origin is tuple:
        items = args[:1] * len(value) if len(args) == 2 and args[1] is Ellipsis else args
        return tuple(_typed(t, v) for t, v in zip(items, value, strict=True))
    if origin is dict:
        return {_key(args[0], k): _typed(args[1], v) for k, v in value.items()}
    if origin is list:
        return [_typed(args[0], v) for v in value]
    if origin in (typing.Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        return _typed(inner[0], value) if len(inner) == 1 else value
    return value


def _scalar(hint: type, value: Any) -> Any:
    """`value` if it is of the type that its field has; a whole number also serves as a float."""
    if isinstance(value, bool) != (hint is bool) or not isinstance(value, _SCALARS[hint]):
        raise TypeError(f"{value!r} is not of type {hint.__name__}")
    return hint(value)


def _key(hint: Any, key: str) -> Any:
    """A dictionary's key: JSON has only strings, the record may have whole numbers."""
    return int(key) if hint is int else key


def _cell(value: Any, unit: str | None = None) -> str:
    """A value as a table shows it; a field's metadata `{"unit": "B"}` says that it is bytes."""
    if unit == "B" and value is not None:
        return f"{value / 2**30:,.1f} GiB"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, tuple | list):
        return ", ".join(_cell(v) for v in value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_cell(v)}" for k, v in value.items())
    return str(value)
