from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import STACKS
from headswap.nn.model import new_model
from headswap.objectives import Causal, Classify, Context
from headswap.text.loader import Labelled, Window
from headswap.training import casting, optim
from headswap.training.evaluate import autocast
from headswap.training.parallel import Forward
from headswap.training.plan import Plan
from headswap.training.step import Step


@pytest.mark.parametrize("freeze", ["none", "embedding", "backbone"])
@pytest.mark.parametrize("objective", [Causal(), Classify(("no", "yes"))], ids=["causal", "label"])
def test_weights_cast_at_once_learn_as_with_autocast(tokens, stack, objective, freeze):
    """To the bit, also where a part is frozen and a batch comes in parts."""
    draw, found = np.random.default_rng(0), []
    rows = [draw.integers(4, tokens.size, stack.length + 1) for _ in range(6)]
    some = [Window(row) for row in rows]
    if isinstance(objective, Classify):
        some = [Labelled(row[: 5 + i], i % 2) for i, row in enumerate(rows)]
    plan = Plan(steps=3, lr=1e-2, freeze=freeze)
    context = Context(stack, tokens, draw, training=True)
    parts = [objective.batch(some[:3], context), objective.batch(some[3:], context)]
    for at_once in (False, True):
        model = new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0).train()
        optim.freeze(model, plan)
        if not any(p.requires_grad for p in model.parameters()):
            return  # a tied head is frozen with its backbone
        step = Step(
            model, objective, optim.make_optimizer(model, plan), plan, torch.bfloat16, print
        )
        if at_once:
            step._linear = casting.linear_tensors(step.forward)
        for number in range(3):
            step(parts, 1e-2, number)
        found.append((step.take_sums(), [p.detach().clone() for p in model.parameters()]))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(one, other)


def test_only_what_learns_is_cast_and_nothing_of_large_models(tokens, monkeypatch):
    stack = STACKS["classic"]
    model = new_model(stack, tokens.size, Causal().heads(stack, tokens.size), seed=0)
    names = casting.linear_tensors(model)
    assert len(names) == 8 * stack.layers
    assert not any("norm" in name or "embedding" in name or "heads" in name for name in names)
    with monkeypatch.context() as patched:
        patched.setattr(casting, "MOST", 1_000)
        assert casting.linear_tensors(model) == {}
    optim.freeze(model, Plan(freeze="backbone"))
    assert casting.linear_tensors(model) == {}


def test_a_step_casts_at_once_where_it_would_be_recorded(tokens, monkeypatch):
    stack = STACKS["classic"]
    for kind, wanted in ((torch.bfloat16, True), (torch.float32, False)):
        model = new_model(stack, tokens.size, Causal().heads(stack, tokens.size), seed=0)
        monkeypatch.setattr("headswap.training.step.records", lambda *_: True)
        plan = Plan(steps=1)
        step = Step(model, Causal(), optim.make_optimizer(model, plan), plan, kind, print)
        assert bool(step._linear) == wanted


def test_a_head_that_was_not_asked_gets_no_gradient(tokens):
    """None, with autocast's way too: of noughts an optimizer would make decay and momentum."""
    stack, objective = STACKS["classic"], Classify(("no", "yes"))
    heads = Causal().heads(stack, tokens.size) | objective.heads(stack, tokens.size)
    model = new_model(stack, tokens.size, heads, seed=0).train()
    forward = Forward(model)
    rows = [Labelled(np.arange(4, 9), 0), Labelled(np.arange(5, 12), 1)]
    batch = objective.batch(rows, Context(stack, tokens, np.random.default_rng(0), training=True))
    linear = casting.linear_tensors(forward)
    linear["model.heads.token.weight"] = model.heads["token"].weight
    with autocast(torch.device("cpu"), torch.bfloat16):
        terms = casting.forward_cast(forward, linear, torch.bfloat16, objective, batch)
    sum(term.total for term in terms.values()).backward()
    assert model.heads["token"].weight.grad is None
    assert all(weight.grad is not None for weight in model.heads["label"].parameters())
