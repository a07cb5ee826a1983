from __future__ import annotations

import numpy as np
import pytest

from conftest import corpus_text
from headswap.errors import DataError
from headswap.text import shards


def documents():
    return corpus_text(60).split("\n\n")


def expected(tokens):
    rows = tokens.encode(documents())
    return np.concatenate([[tokens.bos, *row, tokens.eos] for row in rows])


def test_shards_hold_every_document_between_its_marks(tokens, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 100)
    monkeypatch.setattr(shards, "DOCUMENTS_AT_ONCE", 7)
    made = shards.prepare(documents, tokens, "source")
    whole = expected(tokens)
    assert len(made) == len(whole) and len(made.manifest.shard_tokens) > 5
    assert np.array_equal(made.read(0, len(whole) + 50), whole)
    for start in range(0, len(whole), 37):
        assert np.array_equal(made.read(start, start + 230), whole[start : start + 230])
    ends = made.document_ends()
    assert len(ends) == made.manifest.documents == 60
    assert (whole[ends - 1] == tokens.eos).all()
    assert made.manifest.utf8_bytes == sum(len(text.encode()) for text in documents())


def test_shards_are_reused_exactly_when_nothing_changed(tokens):
    calls = []

    def counted():
        calls.append(1)
        return documents()

    first = shards.prepare(counted, tokens, "source")
    shards.prepare(counted, tokens, "source")
    assert len(calls) == 1
    shards.prepare(counted, tokens, "other source")
    assert len(calls) == 2
    shards.prepare(counted, tokens.with_specials(["<new>"]), "source")
    assert len(calls) == 3
    assert not list(first.folder.parent.glob(".*"))


def test_a_damaged_cache_is_refused_with_the_remedy(tokens):
    made = shards.prepare(documents, tokens, "source")
    path = made.folder / "tokens-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match="delete the folder"):
        shards.prepare(documents, tokens, "source")


def test_an_interrupted_writer_leaves_nothing(tokens):
    def broken():
        yield "one document"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        shards.prepare(broken, tokens, "source")
    assert list((shards.cache_root() / "shards").iterdir()) == []


def test_whoever_was_faster_keeps_its_shards(tokens, monkeypatch):
    write, inner = shards._write, []

    def slow(*given):
        write(*given)
        if not inner:  # meanwhile another process makes the same
            inner.append(None)
            inner.append(shards.prepare(documents, tokens, "race"))

    monkeypatch.setattr(shards, "_write", slow)
    made = shards.prepare(documents, tokens, "race")
    whole = expected(tokens)
    assert np.array_equal(made.read(0, len(whole)), whole)
    assert np.array_equal(inner[1].read(0, len(whole)), whole)
