"""What every objective promises, over every stack; new entries are tested unasked."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import torch

from conftest import STACKS, review_rows, spread
from headswap.nn.model import new_model
from headswap.objectives import OBJECTIVES, Classify
from headswap.text.loader import Labelled, Window

MADE = {
    name: cls(labels=("bad", "good")) if cls is Classify else cls()
    for name, cls in OBJECTIVES.items()
}


def examples_for(objective, tokens, count=8):
    texts = [row["text"] for row in review_rows(count)]
    rows = tokens.encode(texts)
    if objective.reads is Labelled:
        return [Labelled(ids, i % 2) for i, ids in enumerate(rows)]
    assert objective.reads is Window
    flat = np.concatenate([[tokens.bos, *ids, tokens.eos] for ids in rows])
    return [Window(flat[i : i + 21]) for i in range(0, len(flat) - 1, 20)]


@pytest.fixture(params=MADE)
def objective(request):
    return MADE[request.param]


def batch_of(objective, stack, tokens, examples=None):
    examples = examples_for(objective, tokens) if examples is None else examples
    return objective.batch(examples, stack, tokens, np.random.default_rng(0))


def test_is_a_frozen_dataclass_with_its_name(objective):
    assert OBJECTIVES[objective.name] is type(objective)
    with pytest.raises(FrozenInstanceError):
        setattr(objective, fields(objective)[0].name, None)


def test_batch_heads_and_loss_agree_on_their_names(objective, stack, tokens):
    batch = batch_of(objective, stack, tokens)
    heads = objective.heads(stack, tokens.size)
    terms = objective.loss(new_model(stack, tokens.size, heads, seed=0), batch)
    assert set(batch.targets) == set(batch.counts) == set(terms) <= set(heads)
    for name, term in terms.items():
        assert torch.isfinite(term.total) and term.total.ndim == 0
        assert batch.counts[name] == float(batch.targets[name].weights_N.sum())


def test_an_untrained_model_is_as_wise_as_chance(objective, tokens):
    stack = STACKS["modern"]
    heads = objective.heads(stack, tokens.size)
    model = new_model(stack, tokens.size, heads, seed=0)
    batch = batch_of(objective, stack, tokens)
    for name, term in objective.loss(model, batch).items():
        outcomes = 2 if name == "label" else tokens.size
        assert abs(float(term.total.detach()) / batch.counts[name] - np.log(outcomes)) < 0.1


def test_losses_are_sums_so_parts_add_up_to_the_whole(objective, stack, tokens):
    """Accumulated gradients equal the full batch's."""
    examples = examples_for(objective, tokens)
    if len(objective.specials):
        pytest.skip("noise differs between parts by design")
    model = spread(new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0))

    def gradients(parts):
        counts = {}
        for part in parts:
            for name, count in part.counts.items():
                counts[name] = counts.get(name, 0) + count
        model.zero_grad()
        for part in parts:
            for name, term in objective.loss(model, part).items():
                (term.total / counts[name]).backward()
        return {n: p.grad.clone() for n, p in model.tensors().items() if p.grad is not None}

    whole = gradients([batch_of(objective, stack, tokens, examples)])
    uneven = gradients(
        [
            batch_of(objective, stack, tokens, part)
            for part in (examples[:1], examples[1:4], examples[4:])
        ]
    )
    assert whole.keys() == uneven.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(uneven[name], gradient, rtol=1e-3, atol=1e-5)


def test_a_batch_mate_changes_nothing(objective, stack, tokens):
    examples = examples_for(objective, tokens)[:3]
    if len(objective.specials):
        pytest.skip("noise differs between batches by design")
    model = spread(new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0))
    with torch.no_grad():
        alone = [objective.loss(model, batch_of(objective, stack, tokens, [e])) for e in examples]
        together = objective.loss(model, batch_of(objective, stack, tokens, examples))
    for name, term in together.items():
        summed = sum(float(terms[name].total) for terms in alone)
        assert abs(float(term.total) - summed) < 1e-3 * max(1, abs(summed))


def test_it_learns(objective, tokens):
    stack = STACKS["modern"]
    model = new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = batch_of(objective, stack, tokens)
    losses = []
    for _ in range(60):
        total = sum(
            term.total / batch.counts[name] for name, term in objective.loss(model, batch).items()
        )
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total.detach()))
    assert losses[-1] < 0.5 * losses[0]
