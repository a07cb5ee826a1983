from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import STACKS, classifier
from headswap.errors import UsageError
from headswap.objectives import Classify
from headswap.text.loader import Labelled

STACK = STACKS["modern"]


def batch(objective, tokens, rows):
    return objective.batch(rows, STACK, tokens, np.random.default_rng(0))


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
