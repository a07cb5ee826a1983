"""The step that recorded steps must equal. Recording itself needs a GPU; what decides it is
tested here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import STACKS
from headswap.errors import ResourceError
from headswap.nn.model import new_model
from headswap.objectives import Context
from headswap.objectives.causal import Causal
from headswap.text.loader import Window
from headswap.training import optim, recording, step
from headswap.training.plan import Plan
from headswap.training.step import Step, as_compiled, total_counts

STACK = STACKS["modern"]


def parts_of(tokens, number, rows=4, few=False):
    ids = np.random.default_rng(number).integers(4, tokens.size, (rows, STACK.length + 1))
    ids[:, 7] = tokens.bos
    context = Context(STACK, tokens, np.random.default_rng(0), training=True, few_shapes=few)
    return [Causal().batch([Window(row) for row in ids], context)]


def stepper(tokens, lines):
    model = new_model(STACK, tokens.size, Causal().heads(STACK, tokens.size), seed=0).train()
    plan = Plan(steps=1, lr=1e-3)
    optimizer = optim.make_optimizer(model, plan)
    return Step(model, Causal(), optimizer, plan, torch.float32, lines.append)


def test_shapes_are_equal_exactly_when_a_recording_fits(tokens):
    def shapes(*arguments, **more):
        return recording.shapes_of(parts_of(tokens, *arguments, **more))

    assert shapes(0) == shapes(1)
    assert shapes(0) != shapes(0, rows=3)
    lonely = parts_of(tokens, 0)
    free = [Causal().batch([Window(np.arange(4, 12))], Context(STACK, tokens, None))]
    assert recording.shapes_of(lonely) != recording.shapes_of(free)


def test_tensors_come_in_the_order_in_which_they_are_held(tokens):
    parts = parts_of(tokens, 0)
    held = []
    [part.map(lambda tensor: held.append(tensor.clone()) or tensor) for part in parts]
    for one, other in zip(held, recording.tensors_of(parts_of(tokens, 0)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler hides
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
@pytest.mark.parametrize("deep", [step.DEEP, 1], ids=["as one", "layer by layer"])
def test_compiled_steps_are_the_steps(tokens, monkeypatch, deep):
    from torch._dynamo.utils import counters

    monkeypatch.setattr(step, "DEEP", deep)
    torch._dynamo.reset()
    counters.clear()
    lines = []
    plain, compiled = stepper(tokens, lines), stepper(tokens, lines)
    compiled.compile([parts_of(tokens, 0)], few=True)
    assert lines == []
    assert counters["stats"]["unique_graphs"] == 1  # which all layers share
    with as_compiled():
        for number, rows in enumerate((4, 4, 2)):  # the last of a shape that was not compiled
            for one in (plain, compiled):
                one(parts_of(tokens, number, rows), 1e-3, seed=number)
    assert lines == []
    assert compiled.take_sums() == pytest.approx(plain.take_sums(), rel=1e-5)
    assert set(plain.take_sums().values()) == {0.0}
    for one, other in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-4)


def test_terms_are_divided_by_what_all_parts_have_in_common(tokens):
    whole = parts_of(tokens, 0, rows=4)[0]
    assert total_counts([whole, whole])["causal"] == 2 * whole.counts["causal"]


def test_recordings_give_their_memory_back_where_it_is_short(tokens, monkeypatch):
    lines: list[str] = []
    made, plain = stepper(tokens, lines), stepper(tokens, [])
    for one in (made, plain):
        one(parts_of(tokens, 0), 1e-3, 0)
    made.records, made._known = True, {"another shape": object()}
    learn, asked = Step._learn, []

    def short(self, parts, counts):
        asked.append(self.records)
        if self.records:
            self._backward(parts[0], counts, self.sums)  # of several parts the first had room
            raise ResourceError("the GPU's memory is too small")
        learn(self, parts, counts)

    monkeypatch.setattr(Step, "_learn", short)
    made(parts_of(tokens, 1), 1e-3, 1)
    assert asked == [True, False] and not made.records and not made._known
    assert lines == ["memory is short: training without replays"]
    monkeypatch.undo()
    plain(parts_of(tokens, 1), 1e-3, 1)
    assert made.take_sums() == plain.take_sums()
    for one, other in zip(made.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there a step can be recorded")
def test_what_cannot_be_recorded_is_launched(tokens):
    lines: list[str] = []
    made, plain = stepper(tokens, lines), stepper(tokens, [])
    made.records = True
    for number in range(3):
        for one in (made, plain):
            one(parts_of(tokens, number), 1e-3, number)
        assert made.records == (number == 0)
    assert len(lines) == 1 and lines[0].startswith("a step could not be recorded (")
    assert made.take_sums() == pytest.approx(plain.take_sums())
    for one, other in zip(made.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
