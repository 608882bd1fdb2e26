"""From conversations to tokens and a loss mask, exactly as the model's own chat template renders them.

The text before an answer is the template's generation prompt, because that is what the model gets when it is served.
Most templates render a finished answer after the same text. Gemma 4's large models do not (their prompt ends with an
empty thought channel that a finished turn lacks): there the text is the generation prompt, then the answer and its end
as the template renders them. A template that changes earlier turns is an error, not a guess.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

import jinja2
import numpy as np
from jaxtyping import Bool, Int
from rich.console import Console
from rich.progress import track

from labkit.data.examples import Example, Message
from labkit.errors import LabError, nearest
from labkit.records import Record

Reasoning = Literal["keep", "strip"]
Loss = Literal["answer", "assistant", "all"]
Turns = Literal["all", "last"]

_REASONING = re.compile(r"(?:<think>.*?(?:</think>|\Z)|<\|channel>thought\n.*?(?:<channel\|>|\Z))\s*", re.DOTALL)
_PROBE = "<probe>"
_CHUNK = 512


class ChatOptions(TypedDict, total=False):
    """How a conversation becomes tokens and which of them count.

    `reasoning`: "keep" (default), or "strip" to cut `<think>...</think>` from the answers.
    `loss`: "answer" (default) counts what the assistant says without its reasoning, "assistant" counts its reasoning
    too, "all" counts every token but the first. All but "all" include the token that ends the turn, and nothing after.
    `turns`: which assistant turns count, "all" (default) or "last". `template`: variables for the chat template.
    """

    reasoning: Reasoning
    loss: Loss
    turns: Turns
    template: Mapping[str, Any] | None


@dataclass(frozen=True)
class Tokenized:
    """One sample: its tokens, and for each whether it is a target that counts (never the first)."""

    id: str
    tokens: Int[np.ndarray, " T"]
    loss_mask: Bool[np.ndarray, " T"]

    def __len__(self) -> int:
        return len(self.tokens)


class Rendered(NamedTuple):
    """The text of a conversation, and the character span of each counted assistant turn, end-of-turn included."""

    text: str
    turns: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TokenReport(Record):
    """What became of the samples: `too_long` and `unanswered` are the ids of those left out.

    `mean_tokens`, `p99_tokens` and `longest` are over all samples with an answer, before long ones are left out.
    `tokens` and `loss_tokens` are sums over the kept ones.
    """

    samples: int
    kept: int
    tokens: int
    loss_tokens: int
    mean_tokens: float
    p99_tokens: float
    longest: int
    max_len: int | None
    too_long: tuple[str, ...]
    unanswered: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.kept:,} of {self.samples:,} samples kept ({len(self.too_long)} too long, {len(self.unanswered)} "
            f"without an answer), {self.tokens:,} tokens, {self.loss_tokens:,} of them targets"
        )


@dataclass(frozen=True)
class MaskView(Record):
    """The tokens of one sample as text, and for each way to count the loss, whether a token counts.

    The pieces joined are the whole text; a character of several tokens stands with the first of them.
    """

    id: str
    pieces: tuple[str, ...]
    counted: dict[str, tuple[bool, ...]]

    def __str__(self) -> str:
        shares = ", ".join(f"{loss} {sum(mask)}" for loss, mask in self.counted.items())
        return f"{self.id}: {len(self.pieces)} tokens, counted: {shares}"


def tokenize(example: Example, tokenizer: Any, **options: Unpack[ChatOptions]) -> Tokenized:
    """Tokens and loss mask of one conversation; `tokenizer` is a fast Transformers tokenizer with a chat template.

    A token that straddles the border of a turn does not count.

    Raises:
        LabError: an empty answer, a template that refuses the conversation or changes it (see the module), a slow
            tokenizer or one without a template.
    """
    loss = _known(options.get("loss", "answer"), Loss)
    _require_fast(tokenizer)
    if not _says_something(example, loss == "answer" or options.get("reasoning") == "strip"):
        raise LabError(f"{example.id!r} does not end with an answer.", hint="Leave it out, or give it one.")
    rendered = render(example, tokenizer, **options)
    return _tokenized(example.id, rendered, _encode(tokenizer, [rendered.text])[0], loss)


def tokenize_all(
    examples: Iterable[Example], tokenizer: Any, *, max_len: int | None = None, **options: Unpack[ChatOptions]
) -> tuple[tuple[Tokenized, ...], TokenReport]:
    """`tokenize` for many. Samples over `max_len` tokens are left out, never cut; the report names them.

    Samples with nothing to learn (an empty answer, or one that is all reasoning) are left out and named, too.

    Raises:
        LabError: as `tokenize`, or if no sample is left.
    """
    loss = _known(options.get("loss", "answer"), Loss)
    without_reasoning = loss == "answer" or options.get("reasoning") == "strip"
    _require_fast(tokenizer)
    examples = tuple(examples)
    samples: list[Tokenized] = []
    unanswered: list[str] = []
    for part in _chunks(examples):
        said = [e for e in part if _says_something(e, without_reasoning)]
        texts = [render(e, tokenizer, **options) for e in said]
        encoded = _encode(tokenizer, [r.text for r in texts])
        done = [_tokenized(e.id, r, c, loss) for e, r, c in zip(said, texts, encoded, strict=True)]
        samples += done
        unanswered += [e.id for e in part if not _says_something(e, without_reasoning)]
    return _within(samples, tuple(unanswered), len(examples), max_len)


def mask_view(example: Example, tokenizer: Any, **options: Unpack[ChatOptions]) -> MaskView:
    """Which tokens of a sample count, under every way to count: what the token-mask viewer shows."""
    _require_fast(tokenizer)
    rendered = render(example, tokenizer, **options)
    code = _encode(tokenizer, [rendered.text])[0]
    counted = {m: _tokenized(example.id, rendered, code, m).loss_mask for m in get_args(Loss)}
    edges = [0, *np.maximum.accumulate(_offsets(code)[1]).tolist()]
    edges[-1] = len(rendered.text)
    pieces = tuple(rendered.text[a:b] for a, b in pairwise(edges))
    return MaskView(example.id, pieces, {m: tuple(mask.tolist()) for m, mask in counted.items()})


def render(example: Example, tokenizer: Any, **options: Unpack[ChatOptions]) -> Rendered:
    """The conversation's text and where the counted assistant turns are in it. See the module for what it promises."""
    template = options.get("template") or {}
    messages = _messages(example, options.get("reasoning", "keep"))
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    last_only = _known(options.get("turns", "all"), Turns) == "last" or len(answers) == 1
    text = _apply(tokenizer, messages, example.id, template)
    _require_system(messages, text, example.id)
    ends_with = tuple(tokenizer.get_added_vocab())
    if last_only:
        text, start = _last_turn(tokenizer, messages, text, example.id, template)
        return Rendered(text, ((start, _end_of_turn(text, len(text), ends_with)),))
    spans = [_turn(tokenizer, messages, i, text, example.id, template) for i in answers]
    return Rendered(text, tuple((start, _end_of_turn(text, end, ends_with)) for start, end in spans))


