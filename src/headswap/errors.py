"""Every error a user can cause: what is wrong, where, and what to do about it.

An error prints as one line. Anything else that escapes is a bug and exits with 70.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadswapError(Exception):
    """The base of all errors that are shown to the user without a traceback."""

    exit_code = 70

    def __init__(self, what: str, *, where: object = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.fix = what, where, fix

    def __str__(self) -> str:
        place = "" if self.where is None else f"{self.where}: "
        remedy = "" if self.fix is None else f"; {self.fix}"
        return " ".join(f"{place}{self.what}{remedy}".split())


class UsageError(HeadswapError):
    """A command, option, recipe or run that cannot be used as asked."""

    exit_code = 2


class DataError(HeadswapError):
    """Text, labels or weights that cannot be read or make training meaningless."""

    exit_code = 65


class ResourceError(HeadswapError):
    """The machine lacks something: memory, a device, an optional library."""

    exit_code = 69


class StorageError(HeadswapError):
    """The file system refused: disk full, no permission, not found."""

    exit_code = 74


class Interrupted(HeadswapError):
    """The user (or a scheduler) asked for a stop; the work so far is saved."""

    exit_code = 130


class Elsewhere(HeadswapError):
    """Another process of the same training says what happened; this one ends without a word."""

    lost = 75

    def __init__(self, exit_code: int = lost) -> None:
        super().__init__("another process of this training failed")
        self.exit_code = exit_code


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A sentence that names the nearest option, or all of them."""
    known = sorted(options)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose from {', '.join(known)}"
