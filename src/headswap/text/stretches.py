"""Files cut into stretches, so that several workers can read one corpus at a time.

The cuts follow from the files' names and sizes alone: nothing is read to make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headswap.errors import DataError, StorageError
from headswap.text import corpus, files, tables
from headswap.text.corpus import Reading

WHOLE = (".csv", ".tsv", ".parquet")  # a line's meaning depends on what stands before it


@dataclass(frozen=True)
class Stretch:
    """From byte to byte of one file; a file that cannot be cut is one stretch."""

    path: Path
    start: int
    stop: int
    whole: bool

    def documents(self, reading: Reading) -> Iterator[str]:
        if self.whole:
            return corpus.documents([self.path], reading)
        return documents_between(self.path, reading, self.start, self.stop)


def cut(paths: Sequence[Path], size: int) -> list[Stretch]:
    """All files in stretches of ``size`` bytes, in order."""
    found: list[Stretch] = []
    for path in paths:
        try:
            total = path.stat().st_size
        except OSError as error:
            raise StorageError(f"cannot read it ({error.strerror})", where=path) from error
        if not total:
            raise DataError("no text in it", where=path, fix="give a file that holds text")
        if files.kind(path) not in tables.TABLES:
            files.check_text(path)
        if path.suffix in files.COMPRESSED or files.kind(path) in WHOLE:
            found.append(Stretch(path, 0, total, whole=True))
            continue
        for start in range(0, total, size):
            found.append(Stretch(path, start, min(start + size, total), whole=False))
    return found


def documents_between(path: Path, reading: Reading, start: int, stop: int) -> Iterator[str]:
    """The texts of a stretch of a file, from byte to byte. A line belongs where it begins, a
    document between blank lines where the blank line before it begins: stretches that follow
    each other give every document of the file once, and in order."""
    if files.kind(path) == ".jsonl":
        pieces = _rows_between(path, reading, start, stop)
    else:
        pieces = _pieces_between(path, corpus.by_blank_lines(path, reading), start, stop)
    cleaned = map(reading.cleaned, pieces)
    yield from (text for text in cleaned if text.strip())


def _rows_between(path: Path, reading: Reading, start: int, stop: int) -> Iterator[str]:
    column = corpus.text_column(path, reading)
    for place, line in files.lines_from(path, start):
        if place >= stop:
            return
        if found := tables.json_row(line, f"{path}, the line at byte {place:,}"):
            where, row = found
            yield tables.as_text(row.get(column), where)


def _pieces_between(path: Path, blank: bool, start: int, stop: int) -> Iterator[str]:
    document: list[str] = []
    begun = start == 0
    for place, line in files.lines_from(path, start):
        if not blank:
            if place >= stop:
                return
            yield line
            continue
        if line.strip():
            if not begun and place >= stop:
                return
            document += [line] if begun else []
            continue
        if document:
            yield "\n".join(document)
            document = []
        if place >= stop:
            return
        begun = True
    if document:
        yield "\n".join(document)