def strip_reasoning(text: str) -> str:
    """An answer without its `<think>...</think>` or thought channel; one that is never closed goes to the end."""
    return _REASONING.sub("", text)


def one_answer_each(example: Example) -> tuple[Example, ...]:
    """A conversation as one example for each answer, for templates that change earlier turns (with `turns="last"`)."""
    ends = [i for i, m in enumerate(example.messages) if m.role == "assistant"]
    return tuple(Example(f"{example.id}/{n}", example.messages[: i + 1]) for n, i in enumerate(ends))


def _turn(
    tokenizer: Any, messages: list[dict[str, str]], index: int, text: str, name: str, template: Mapping[str, Any]
) -> tuple[int, int]:
    """Start and end in `text` of what the assistant renders as message `index`."""
    prompt = _apply(tokenizer, messages[:index], name, template, add_generation_prompt=True)
    finished = _apply(tokenizer, messages[: index + 1], name, template)
    if not (text.startswith(finished) and finished.startswith(prompt)):
        raise LabError(
            f"The chat template renders turn {index} of {name!r} differently inside the whole conversation.",
            hint="Use chat.one_answer_each and turns='last': one example for each answer.",
        )
    return len(prompt), len(finished)


def _last_turn(
    tokenizer: Any, messages: list[dict[str, str]], text: str, name: str, template: Mapping[str, Any]
) -> tuple[str, int]:
    """The text that ends with the last answer after the generation prompt, and where the answer starts in it."""
    prompt = _apply(tokenizer, messages[:-1], name, template, add_generation_prompt=True)
    if text.startswith(prompt):
        return text, len(prompt)
    before = _apply(tokenizer, messages[:-1], name, template)
    probe = _apply(tokenizer, [*messages[:-1], {"role": "assistant", "content": _PROBE}], name, template)
    header = probe.partition(_PROBE)[0]  # what a finished turn has before its content
    if not (header.startswith(before) and prompt.startswith(header) and text.startswith(header)):
        raise LabError(
            f"The chat template's generation prompt for {name!r} is not how it renders the finished conversation.",
            hint="Pass the variables that make both agree with template={...}, or mend the template.",
        )
    return prompt + text[len(header) :], len(prompt)


def _apply(
    tokenizer: Any, messages: list[dict[str, str]], name: str, template: Mapping[str, Any], **options: Any
) -> str:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **options, **template)
    except jinja2.TemplateError as error:
        raise LabError(
            f"The chat template refuses {name!r}: {error}.", hint="Check the roles and their order."
        ) from error


