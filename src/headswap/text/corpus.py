"""Documents and labelled texts, streamed from .txt, .jsonl, .csv and .tsv files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headswap.errors import DataError
from headswap.text import files
from headswap.text.tables import TABLES, as_text, column_of, mended, table_rows

TEXT_NAMES = ("text", "review", "sentence", "content", "document", "body", "comment", "message")
LABEL_NAMES = ("label", "labels", "class", "category", "sentiment", "target", "y")
PREVIEW_LINES = 2_000


Cleaning = Literal["html", "whitespace"]
TAGS = re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>", re.DOTALL)


@dataclass(frozen=True)
class Reading:
    """How files are turned into texts. ``text`` and ``label`` name columns; ``clean`` says
    what is taken out of every text: ``html`` (tags and entities), ``whitespace`` (runs of it,
    line breaks too)."""

    documents: Literal["auto", "blank", "line"] = "auto"
    text: str | None = None
    label: str | None = None
    clean: tuple[Cleaning, ...] = ()

    def cleaned(self, text: str) -> str:
        if "html" in self.clean:
            text = html.unescape(TAGS.sub(" ", text))
        if "whitespace" in self.clean:
            text = " ".join(text.split())
        return text


@dataclass(frozen=True)
class LabelledText:
    text: str
    label: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)


def documents(paths: Sequence[Path], reading: Reading = Reading()) -> Iterator[str]:
    """The texts of all files in order; empty ones are left out."""
    for path in paths:
        found = False
        for document in _documents_of(path, reading):
            found = True
            yield document
        if not found:
            raise DataError("no text in it", where=path, fix="give a file that holds text")


def texts(path: Path, reading: Reading = Reading()) -> Iterator[str]:
    """The text of every row or line, the empty ones too, so that results line up with it."""
    if files.kind(path) in TABLES:
        column = None
        for where, row in table_rows(path):
            column = column or column_of(row, reading.text, TEXT_NAMES, "text", path)
            yield reading.cleaned(as_text(row.get(column), where))
    else:
        files.check_text(path)
        for _, line in files.lines(path):
            yield reading.cleaned(line)


def labelled(
    path: Path, reading: Reading = Reading(), *, missing_ok: bool = False
) -> Iterator[LabelledText]:
    """Rows with a text and a label; labels are names, so 1 and "1" are the same label.

    A missing label is an error, or an empty name with ``missing_ok``.
    """
    columns, found = None, False
    for where, row in table_rows(path):
        columns = columns or _columns(row, reading, path)
        text, label = map(row.get, columns)
        if label is None or label != label or str(label).strip() == "":  # NaN is not itself
            if missing_ok:
                found = True
                yield LabelledText(reading.cleaned(as_text(text, where)), "")
                continue
            raise DataError("the label is missing", where=where, fix="label the row or take it out")
        if isinstance(label, dict | list):
            raise DataError(f"the label is not a name or number: {label!r}", where=where)
        found = True
        yield LabelledText(reading.cleaned(as_text(text, where)), _label_name(label))
    if not found:
        raise DataError("no labelled rows in it", where=path, fix="give a file with rows")


def labelled_as(
    paths: files.Paths, reading: Reading, labels: Sequence[str]
) -> tuple[list[LabelledText], list[int]]:
    """The rows of labelled files and the numbers of their labels; strange ones are refused."""
    paths = files.listed(paths)
    numbers = {label: number for number, label in enumerate(labels)}
    rows = [row for path in paths for row in labelled(path, reading)]
    for row in rows:
        if row.label not in numbers:
            raise DataError(
                f"the label {row.label!r} is unknown to the run (it knows {', '.join(labels)})",
                where=paths[0],
                fix="take those rows out",
            )
    return rows, [numbers[row.label] for row in rows]


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in one point, one of them wrong (BLiMP's format)."""

    good: str
    bad: str
    group: str


def holds_pairs(path: Path) -> bool:
    """Whether a table's rows are minimal pairs."""
    if files.kind(path) not in TABLES:
        return False
    first = next(table_rows(path), None)
    return first is not None and {"sentence_good", "sentence_bad"} <= first[1].keys()


def minimal_pairs(path: Path) -> Iterator[MinimalPair]:
    for where, row in table_rows(path):
        try:
            good, bad = row["sentence_good"], row["sentence_bad"]
        except KeyError as error:
            raise DataError(f"no column {error}", where=where) from error
        group = str(row.get("UID", "all"))
        yield MinimalPair(as_text(good, where), as_text(bad, where), group)


def split_by_blank_lines(path: Path) -> bool:
    """Whether a .txt file separates its documents by blank lines (else one a line)."""
    seen_text = seen_blank = False
    for number, line in files.lines(path):
        if not line.strip():
            seen_blank = seen_text
        elif seen_blank:
            return True
        else:
            seen_text = True
        if number >= PREVIEW_LINES:
            break
    return False


def by_blank_lines(path: Path, reading: Reading) -> bool:
    """Whether blank lines, and not lines, separate the documents of a file."""
    if reading.documents == "auto":
        return split_by_blank_lines(path)
    return reading.documents == "blank"


def text_column(path: Path, reading: Reading) -> str:
    """The column of a table that holds its texts, by its first row."""
    row = next((row for _, row in table_rows(path)), {})
    return column_of(row, reading.text, TEXT_NAMES, "text", path)


def _documents_of(path: Path, reading: Reading) -> Iterator[str]:
    if files.kind(path) in TABLES:
        yield from (text for text in texts(path, reading) if text.strip())
        return
    files.check_text(path)
    blank = by_blank_lines(path, reading)
    cleaned = (reading.cleaned(text) for text in _pieces(path, blank))
    yield from (text for text in cleaned if text.strip())


def _pieces(path: Path, blank: bool) -> Iterator[str]:
    """The lines of a file, or what stands between its blank lines."""
    document: list[str] = []
    for _, line in files.lines(path):
        if line.strip() and blank:
            document.append(line)
        elif line.strip():
            yield line
        elif document:
            yield "\n".join(document)
            document = []
    if document:
        yield "\n".join(document)


def _columns(row: Mapping[str, Any], reading: Reading, path: Path) -> tuple[str, str]:
    """The names that count in a whole table, by its first row."""
    return (
        column_of(row, reading.text, TEXT_NAMES, "text", path),
        column_of(row, reading.label, LABEL_NAMES, "label", path),
    )


def _label_name(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return mended(str(value).strip())
