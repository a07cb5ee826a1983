"""The rows of tables: .jsonl, .csv, .tsv and .parquet files, each with its place."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headswap.errors import DataError, ResourceError, UsageError, did_you_mean
from headswap.text import files
from headswap.wording import counted, shortened

TABLES = (".jsonl", ".csv", ".tsv", ".parquet")
MOST_NAMED = 8
PARQUET_ROWS = 256
SURROGATE = re.compile("[\ud800-\udfff]")


def table_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a table, each with its place for error messages."""
    extension = files.kind(path)
    if extension == ".jsonl":
        return _json_rows(path)
    if extension == ".parquet":
        return _parquet_rows(path)
    if extension in (".csv", ".tsv"):
        return _table_rows(path, "\t" if extension == ".tsv" else ",")
    raise UsageError(
        f"a labelled table cannot be a {extension or 'file without extension'}",
        where=path,
        fix=f"use one of {', '.join(TABLES)}, plain or compressed (.gz, .xz, .zst)",
    )


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in files.lines(path):
        if row := json_row(line, f"{path}, line {number}"):
            yield row


def json_row(line: str, where: str) -> tuple[str, Mapping[str, Any]] | None:
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"not valid JSON ({error})", where=where, fix="write one JSON object a line"
        ) from error
    if not isinstance(row, dict):
        raise DataError(
            f"a JSON {type(row).__name__}, not an object",
            where=where,
            fix='write rows as {"text": …, "label": …}',
        )
    return where, row


def _table_rows(path: Path, delimiter: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    csv.field_size_limit(files.LONGEST_LINE)
    position = 0

    def texts() -> Iterator[str]:
        nonlocal position
        for number, line in files.lines(path):
            position = number
            yield line + "\n"

    if delimiter == "\t":
        reader = csv.reader(texts(), delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        lines, first = texts(), next(files.lines(path), (0, ""))[1]
        if first.lower().startswith("sep=") and len(first) == 5:  # Excel's own line
            delimiter = first[-1]
            next(lines)
        elif "," not in first:  # semicolons are what spreadsheets write in much of Europe
            delimiter = next((sign for sign in ";\t|" if sign in first), delimiter)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        if twice := [name for name, times in Counter(header).items() if times > 1 and name]:
            raise DataError(
                f"two columns {shortened(twice[0])!r}", where=path, fix="name each once"
            )
        for cells in reader:
            if not cells:
                continue
            where = f"{path}, line {position}"
            if len(cells) != len(header):
                raise DataError(
                    f"{counted(len(cells), 'cell')} where the header has {len(header)}",
                    where=where,
                    fix="quote cells that hold the separator or a line break",
                )
            yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(
            f"not a valid table ({error})",
            where=f"{path}, line {position}",
            fix='is a quote left open before it, or one inside a cell not doubled ("")?',
        ) from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ResourceError(
            "reading Parquet needs pyarrow", where=path, fix="pip install 'headswap[formats]'"
        ) from error
    files.open_bytes(path).close()
    try:
        number = 0
        with parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"not a readable Parquet file ({error})", where=path) from error


def column_of(
    row: Mapping[str, Any], wanted: str | None, usual: Sequence[str], role: str, path: Path
) -> str:
    if wanted is not None:
        if wanted in row:
            return wanted
        raise UsageError(f"no column {wanted!r}", where=path, fix=did_you_mean(wanted, row))
    by_name = {name.strip().lower(): name for name in row}
    for name in usual:
        if name in by_name:
            return by_name[name]
    found = [repr(shortened(name)) for name in row]
    some = found[:MOST_NAMED] + ["…"] * (len(found) > MOST_NAMED)
    raise DataError(
        f"no {role} column (found: {', '.join(some)})",
        where=path,
        fix=(f"name it with --{role}-column" if role in ("text", "label") else f"call it {role}")
        + ", or add the row of names if it is missing",
    )


def as_text(value: Any, where: str) -> str:
    if value is None:
        raise DataError("the text is missing", where=where, fix="add it or take the row out")
    if not isinstance(value, str):
        raise DataError(f"the text is {value!r}, not a string", where=where)
    if "\0" in value:
        raise DataError("the text holds a NUL character", where=where, fix="is this a text file?")
    return mended(value)


def mended(text: str) -> str:
    """A text without halves of characters (of a cut emoji, say), which JSON and the words of a
    command can hold and UTF-8 cannot."""
    if SURROGATE.search(text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