def _end_of_turn(text: str, end: int, tokens: tuple[str, ...]) -> int:
    """`end` moved back over white space that follows the end-of-turn token: the model never has to write it."""
    said = text[:end].rstrip()
    return len(said) if said.endswith(tokens) else end


def _messages(example: Example, reasoning: str) -> list[dict[str, str]]:
    strip = _known(reasoning, Reasoning) == "strip"
    return [{"role": m.role, "content": _content(m, strip)} for m in example.messages]


def _content(message: Message, strip: bool) -> str:
    return strip_reasoning(message.content) if strip and message.role == "assistant" else message.content


def _says_something(example: Example, without_reasoning: bool) -> bool:
    """Whether the conversation ends with the assistant and no answer is empty."""
    answers = [_content(m, without_reasoning) for m in example.messages if m.role == "assistant"]
    return bool(answers) and example.messages[-1].role == "assistant" and all(a.strip() for a in answers)


def _require_system(messages: list[dict[str, str]], text: str, name: str) -> None:
    """Some templates drop a system message without a word."""
    system = next((m["content"].strip() for m in messages if m["role"] == "system"), "")
    if system not in text:
        raise LabError(
            f"The chat template drops the system message of {name!r}.",
            hint="Move it into the first user message, or remove it.",
        )


def _require_fast(tokenizer: Any) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise LabError("This tokenizer gives no character offsets.", hint="Load its fast version (tokenizer.json).")
    if not tokenizer.chat_template:
        raise LabError("This tokenizer has no chat template.", hint="Use the instruction-tuned model's tokenizer.")


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[Any]:
    """One encoding for each text. The template already wrote the special tokens."""
    if not texts:
        return []
    return tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False).encodings


def _offsets(code: Any) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " T"]]:
    """Where each token begins and ends. Tokenizers that trim white space off offsets get it back at the front."""
    begins, ends = np.asarray(code.offsets, np.int64).reshape(-1, 2).T
    return np.minimum(begins, np.concatenate([[0], ends[:-1]])) if len(begins) else begins, ends


def _tokenized(name: str, rendered: Rendered, code: Any, loss: str) -> Tokenized:
    begins, _ = _offsets(code)
    mask = np.zeros(len(begins), bool)
    for start, end in _spans(rendered, loss):
        mask |= (begins >= start) & (begins < end)
    mask[:1] = False
    return Tokenized(name, np.asarray(code.ids, np.int32), mask)


def _spans(rendered: Rendered, loss: str) -> Iterator[tuple[int, int]]:
    """The character spans whose tokens count."""
    if loss == "all":
        yield 0, len(rendered.text)
    for start, end in rendered.turns:
        if loss == "assistant":
            yield start, end
        if loss == "answer":
            for thought in _REASONING.finditer(rendered.text, start, end):
                yield start, thought.start()
                start = thought.end()
            yield start, end


def _within(
    samples: list[Tokenized], unanswered: tuple[str, ...], count: int, max_len: int | None
) -> tuple[tuple[Tokenized, ...], TokenReport]:
    """The samples that fit, and the report."""
    lengths = np.array([len(s) for s in samples] or [0])
    kept = tuple(s for s in samples if max_len is None or len(s) <= max_len)
    report = TokenReport(
        samples=count,
        kept=len(kept),
        tokens=sum(len(s) for s in kept),
        loss_tokens=sum(int(s.loss_mask.sum()) for s in kept),
        mean_tokens=float(lengths.mean()),
        p99_tokens=float(np.percentile(lengths, 99)),
        longest=int(lengths.max()),
        max_len=max_len,
        too_long=tuple(s.id for s in samples if max_len is not None and len(s) > max_len),
        unanswered=unanswered,
    )
    if not kept:
        raise LabError(
            f"No sample is left of {count}: {len(report.too_long)} are longer than {max_len} tokens (the longest has "
            f"{report.longest}), {len(unanswered)} have no answer.",
            hint="Use a longer window, or check the data and the options for reasoning and loss.",
        )
    return kept, report


def _chunks(examples: tuple[Example, ...]) -> Iterable[tuple[Example, ...]]:
    """Parts for the tokenizer's own threads; a progress bar on stderr when there is much to do."""
    parts = [examples[i : i + _CHUNK] for i in range(0, len(examples), _CHUNK)]
    quiet = len(parts) < 8 or not sys.stderr.isatty()
    return track(parts, "Tokenizing", console=Console(stderr=True), disable=quiet, transient=True)


def _known(word: str, choices: Any) -> str:
    if word not in get_args(choices):
        raise LabError(f"{word!r} is not a choice here.", hint=f"Choices: {nearest(word, get_args(choices))}.")
    return word
