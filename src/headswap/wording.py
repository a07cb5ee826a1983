"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 text``, ``1,200 texts``, ``2 classes``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
