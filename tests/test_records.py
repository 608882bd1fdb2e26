"""Records go to JSON and back, refuse what they do not know, and files are whole or absent."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import LabError, nearest
from labkit.records import Record, write_atomic


@dataclass(frozen=True)
class Inner(Record):
    """A part."""

    name: str
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Outer(Record):
    """A whole."""

    part: Inner
    parts: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    maybe: Inner | None = None

    def __str__(self) -> str:
        return f"outer of {self.part}"


inners = st.builds(
    Inner, st.text(max_size=5), st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple)
)
outers = st.builds(
    Outer,
    inners,
    st.lists(inners, max_size=2).map(tuple),
    st.dictionaries(st.text(max_size=3), inners, max_size=2),
    st.tuples(st.integers(-9, 9), st.text(max_size=3)),
    st.none() | inners,
)


@given(outers)
def test_json_both_ways(record):
    assert Outer.from_json(record.to_json()) == record


def test_unknown_and_missing_keys_are_named():
    with pytest.raises(LabError, match="naem") as caught:
        Inner.from_dict({"naem": "x"})
    assert "name" in caught.value.hint
    with pytest.raises(LabError, match="name"):
        Inner.from_dict({})


def test_records_are_frozen_and_show_themselves():
    record = Outer(Inner("<b>"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.part = Inner("c")  # type: ignore[misc]
    assert "outer of &lt;b&gt;" in record._repr_html_() and "<b>" not in record._repr_html_().replace("&lt;b&gt;", "")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    write_atomic(target, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LabError, match="could not be written"):
        write_atomic(target, "new")
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_nearest_words():
    assert nearest("gema", ["gemma", "llama", "qwen"]).startswith("gemma")
    assert nearest("zzz", ["a", "b"]) == "a, b"


def test_a_field_of_bytes_is_shown_in_gib():
    @dataclasses.dataclass(frozen=True)
    class Machine(Record):
        memory: int = dataclasses.field(metadata={"unit": "B"})

    assert "<td style='text-align:left'>1.5 GiB</td>" in Machine(3 * 2**29)._repr_html_()
