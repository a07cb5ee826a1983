"""Numbers with their nouns, and names that fit a line."""

from __future__ import annotations

import shlex


def counted(number: int, noun: str) -> str:
    """``1 text``, ``1,200 texts``, ``2 classes``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def gib(count: float) -> str:
    """Bytes as ``0.84 GiB``, ``7.7 GiB`` or ``134 GiB``."""
    value = count / 2**30
    return f"{value:.0f} GiB" if value >= 99.5 else f"{value:.2g} GiB"


def quoted(path: object) -> str:
    """A path as it can be pasted into a command."""
    return shlex.quote(str(path))


def shortened(name: object, most: int = 40) -> str:
    """A name that may be a whole text, as much of it as a message has room for."""
    text = str(name)
    return text if len(text) <= most else text[: most - 1] + "…"
