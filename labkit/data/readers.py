"""Readers of real data sets. A malformed line is counted and named, and fatal only above a stated share."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from labkit.data.examples import ROLES, Example, Message
from labkit.data.problems import Problem
from labkit.errors import LabError, nearest
from labkit.records import Record

_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
_FENCE = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\r?\n(.*?)```", re.DOTALL)
_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?:\{|\Z)")  # how a JSON array of records begins
_WIDE_BOMS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _BadLine(Exception):
    """Why one line is no example; caught by the reader that counts it."""


@dataclass(frozen=True)
class Malformed(Record):
    """One line (counted from 1; 0 for a file of a folder) that was left out, and why."""

    line: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{f'line {self.line}' if self.line else self.name}: {self.reason}"


@dataclass(frozen=True)
class ReadReport(Record):
    """What a reader took and what it left: `lines` that are not blank, `kept`, and each `malformed` one."""

    path: str
    lines: int
    kept: int
    malformed: tuple[Malformed, ...]
    max_bad_share: float

    @property
    def bad_share(self) -> float:
        """Malformed lines over all lines that are not blank."""
        return len(self.malformed) / max(self.lines, 1)

    def __str__(self) -> str:
        left = f", {len(self.malformed)} malformed ({self.bad_share:.2%})" if self.malformed else ""
        return f"{self.path}: {self.kept:,} of {self.lines:,} samples{left}"


def read_jsonl(
    path: str | os.PathLike[str],
    form: str = "auto",
    *,
    max_bad_share: float = 0.05,
    max_line_bytes: int = 16 * 2**20,
    limit: int | None = None,
) -> tuple[tuple[Example, ...], ReadReport]:
    """Training samples from a file with one JSON object a line, UTF-8, with or without a byte order mark.

    `form` is "chat" (`messages`), "completion" (`prompt`, `completion`), "codev" (CodeV-R1: `prompt`, `response` with
    `<think>`, `<answer>` and fenced code), or "auto", which decides by each line's keys. A prompt may be a text or a
    list of messages. `limit` stops after so many samples. Lines that are not valid are left out and reported.

    Raises:
        LabError: no such file, not UTF-8 text, no sample at all, or more than `max_bad_share` of the lines malformed.
    """
    if form not in _FORMS:
        raise LabError(f"There is no data format {form!r}.", hint=f"Nearest: {nearest(form, tuple(_FORMS))}.")
    path = Path(path)
    examples: list[Example] = []
    bad: list[Malformed] = []
    with _open(path) as file:
        for number, raw in _lines(file, max_line_bytes):
            try:
                examples.append(_example(raw, _FORMS[form], f"{path.stem}:{number}"))
            except _BadLine as reason:
                bad.append(Malformed(number, path.name, str(reason)))
            if limit is not None and len(examples) >= limit:
                break
    report = ReadReport(str(path), len(examples) + len(bad), len(examples), tuple(bad), max_bad_share)
    return tuple(examples), _accept(report)


def read_verilog_eval(
    folder: str | os.PathLike[str], *, max_bad_share: float = 0.0
) -> tuple[tuple[Problem, ...], ReadReport]:
    """The problems of a checkout of verilog-eval v2, or of one of its folders.

    Reads `ProbNNN_name_{prompt.txt,ref.sv,test.sv}`: the answer's module is `TopModule`, the reference's `RefModule`,
    and the testbench ends with "Mismatches: X in Y samples". A checkout's root means its `dataset_spec-to-rtl`.

    Raises:
        LabError: no such problems there, or more than `max_bad_share` of them lack a file.
    """
    root = Path(folder)
    places = [p for p in (root, root / "dataset_spec-to-rtl") if p.is_dir()]
    prompts = next((found for p in places if (found := sorted(p.glob("Prob*_prompt.txt")))), [])
    problems: list[Problem] = []
    bad: list[Malformed] = []
    for prompt in prompts:
        try:
            problems.append(_verilog_eval_problem(prompt))
        except _BadLine as reason:
            bad.append(Malformed(0, prompt.name, str(reason)))
    if not prompts:
        raise LabError(
            f"{root} holds no ProbNNN_name_prompt.txt.",
            hint="Give a checkout of verilog-eval v2, or one of its dataset folders.",
        )
    return tuple(problems), _accept(ReadReport(str(root), len(prompts), len(problems), tuple(bad), max_bad_share))


def fenced_code(text: str) -> str:
    """The last fenced block of code in a text, without its fence; empty if there is none."""
    blocks = _FENCE.findall(text)
    return blocks[-1][1].strip("\r\n") if blocks else ""


def _accept(report: ReadReport) -> ReadReport:
    first = "; ".join(str(m) for m in report.malformed[:3])
    if report.bad_share > report.max_bad_share:
        raise LabError(
            f"{report.path}: {len(report.malformed)} of {report.lines} samples are malformed ({first}).",
            hint=f"Mend them, or allow more than {report.max_bad_share:.0%} with max_bad_share.",
        )
    if not report.kept:
        raise LabError(f"{report.path} holds no sample. {first}".strip(), hint="It should be one JSON object a line.")
    return report


def _open(path: Path) -> BinaryIO:
    """The file after its byte order mark."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.", hint="Give the path of a JSONL file.") from error
    start = file.read(64)
    if start.startswith(_WIDE_BOMS):
        file.close()
        raise LabError(f"{path} is UTF-16 or UTF-32 text.", hint="Save it as UTF-8.")
    if _ARRAY.match(start):
        file.close()
        raise LabError(f"{path} is a JSON array, not JSON lines.", hint="Write one object a line (jq -c '.[]').")
    file.seek(3 if start.startswith(codecs.BOM_UTF8) else 0)
    return file


