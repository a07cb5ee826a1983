from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from headswap.errors import UsageError
from headswap.text import output

ROWS = [
    {"label": "=cmd|' /C calc'!A0", "probabilities": {"@a": 0.25, "b": 0.75}},
    {"label": "fine", "probabilities": {"@a": 0.5, "b": 0.5}},
]


def test_json_lines_keep_everything(tmp_path):
    path = tmp_path / "a.jsonl"
    assert output.write_table(path, iter(ROWS)) == 2
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_no_cell_is_a_formula(tmp_path, name):
    output.write_table(tmp_path / name, iter(ROWS))
    with (tmp_path / name).open(newline="") as stream:
        cells = list(csv.reader(stream, delimiter="\t" if name.endswith("tsv") else ","))
    assert cells[0] == ["label", "probabilities.@a", "probabilities.b"]
    assert cells[1][0] == "'=cmd|' /C calc'!A0" and cells[1][1] == "0.25"
    assert cells[2] == ["fine", "0.5", "0.5"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_dangerous_starts_are_quoted_and_numbers_are_not(start):
    assert output.safe_cell(f"{start}1+1") == f"'{start}1+1"
    assert output.safe_cell(-1.5) == "-1.5"
    assert output.safe_cell("plain") == "plain"


def test_vectors_are_what_numpy_reads(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    assert output.write_vectors(tmp_path / "v.npy", iter(vectors)) == 7
    assert np.array_equal(np.load(tmp_path / "v.npy"), vectors)
    output.write_vectors(tmp_path / "v.jsonl", iter(vectors))
    first = json.loads((tmp_path / "v.jsonl").read_text().splitlines()[0])
    assert np.allclose(first["vector"], vectors[0])


def test_a_failure_leaves_nothing(tmp_path):
    def broken():
        yield ROWS[0]
        raise RuntimeError

    for name in ("a.jsonl", "a.csv"):
        with pytest.raises(RuntimeError):
            output.write_table(tmp_path / name, broken())
    assert list(tmp_path.iterdir()) == []


def test_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"use \.jsonl, \.csv or \.tsv"):
        output.write_table(tmp_path / "a.xlsx", iter(ROWS))
    with pytest.raises(UsageError, match=r"use \.jsonl"):
        output.check_vectors(tmp_path / "a.npy", tokens=True)


def test_numbers_are_no_formulas():
    assert [output.safe_cell(one) for one in ("-1", "+2.5", "-a", "=1")] == [
        "-1", "+2.5", "'-a", "'=1",
    ]  # fmt: skip
