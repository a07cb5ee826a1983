"""Sentence pairs, streamed from tables and from aligned files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from headswap.errors import DataError, UsageError
from headswap.text import files
from headswap.text.corpus import Reading
from headswap.text.tables import TABLES, as_text, column_of, table_rows
from headswap.wording import counted

PAIR_NAMES = ("source", "target")


@dataclass(frozen=True)
class PairText:
    """A sentence and its translation."""

    source: str
    target: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.source, self.target)


def read_pairs(paths: Sequence[Path], reading: Reading = Reading()) -> Iterator[PairText]:
    """Sentence pairs of tables (.tsv without a header, or any table with source and target
    columns), or of two aligned text files, one sentence a line. A pair with an empty side is
    left out; files of unequal length are refused."""
    found = False
    for pair in _pairs_of(paths, reading):
        if pair.source.strip() and pair.target.strip():
            found = True
            yield pair
    if not found:
        raise DataError("no sentence pairs in it", where=paths[0])


def _pairs_of(paths: Sequence[Path], reading: Reading) -> Iterator[PairText]:
    tables = [files.kind(path) in TABLES for path in paths]
    if not any(tables):
        if len(paths) != 2:
            raise UsageError(
                f"{len(paths)} text files are not aligned pairs",
                where=paths[0],
                fix="name a table of pairs, or two files of as many lines",
            )
        yield from _aligned(paths[0], paths[1], reading)
        return
    for path, table in zip(paths, tables, strict=True):
        if not table:
            raise UsageError("a table of pairs beside a text file", where=path)
        yield from _pair_rows(path, reading)


def _aligned(one: Path, two: Path, reading: Reading) -> Iterator[PairText]:
    for number, (left, right) in enumerate(zip_longest(files.lines(one), files.lines(two))):
        if left is None or right is None:
            longer, shorter = (one, two) if right is None else (two, one)
            raise DataError(
                f"{shorter} ends after {counted(number, 'line')} and this one does not",
                where=longer,
                fix="aligned files need as many lines as each other",
            )
        yield PairText(reading.cleaned(left[1]), reading.cleaned(right[1]))


def _pair_rows(path: Path, reading: Reading) -> Iterator[PairText]:
    if files.kind(path) == ".tsv":
        places = [0, 1]
        for number, line in files.lines(path):
            cells = line.split("\t")
            if not line.strip():
                continue
            if len(cells) <= max(places):
                raise DataError(
                    "no second column" if len(cells) < 2 else f"only {len(cells)} columns",
                    where=f"{path}, line {number}",
                    fix="split it by a tab",
                )
            names = [cell.strip().lower() for cell in cells]
            if number == 1 and set(PAIR_NAMES) <= set(names):
                places = [names.index(name) for name in PAIR_NAMES]
                continue
            one, two = (cells[place] for place in places)
            yield PairText(reading.cleaned(one), reading.cleaned(two))
        return
    for where, row in table_rows(path):
        found = [column_of(row, None, (name,), name, path) for name in PAIR_NAMES]
        one, two = (as_text(row[column], where) for column in found)
        yield PairText(reading.cleaned(one), reading.cleaned(two))
