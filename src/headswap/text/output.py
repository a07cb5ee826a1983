"""Results for other programs: .jsonl, .csv, .tsv and .npy files, whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from headswap.errors import UsageError
from headswap.storage import STAGING, explained

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_table(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as they come; nested tables become columns such as probabilities.good."""
    if path.suffix == ".jsonl":
        with _staged(path) as stream:
            count = 0
            for row in rows:
                stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
                count += 1
        return count
    if path.suffix not in (".csv", ".tsv"):
        raise UsageError(f"cannot write {path.suffix or 'this kind of file'}", where=path,
                         fix="use .jsonl, .csv or .tsv")  # fmt: skip
    with _staged(path) as binary, _text(binary) as stream:
        writer = csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",")
        count = 0
        for row in rows:
            flat = _flat(row)
            if not count:
                writer.writerow([safe_cell(name) for name in flat])
            writer.writerow([safe_cell(value) for value in flat.values()])
            count += 1
    return count


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """One text a line; line breaks inside a text become spaces, so that lines stay aligned."""
    count = 0
    with _staged(path) as stream:
        for line in lines:
            stream.write((" ".join(line.splitlines()) + "\n").encode())
            count += 1
    return count


def write_vectors(path: Path, vectors: Iterable[np.ndarray]) -> int:
    """A matrix with one row a text, or JSON lines; written in one pass, in flat memory."""
    if path.suffix == ".jsonl":
        return write_table(path, ({"vector": vector.tolist()} for vector in vectors))
    count = width = 0
    with _staged(path) as stream:
        stream.write(_header(0, 0))
        for vector in vectors:
            width = len(vector)
            stream.write(vector.astype("<f4").tobytes())
            count += 1
        stream.seek(0)
        stream.write(_header(count, width))
    return count


def check_vectors(path: Path, tokens: bool) -> None:
    """Refuse an impossible target before any work is done."""
    allowed = (".jsonl",) if tokens else (".npy", ".jsonl")
    if path.suffix not in allowed:
        raise UsageError(
            f"cannot write vectors as {path.suffix or 'a file without extension'}",
            where=path,
            fix=f"use {' or '.join(allowed)}",
        )


def safe_cell(value: object) -> str:
    """A cell that no spreadsheet takes for a formula."""
    text = str(value)
    dangerous = isinstance(value, str) and text.startswith(FORMULA) and not NUMBER.fullmatch(text)
    return f"'{text}" if dangerous else text


def _header(rows: int, width: int) -> bytes:
    """The 128 bytes before a .npy file's numbers (NumPy's format, version 1.0)."""
    table = repr({"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + f"{table:<117}\n".encode()


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": part for inner, part in value.items()}
        else:
            flat[name] = value
    return flat


@contextlib.contextmanager
def _staged(path: Path) -> Iterator[IO[bytes]]:
    staged = path.with_name(f"{STAGING}{path.name}-{os.getpid()}")
    with explained(path):
        try:
            with staged.open("wb") as stream:
                yield stream
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)


@contextlib.contextmanager
def _text(binary: IO[bytes]) -> Iterator[IO[str]]:
    import io

    stream = io.TextIOWrapper(binary, "utf-8", newline="", write_through=True)
    try:
        yield stream
    finally:
        stream.detach()
