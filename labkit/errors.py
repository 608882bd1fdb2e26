"""What can go wrong says so: what is wrong, which input, what to do."""

from __future__ import annotations


class LabError(Exception):
    """An error that a user can act on.

    Args:
        what: one line, what is wrong and with which input.
        hint: one line, what to do about it.
    """

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what} {hint}".strip())


def nearest(word: str, choices: list[str] | tuple[str, ...], n: int = 3) -> str:
    """The choices that look most like `word`, as ``"a, b, c"``; all of them if none does."""
    import difflib

    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=n, cutoff=0.4)
    return ", ".join([by_lower[c] for c in close] or list(choices))
