"""Sentence pairs: every format, and nothing ever shifts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headswap.errors import DataError, UsageError
from headswap.text.loader import Pair, TokenLoader
from headswap.text.pairs import PairText, read_pairs


def written(path, text):
    path.write_text(text, "utf-8")
    return path


def test_aligned_files_tables_and_lines(tmp_path):
    one = written(tmp_path / "a.en", "a dog\n\ntwo cats\nthree\n")
    two = written(tmp_path / "a.de", "ein Hund\nleer\nzwei Katzen\n\n")
    expected = [PairText("a dog", "ein Hund"), PairText("two cats", "zwei Katzen")]
    assert list(read_pairs([one, two])) == expected
    table = written(tmp_path / "a.tsv", "a dog\tein Hund\ntwo cats\tzwei Katzen\tmore\n")
    assert list(read_pairs([table])) == expected
    headed = written(tmp_path / "b.tsv", "source\ttarget\na dog\tein Hund\ntwo cats\tzwei Katzen\n")
    assert list(read_pairs([headed])) == expected
    rows = "".join(json.dumps(vars(pair)) + "\n" for pair in expected)
    assert list(read_pairs([written(tmp_path / "a.jsonl", rows)])) == expected


def test_what_cannot_be_aligned_is_refused(tmp_path):
    one = written(tmp_path / "a.en", "a\nb\nc\n")
    two = written(tmp_path / "a.de", "x\ny\n")
    with pytest.raises(DataError, match="ends after 2 lines"):
        list(read_pairs([one, two]))
    with pytest.raises(UsageError, match="1 text files are not aligned"):
        list(read_pairs([one]))
    with pytest.raises(UsageError, match="3 text files"):
        list(read_pairs([one, two, one]))
    with pytest.raises(DataError, match="no second column"):
        list(read_pairs([written(tmp_path / "a.tsv", "only one cell\n")]))
    with pytest.raises(DataError, match="no sentence pairs"):
        empty = written(tmp_path / "e.en", "\n\n"), written(tmp_path / "e.de", "\n\n")
        list(read_pairs(list(empty)))
    with pytest.raises(DataError, match="no target column"):
        list(read_pairs([written(tmp_path / "a.jsonl", '{"source": "a"}\n')]))


def loader(count=300, tokens=200, seed=1):
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 40, count)
    examples = [Pair(np.arange(n), np.arange(max(1, n - 2))) for n in lengths]
    return TokenLoader(examples, np.array([len(e.ids) for e in examples]), tokens, seed), examples


def test_batches_by_tokens_hold_everything_once_and_no_more_than_allowed():
    made, examples = loader()
    for epoch in (0, 3):
        batches = [made.batch(epoch, index) for index in range(made.batches)]
        assert sum(map(len, batches)) == len(examples)
        assert {id(e) for batch in batches for e in batch} == {id(e) for e in examples}
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(len(e.ids) for e in batch) <= 200


def test_batch_mates_and_order_change_with_the_epoch_and_nothing_else():
    made, _ = loader()
    again, _ = loader()
    first = [[len(e.ids) for e in made.batch(0, i)] for i in range(made.batches)]
    assert first == [[len(e.ids) for e in again.batch(0, i)] for i in range(again.batches)]
    assert first != [[len(e.ids) for e in made.batch(1, i)] for i in range(made.batches)]


def test_a_header_names_the_columns_and_blank_lines_are_nothing(tmp_path):
    table = written(tmp_path / "c.tsv", "id\ttarget\tsource\n1\tein Hund\ta dog\n\n")
    assert list(read_pairs([table])) == [PairText("a dog", "ein Hund")]
