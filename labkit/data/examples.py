"""What a model is fine-tuned on: a conversation whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from labkit.records import Record

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message(Record):
    """One turn of a conversation; `role` is "system", "user" or "assistant"."""

    role: str
    content: str

    def __str__(self) -> str:
        return f"{self.role}: {self.content}"


@dataclass(frozen=True)
class Example(Record):
    """One training sample: a conversation that ends with the assistant."""

    id: str
    messages: tuple[Message, ...]

    @classmethod
    def of(cls, prompt: str, answer: str, *, id: str, system: str = "") -> Self:
        """The example of one question and its answer."""
        opening = (Message("system", system),) if system else ()
        return cls(id, (*opening, Message("user", prompt), Message("assistant", answer)))

    @property
    def answer(self) -> str:
        """The content of the last turn."""
        return self.messages[-1].content

    def __str__(self) -> str:
        characters = sum(len(m.content) for m in self.messages)
        return f"{self.id}: {len(self.messages)} messages, {characters:,} characters"
