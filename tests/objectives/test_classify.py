from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import STACKS, classifier
from headswap.errors import UsageError
from headswap.objectives import Classify, Context
from headswap.text.loader import Labelled

STACK = STACKS["modern"]


def batch(objective, tokens, rows):
    return objective.batch(rows, Context(STACK, tokens, np.random.default_rng(0), training=True))


def test_a_causal_classifier_reads_no_end_and_a_full_one_does(tokens):
    rows = [Labelled(np.array([10, 11]), 0)]
    causal = batch(Classify(("a", "b"), sees="causal", pool="last"), tokens, rows)
    assert causal.inputs.ids_BT.tolist() == [[tokens.bos, 10, 11]]
    full = batch(Classify(("a", "b")), tokens, rows)
    assert full.inputs.ids_BT.tolist() == [[tokens.bos, 10, 11, tokens.eos]]


def test_long_texts_are_cut_and_empty_ones_survive(tokens):
    rows = [Labelled(np.arange(10, 110), 0), Labelled(np.zeros(0, dtype=int), 1)]
    objective = Classify(("a", "b"))
    made = batch(objective, tokens, rows)
    assert made.inputs.ids_BT.shape == (2, STACK.length)
    assert made.targets["label"].lengths_B.tolist() == [STACK.length, 2]
    term = objective.loss(classifier(STACK, tokens.size, objective), made)["label"]
    assert torch.isfinite(term.total)


def test_class_weights_weigh_sum_and_count(tokens):
    rows = [Labelled(np.array([10]), 0), Labelled(np.array([11]), 1)]
    plain, weighted = Classify(("a", "b")), Classify(("a", "b"), class_weights=(1.0, 3.0))
    assert batch(weighted, tokens, rows).counts == {"label": 4.0}
    model = classifier(STACK, tokens.size, plain)
    each = [plain.loss(model, batch(plain, tokens, [row]))["label"].total for row in rows]
    total = weighted.loss(model, batch(weighted, tokens, rows))["label"].total
    torch.testing.assert_close(total, each[0] + 3 * each[1])
    with pytest.raises(UsageError, match="3 class weights for 2 labels"):
        Classify(("a", "b"), class_weights=(1.0, 1.0, 1.0))


def test_smoothing_is_for_training_only(tokens):
    objective = Classify(("a", "b"), label_smoothing=0.2)
    model = classifier(STACK, tokens.size, objective)
    made = batch(objective, tokens, [Labelled(np.array([10, 12, 14]), 0)])
    quiet = objective.loss(model.eval(), made)["label"].total
    smooth = objective.loss(model.train(), made)["label"].total
    assert not torch.equal(quiet, smooth)
    plain = Classify(("a", "b")).loss(model, made)["label"].total
    torch.testing.assert_close(quiet, plain)


def test_the_heads_take_the_stock_shapes():
    def spec(style, **more):
        return Classify(("a", "b"), **more).heads(STACKS[style], 40)["label"]

    assert spec("modern", sees="full", pool="mean").dense
    assert not spec("modern", sees="causal", pool="last").bias
    assert spec("classic", sees="causal", pool="last").bias
    assert not spec("classic", sees="full", pool="mean").dense
    assert spec("modern", sees="full", pool="concat").pooled == 3 * STACK.width


def test_head_and_tail_and_windows(tokens):
    ids = np.arange(10, 110)
    room = STACK.length - 2
    (both,) = Classify(("a", "b"), long="head+tail").rows(ids, STACK, tokens)
    assert list(both[1:-1]) == [*range(10, 10 + room // 2), *range(110 - (room - room // 2), 110)]
    windows = Classify(("a", "b"), long="windows").rows(ids, STACK, tokens)
    read = np.concatenate([row[1:-1] for row in windows])
    assert set(read) == set(ids) and all(len(row) == STACK.length for row in windows)
    (short,) = Classify(("a", "b"), long="windows").rows(ids[:5], STACK, tokens)
    assert list(short[1:-1]) == list(ids[:5])


def test_the_scores_of_windows_are_averaged(tokens):
    objective = Classify(("a", "b"), long="windows")
    model = classifier(STACK, tokens.size, objective)
    ids = np.arange(10, 90)
    rows = [Labelled(row[1:-1], 0) for row in objective.rows(ids, STACK, tokens)]
    assert len(rows) > 2
    with torch.no_grad():
        parts = objective.loss(model, batch(objective, tokens, rows))["label"].scores_NC
        mixed = [Labelled(ids, 0), Labelled(ids[:4], 1)]
        whole = objective.loss(model, batch(objective, tokens, mixed))["label"].scores_NC
    assert whole.shape == (2, 2)
    torch.testing.assert_close(whole[0], parts.mean(0))


def test_token_dropout_hides_in_training_only(tokens):
    objective = Classify(("a", "b"), token_dropout=0.5)
    rows = [Labelled(np.arange(10, 40), 0)]
    noisy = batch(objective, tokens, rows).inputs.ids_BT
    calm = objective.batch(rows, Context(STACK, tokens, np.random.default_rng(0))).inputs.ids_BT
    assert 5 < int((noisy != calm).sum()) < 25
    assert noisy[0, 0] == tokens.bos and noisy[0, -1] == tokens.eos


def test_r_drop_is_nothing_without_dropout_and_something_with_it(tokens):
    from dataclasses import replace

    plain, regular = Classify(("a", "b")), Classify(("a", "b"), r_drop=5.0)
    rows = [Labelled(np.array([10, 12, 14]), 0)]
    for dropout in (0.0, 0.3):
        model = classifier(replace(STACK, dropout=dropout), tokens.size, plain).train()
        torch.manual_seed(0)
        with torch.no_grad():
            one = plain.loss(model, batch(plain, tokens, rows))["label"].total
            two = regular.loss(model, batch(regular, tokens, rows))["label"].total
        assert torch.equal(one, two) == (dropout == 0)


@pytest.mark.parametrize("length", [STACK.length + 1, 10 * STACK.length, 200 * STACK.length])
def test_windows_reach_from_the_first_token_to_the_last(tokens, length):
    rows = Classify(("a", "b"), long="windows").rows(np.arange(1000, 1000 + length), STACK, tokens)
    assert rows[0][1] == 1000 and rows[-1][-2] == 999 + length and len(rows) <= 32
