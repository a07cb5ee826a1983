"""What every objective promises, over every stack and pooling; new entries are tested unasked.

An objective that registers itself is exercised with its default fields; variants worth a test
of their own are listed in ``VARIANTS``.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch

from conftest import STACKS, review_rows, spread
from headswap.nn.model import new_model
from headswap.objectives import OBJECTIVES, Classify, Context, Hybrid, Masked, Translate
from headswap.text.loader import Labelled, Pair, Window

LABELS = ("bad", "good")
POOLS = ("first", "last", "mean", "max", "concat")
VARIANTS = {
    "masked, whole words": Masked(whole_words=True),
    "masked, falling rate": Masked(rate=0.4, rate_end=0.1),
    "masked and next sentence": Masked(next_sentence=True),
    "hybrid, causal first": Hybrid(order="causal first"),
    "hybrid with next sentence": Hybrid(masked=Masked(next_sentence=True)),
    "classify, head and tail": Classify(LABELS, long="head+tail"),
    "classify, windows": Classify(LABELS, long="windows"),
    "classify, regularised": Classify(LABELS, r_drop=1.0, token_dropout=0.1, label_smoothing=0.1),
    "translate, backwards": Translate(reverse=True),
    "translate, regularised": Translate(r_drop=1.0),
    **{
        f"classify, {sees}, {pool}": Classify(LABELS, sees=sees, pool=pool)
        for sees in ("causal", "full")
        for pool in POOLS
    },
}
MADE = {
    **{
        name: kind(labels=LABELS) if kind.reads is Labelled else kind()
        for name, kind in OBJECTIVES.items()
    },
    **VARIANTS,
}
QUIET = {name for name, made in MADE.items() if not made.specials and "regularised" not in name}
"""Objectives whose batches hold no noise, so that sums can be compared exactly."""


def examples_for(objective, tokens, count=8):
    rows = tokens.encode([row["text"] for row in review_rows(count)])
    if objective.reads is Labelled:
        return [Labelled(ids, i % 2) for i, ids in enumerate(rows)]
    if objective.reads is Pair:
        return [Pair(ids[:24], ids[1:20][::-1], i % 2 == 1) for i, ids in enumerate(rows)]
    assert objective.reads is Window
    flat = np.concatenate([[tokens.bos, *ids, tokens.eos] for ids in rows])
    return [Window(flat[i : i + 31]) for i in range(0, len(flat) - 1, 30)]


@pytest.fixture(params=MADE)
def objective(request):
    return MADE[request.param]


@pytest.fixture(params=sorted(QUIET))
def quiet(request):
    return MADE[request.param]


def batch_of(objective, stack, tokens, examples=None, step=0, **more):
    examples = examples_for(objective, tokens) if examples is None else examples
    context = Context(stack, tokens, np.random.default_rng(step), step, 0.5, True, **more)
    return objective.batch(examples, context)


def model_for(objective, stack, tokens):
    if objective.reads is Pair:
        stack = replace(stack, decoder_layers=2)
    return new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0)


def test_is_a_frozen_dataclass_with_its_name(objective):
    assert OBJECTIVES[objective.name] is type(objective)
    with pytest.raises(FrozenInstanceError):
        setattr(objective, fields(objective)[0].name, None)


def test_batches_and_losses_agree(objective, stack, tokens):
    model = model_for(objective, stack, tokens).train()
    for step in range(3):
        batch = batch_of(objective, stack, tokens, step=step)
        terms = objective.loss(model, batch)
        assert set(batch.targets) == set(batch.counts) == set(terms)
        assert batch.inputs.ids_BT.shape[1] <= stack.length
        assert batch.inputs.ids_BT.min() >= 0 and batch.inputs.ids_BT.max() < tokens.size
        for name, term in terms.items():
            assert torch.isfinite(term.total) and term.total.ndim == 0
            assert batch.counts[name] == float(batch.targets[name].weights_N.sum()) > 0
        sum(term.total for term in terms.values()).backward()
        reached = [p.grad is not None for p in model.backbone.parameters()]
        assert all(reached)


def test_rounded_shapes_change_no_number(quiet, stack, tokens):
    model = spread(model_for(quiet, stack, tokens))
    plain = batch_of(quiet, stack, tokens)
    rounded = batch_of(quiet, stack, tokens, few_shapes=True)
    assert rounded.counts == plain.counts and rounded.tokens == plain.tokens
    sums = []
    for batch in (plain, rounded):
        model.zero_grad()
        terms = quiet.loss(model, batch)
        sum(term.total for term in terms.values()).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        sums.append(([t.total.item() for t in terms.values()], gradients))
    assert sums[0][0] == pytest.approx(sums[1][0], rel=1e-5)
    for one, other in zip(sums[0][1], sums[1][1], strict=True):
        assert torch.allclose(one, other, atol=1e-4 * float(one.abs().max()) + 1e-7)


def test_rounding_leaves_few_shapes(tokens):
    context = Context(STACKS["modern"], tokens, np.random.default_rng(0), few_shapes=True)
    assert {context.width(size) for size in range(1, 17)} == {16}
    assert context.width(STACKS["modern"].length) == STACKS["modern"].length
    for count in (1, 100, 5_000, 32_700):
        assert count <= context.rows(count) <= max(count + 63, 1.125 * count)
    assert len({context.rows(count) for count in range(4_096, 8_192)}) <= 9


def test_an_untrained_model_is_as_wise_as_chance(objective, tokens):
    stack = STACKS["modern"]
    model = model_for(objective, stack, tokens).eval()
    batch = batch_of(objective, stack, tokens)
    with torch.no_grad():
        terms = objective.loss(model, batch)
    for name, term in terms.items():
        outcomes = 2 if name in ("label", "pair") else tokens.size
        assert abs(float(term.total) / batch.counts[name] - np.log(outcomes)) < 0.1


def test_losses_are_sums_so_parts_add_up_to_the_whole(quiet, stack, tokens):
    """Accumulated gradients equal the full batch's."""
    examples = examples_for(quiet, tokens)
    model = spread(model_for(quiet, stack, tokens))

    def gradients(parts):
        counts = {}
        for part in parts:
            for name, count in part.counts.items():
                counts[name] = counts.get(name, 0) + count
        model.zero_grad()
        for part in parts:
            for name, term in quiet.loss(model, part).items():
                (term.total / counts[name]).backward()
        return {n: p.grad.clone() for n, p in model.tensors().items() if p.grad is not None}

    whole = gradients([batch_of(quiet, stack, tokens, examples)])
    cuts = (examples[:1], examples[1:4], examples[4:])
    uneven = gradients([batch_of(quiet, stack, tokens, part) for part in cuts])
    assert whole.keys() == uneven.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(uneven[name], gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("world", [2, 3, 11])
def test_the_rows_of_all_ranks_add_up_to_the_batch(objective, world, tokens):
    """What was drawn for the batch stays, so noise too is that of one process."""
    stack = STACKS["modern"]
    model = spread(model_for(objective, stack, tokens))
    whole = batch_of(objective, stack, tokens)
    parts = [whole.of_rank(rank, world) for rank in range(world)]
    with torch.no_grad():
        terms = objective.loss(model, whole)
        found = [objective.loss(model, part) for part in parts]
    for name, term in terms.items():
        assert all(part.counts == whole.counts for part in parts)
        weight = sum(float(part.targets[name].weights_N.sum()) for part in parts)
        assert weight == pytest.approx(whole.counts[name])
        total = sum(float(some[name].total) for some in found)
        assert total == pytest.approx(float(term.total), rel=1e-4)
        if term.correct is not None:
            assert sum(float(some[name].correct) for some in found) == float(term.correct)


def test_a_batch_mate_changes_nothing(quiet, stack, tokens):
    examples = examples_for(quiet, tokens)[:3]
    model = spread(model_for(quiet, stack, tokens))
    with torch.no_grad():
        alone = [quiet.loss(model, batch_of(quiet, stack, tokens, [e])) for e in examples]
        together = quiet.loss(model, batch_of(quiet, stack, tokens, examples))
    for name, term in together.items():
        summed = sum(float(terms[name].total) for terms in alone)
        assert abs(float(term.total) - summed) < 1e-3 * max(1, abs(summed))


def test_the_same_noise_gives_the_same_batch(objective, tokens):
    stack = STACKS["modern"]
    one, two = (batch_of(objective, stack, tokens, step=1) for _ in range(2))
    assert torch.equal(one.inputs.ids_BT, two.inputs.ids_BT)
    for name in one.targets:
        assert torch.equal(one.targets[name].answers_N, two.targets[name].answers_N)


def test_evaluation_views_are_objectives_over_the_same_heads(objective, tokens):
    stack = STACKS["modern"]
    model = model_for(objective, stack, tokens).eval()
    assert objective.views()
    for view in objective.views():
        batch = view.batch(
            examples_for(objective, tokens), Context(stack, tokens, np.random.default_rng(0))
        )
        with torch.no_grad():
            assert set(view.loss(model, batch)) == set(batch.targets)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_it_learns(name, tokens):
    stack, objective = STACKS["modern"], MADE[name]
    model = model_for(objective, stack, tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        batch = batch_of(objective, stack, tokens)
        total = sum(
            term.total / batch.counts[term_name]
            for term_name, term in objective.loss(model, batch).items()
        )
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total.detach()))
    assert losses[-1] < 0.5 * losses[0]
