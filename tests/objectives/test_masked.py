from __future__ import annotations

import numpy as np
import pytest

from conftest import STACKS, corpus_text
from headswap.errors import UsageError
from headswap.objectives import Context, Hybrid, Masked
from headswap.text.loader import Window
from headswap.text.tokenizer import MASK, SEP

STACK = STACKS["modern"]


@pytest.fixture
def windows(tokens):
    rows = tokens.encode(corpus_text(100).split("\n\n"))
    flat = np.concatenate([[tokens.bos, *ids, tokens.eos] for ids in rows])
    return [Window(flat[i : i + 33]) for i in range(0, len(flat) - 1, 32)]


def make(objective, windows, tokens, **more):
    noise = np.random.default_rng(0)
    return objective.batch(windows, Context(STACK, tokens, noise, training=True, **more))


def originals(windows, tokens):
    table = np.full((len(windows), 32), tokens.pad)
    for row, window in zip(table, windows, strict=True):
        row[: len(window.ids[:32])] = window.ids[:32]
    return table.ravel()


def test_only_the_hidden_positions_are_scored_and_only_they_may_change(windows, tokens):
    batch = make(Masked(rate=0.15), windows, tokens)
    target = batch.targets["masked"]
    plain, shown = originals(windows, tokens), batch.inputs.ids_BT.numpy().ravel()
    where = target.rows_N.numpy()
    assert np.array_equal(target.answers_N.numpy(), plain[where])
    untouched = np.ones(len(plain), dtype=bool)
    untouched[where] = False
    assert np.array_equal(shown[untouched], plain[untouched])
    marks = [tokens.bos, tokens.eos, tokens.pad]
    assert not np.isin(plain[where], marks).any()
    free = (~np.isin(plain, marks)).sum()
    assert len(where) == round(0.15 * free)


def test_eighty_ten_ten(windows, tokens):
    batch = make(Masked(rate=0.9), windows * 3, tokens)
    where = batch.targets["masked"].rows_N.numpy()
    shown = batch.inputs.ids_BT.numpy().ravel()[where]
    answers = batch.targets["masked"].answers_N.numpy()
    assert abs((shown == tokens.special(MASK)).mean() - 0.8) < 0.03
    assert abs((shown == answers).mean() - 0.1) < 0.03


def test_the_rate_moves_over_the_training(windows, tokens):
    objective = Masked(rate=0.4, rate_end=0.1)
    counts = [
        make(objective, windows, tokens, progress=p).counts["masked"] for p in (0.0, 0.5, 1.0)
    ]
    assert counts[0] > counts[1] > counts[2]
    assert abs(counts[1] / counts[0] - 0.25 / 0.4) < 0.02


def test_whole_words_are_hidden_together(windows, tokens):
    batch = make(Masked(rate=0.3, whole_words=True), windows, tokens)
    plain = originals(windows, tokens)
    hidden = np.zeros(len(plain), dtype=bool)
    hidden[batch.targets["masked"].rows_N.numpy()] = True
    starts = tokens.word_starts()[plain]
    marks = np.isin(plain, [tokens.bos, tokens.eos, tokens.pad])
    inside = ~starts & ~marks
    inside[1:] &= ~marks[:-1]
    inside[::32] = False
    places = np.flatnonzero(inside)
    assert len(places) > 50
    assert (hidden[places] == hidden[places - 1]).all()
    free = (~marks).sum()
    assert 0.3 <= hidden.sum() / free < 0.33


def test_pairs_are_from_one_document_or_from_two(windows, tokens):
    batch = make(Masked(rate=0.01, keep=1.0, random=0.0, next_sentence=True), windows, tokens)
    separator = tokens.special(SEP)
    pair = batch.targets["pair"]
    documents = [" ".join(map(str, w.ids)) for w in windows]
    genuine = 0
    for row, answer, length, weight in zip(
        batch.inputs.ids_BT.numpy(), pair.answers_N, pair.lengths_B, pair.weights_N, strict=True
    ):
        ids = row[:length].tolist()
        assert ids[0] == tokens.bos and ids[-1] == tokens.eos and ids.count(separator) == 1
        cut = ids.index(separator)
        joined = " ".join(map(str, ids[1:cut] + ids[cut + 1 : -1]))
        if weight and answer:
            assert any(joined in document for document in documents)
            genuine += 1
    assert 0.3 < genuine / float(pair.weights_N.sum()) < 0.7


def test_hybrid_keeps_its_share_exactly(windows, tokens):
    kinds = [
        next(iter(make(Hybrid(masked_share=0.75), windows[:2], tokens, step=step).targets))
        for step in range(40)
    ]
    assert kinds.count("masked") == 30 and kinds.count("causal") == 10
    first = Hybrid(masked_share=0.5, order="causal first")
    turns = [
        next(iter(make(first, windows[:2], tokens, progress=p).targets)) for p in (0.1, 0.49, 0.6)
    ]
    assert turns == ["causal", "causal", "masked"]


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate_end": 1.2}, {"keep": 0.6, "random": 0.6}])
def test_impossible_rates_are_refused(wrong):
    with pytest.raises(UsageError):
        Masked(**wrong)
    with pytest.raises(UsageError):
        Hybrid(masked_share=2.0)


def test_pairs_without_a_second_sentence_weigh_nothing(windows, tokens):
    short = [Window(window.ids[:4]) for window in windows[:8]]
    made = make(Masked(next_sentence=True), [*windows[:8], *short], tokens)
    pair, separator = made.targets["pair"], tokens.special(SEP)
    for row, length, weight in zip(
        made.inputs.ids_BT.tolist(), pair.lengths_B, pair.weights_N, strict=True
    ):
        ids = row[:length]
        assert bool(weight) == (ids[-2] != separator and ids[1] != separator)
    assert 0 < made.counts["pair"] == float(pair.weights_N.sum()) < 16
    alone = make(Masked(next_sentence=True), windows[:1], tokens)
    assert alone.counts["pair"] == 0, "what can only be right teaches nothing"


def test_a_hybrid_is_not_judged_by_what_has_no_turn():
    assert [view.name for view in Hybrid(masked_share=0.5).views()] == ["causal", "masked"]
    assert [view.name for view in Hybrid(masked_share=1.0).views()] == ["masked"]
    assert [view.name for view in Hybrid(masked_share=0.0).views()] == ["causal"]
