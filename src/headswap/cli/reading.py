"""What the using commands read, and what they show while it takes its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from headswap.cli.options import reporter
from headswap.errors import UsageError
from headswap.wording import counted

STANDARD_INPUT = "-"
T = TypeVar("T")


def texts(text: list[str], source: Path | None, column: str | None = None) -> Iterator[str]:
    """What a command reads: --text, a file, or standard input. That there is none is told."""
    return _some(_texts(text, source, column), source)


def _some(found: Iterator[str], source: Path | None) -> Iterator[str]:
    none = True
    for text in found:
        none = False
        yield text
    if none:
        standard = source is None or str(source) == STANDARD_INPUT
        reporter().warn(f"no texts in {'standard input' if standard else source}")


def _texts(text: list[str], source: Path | None, column: str | None) -> Iterator[str]:
    from headswap.text import corpus, files, tables

    if text and source is not None:
        raise UsageError(
            f"texts from --text and from {source}", fix="give one of them; repeat --text for more"
        )
    if text:
        return map(tables.mended, text)
    if source is None or str(source) == STANDARD_INPUT:
        return files.standard_input()
    return corpus.texts(source, corpus.Reading("line", column))


def source_column(source: Path | None) -> str | None:
    """The column of a table of pairs that is translated; None for all other files."""
    from headswap.text import files, pairs, tables

    if source is None or not source.is_file() or files.kind(source) not in tables.TABLES:
        return None
    row = next((row for _, row in tables.table_rows(source)), {})
    return next((name for name in row if name.strip().lower() == pairs.PAIR_NAMES[0]), None)


def check_out(out: Path | None, source: Path | None) -> None:
    """Refuse to write results over what they are made of."""
    given = [path for path in (out, source) if path is not None and path.exists()]
    if len(given) == 2 and given[0].samefile(given[1]):
        raise UsageError("it is where the texts come from", where=out, fix="give another --out")


def number_of(text: list[str], source: Path | None, column: str | None = None) -> int | None:
    """How many texts there will be; None for standard input and pipes, which are read once."""
    if text:
        return len(text)
    if source is None or str(source) == STANDARD_INPUT or not source.is_file():
        return None
    return sum(1 for _ in _texts([], source, column))


def shown(found: Iterable[T], doing: str, number: int | None) -> Iterator[T]:
    """Results as they come, with a bar for whoever waits; ``number`` of them in all."""
    report = reporter()
    report.begin(doing)
    try:
        for done, one in enumerate(found, 1):
            yield one
            report.update(done / number if number else None, counted(done, "text"))
    finally:
        report.end()
