"""Stretches of a file give its documents, each once and in order, wherever the cuts fall."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headswap.errors import DataError, StorageError
from headswap.text import corpus, stretches
from headswap.text.corpus import Reading

LINES = st.lists(st.sampled_from(["", "", "  ", "a", "a b", "été", "x" * 9]), max_size=25)
QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def in_stretches(path, reading, size):
    return [text for part in stretches.cut([path], size) for text in part.documents(reading)]


@QUICK
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["blank", "line"]), st.booleans())
def test_wherever_a_text_is_cut(tmp_path, lines, end, documents, ended):
    path = tmp_path / "text.txt"
    content = "word" + end + end.join(lines) + (end if ended else "")
    path.write_bytes(content.encode())
    reading = Reading(documents)
    whole = list(corpus.documents([path], reading))
    for size in (1, 2, 3, 7, 1_000):
        assert in_stretches(path, reading, size) == whole, size


@QUICK
@given(LINES)
def test_wherever_rows_are_cut(tmp_path, lines):
    path = tmp_path / "rows.jsonl"
    rows = ["\n" if not line else json.dumps({"text": line}) + "\n" for line in ["word", *lines]]
    path.write_text("".join(rows), "utf-8")
    whole = list(corpus.documents([path]))
    for size in (1, 5, 16, 1_000):
        assert in_stretches(path, Reading(), size) == whole, size


def test_what_cannot_be_cut_is_one_stretch(tmp_path):
    for name in ("a.csv", "a.txt.gz", "a.parquet", "a.tsv"):
        (tmp_path / name).write_bytes(b"x" * 100)
    found = stretches.cut(sorted(tmp_path.iterdir()), 10)
    assert len(found) == 4 and all(part.whole for part in found)


def test_errors_say_where(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good\n" * 10 + b"b\xffd\n")
    with pytest.raises(DataError, match="line at byte 50"):
        in_stretches(path, Reading("line"), 12)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="no text"):
        stretches.cut([tmp_path / "empty.txt"], 12)
    with pytest.raises(StorageError, match=r"missing\.txt"):
        stretches.cut([tmp_path / "missing.txt"], 12)