def _lines(file: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Number and bytes of each line that is not blank; None for one longer than `limit`, which is skipped unread."""
    number = 0
    while line := file.readline(limit + 1):
        number += 1
        if len(line) > limit:
            while line and not line.endswith(b"\n"):
                line = file.readline(limit)
            yield number, None
        elif line.strip():
            yield number, line


def _example(raw: bytes | None, form: Callable[[dict[str, Any]], list[Message]], name: str) -> Example:
    if raw is None:
        raise _BadLine("longer than the line limit")
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _BadLine(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise _BadLine(f"broken JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise _BadLine("JSON nested too deeply") from error
    if not isinstance(record, dict):
        raise _BadLine("not a JSON object")
    messages = _checked(form(record))
    given = record.get("id")
    return Example(str(given) if isinstance(given, str | int) else name, tuple(messages))


def _checked(messages: list[Message]) -> list[Message]:
    """The messages of a conversation that a chat template can render and a model can learn from."""
    turns = [m.role for m in messages]
    if turns[:1] == ["system"]:
        turns = turns[1:]
    if turns != ["user", "assistant"] * (len(turns) // 2) or not turns:
        raise _BadLine("the turns are not user and assistant in turn, ending with the assistant")
    for m in messages:
        if m.role != "system" and not m.content.strip():
            raise _BadLine("an empty answer" if m.role == "assistant" else "an empty prompt")
        if not m.content.isascii() and any("\ud800" <= c <= "\udfff" for c in m.content):
            raise _BadLine("a lone surrogate in the text")
    return messages


def _field(record: dict[str, Any], name: str) -> Any:
    if name not in record:
        raise _BadLine(f"no field {name!r}")
    return record[name]


def _text(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in value):
        value = "".join(str(p.get("text", "")) for p in value)
    if not isinstance(value, str):
        raise _BadLine(f"{what} is not a text")
    return value


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise _BadLine("messages is not a list of messages")
    return [_message(m) for m in value]


def _message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise _BadLine("a message is not an object")
    role = _field(value, "role")
    role = "assistant" if role == "model" else role
    if role not in ROLES:
        raise _BadLine(f"role {role!r} is none of {', '.join(ROLES)}")
    return Message(role, _text(_field(value, "content"), "content"))


def _prompt(record: dict[str, Any]) -> list[Message]:
    prompt = _field(record, "prompt")
    is_chat = isinstance(prompt, list) and any(isinstance(m, dict) and "role" in m for m in prompt)
    return _messages(prompt) if is_chat else [Message("user", _text(prompt, "prompt"))]


def _chat(record: dict[str, Any]) -> list[Message]:
    return _messages(_field(record, "messages"))


def _completion(record: dict[str, Any]) -> list[Message]:
    completion = _field(record, "completion")
    is_chat = isinstance(completion, list) and any(isinstance(m, dict) and "role" in m for m in completion)
    answer = _messages(completion) if is_chat else [Message("assistant", _text(completion, "completion"))]
    return _prompt(record) + answer


def _codev(record: dict[str, Any]) -> list[Message]:
    """CodeV-R1: the answer becomes its reasoning in `<think>` and its last fenced block of code."""
    prompt, response = _prompt(record), _text(_field(record, "response"), "response")
    think = _THINK.search(response)
    if "<think>" in response and not think:
        raise _BadLine("<think> is not closed")
    rest = response[think.end() :] if think else response
    answer = _ANSWER.search(rest)
    code = fenced_code(answer.group(1) if answer else rest)
    if not code.strip():
        raise _BadLine("an empty answer: no fenced code after the reasoning")
    reasoning = f"<think>{think.group(1)}</think>\n\n" if think else ""
    return [*prompt, Message("assistant", f"{reasoning}```verilog\n{code}\n```")]


def _auto(record: dict[str, Any]) -> list[Message]:
    for key, form in (("messages", _chat), ("completion", _completion), ("response", _codev)):
        if key in record:
            return form(record)
    raise _BadLine("no field 'messages', nor 'prompt' with 'completion' or 'response'")


_FORMS: dict[str, Callable[[dict[str, Any]], list[Message]]] = {
    "auto": _auto,
    "chat": _chat,
    "completion": _completion,
    "codev": _codev,
}


def _verilog_eval_problem(prompt: Path) -> Problem:
    name = prompt.name.removesuffix("_prompt.txt")
    texts = []
    for file in (prompt, prompt.with_name(f"{name}_ref.sv"), prompt.with_name(f"{name}_test.sv")):
        if not file.is_file():
            raise _BadLine(f"{file.name} is missing")
        try:
            texts.append(file.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise _BadLine(f"{file.name} is not UTF-8") from error
    spec, reference, testbench = texts
    for text, what in ((spec.strip(), "a specification"), ("RefModule" in reference, "RefModule in its reference")):
        if not text:
            raise _BadLine(f"without {what}")
    return Problem(name, "verilog-eval", "verilog-eval", spec.strip(), reference, testbench, "TopModule")
