"""What only a GPU can show. ``make test-gpu`` runs these where there is one."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from conftest import STACKS, classifier
from headswap import api
from headswap.errors import Interrupted
from headswap.nn.model import new_model
from headswap.objectives import Causal, Classify, Context
from headswap.text.loader import Labelled, Window
from headswap.training import evaluate as module
from headswap.training import loop, machine, optim
from headswap.training.evaluate import evaluate
from headswap.training.plan import Plan
from headswap.training.step import Step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # of a GPU's libraries
]
BOTH = Classify(("no", "yes"), sees="causal", pool="last")
SMALL = [
    {"model": {"width": 40, "layers": 2, "heads": 2, "feedforward": 32, "length": 24}},
    {"tokenizer": {"vocabulary": 330}},
]


def parts_of(objective, stack, tokens, number):
    draw = np.random.default_rng(number)
    rows = [draw.integers(4, tokens.size, stack.length + 1) for _ in range(4)]
    if objective is BOTH:
        some = [Labelled(row[: 4 + number % 9], i % 2) for i, row in enumerate(rows)]
    else:
        some = [Window(row) for row in rows]
    context = Context(stack, tokens, draw, training=True, few_shapes=True)
    return [objective.batch(some, context).map(torch.Tensor.pin_memory)]


@pytest.mark.parametrize("objective", [Causal(), BOTH], ids=["causal", "classify"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("style", ["classic", "modern"])
def test_replayed_steps_are_the_steps(tokens, objective, precision, style):
    stack, found = STACKS[style], []
    plan = Plan(steps=1, lr=1e-3, precision=precision, deterministic=True)
    device = torch.device("cuda")
    machine.prepare(plan, device, threads=1, few_shapes=True)
    for recorded in (False, True):
        model = new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0)
        model = model.to(device).train()
        kind, _ = machine.pick_precision(plan, device)
        lines: list[str] = []
        optimizer = optim.make_optimizer(model, plan)
        one = Step(model, objective, optimizer, plan, kind, lines.append)
        if not recorded:
            one.records, one._linear = False, {}
        for number in range(8):
            one(parts_of(objective, stack, tokens, number), 1e-3, seed=number)
        assert lines == [] and one.healthy and any(one._known.values()) == recorded
        found.append((one.take_sums(), [p.detach().cpu() for p in model.parameters()]))
    assert found[0][0] == found[1][0]
    for first, second in zip(found[0][1], found[1][1], strict=True):
        assert torch.equal(first, second)
    machine.prepare(Plan(), device, threads=1, few_shapes=True)


def test_trouble_is_seen_in_replayed_steps(tokens):
    stack = STACKS["classic"]
    model = new_model(stack, tokens.size, BOTH.heads(stack, tokens.size), seed=0).cuda().train()
    plan = Plan(steps=1, lr=1e-3)
    one = Step(model, BOTH, optim.make_optimizer(model, plan), plan, torch.bfloat16, print)
    for _ in range(3):
        one(parts_of(BOTH, stack, tokens, 0), 1e-3, 0)
    assert one.healthy
    with torch.no_grad():
        next(model.parameters())[:] = torch.inf
    one(parts_of(BOTH, stack, tokens, 0), 1e-3, 0)
    assert not one.healthy


@pytest.mark.parametrize("objective", ["causal", "classify"])
def test_an_interrupted_run_ends_with_the_same_bytes(
    objective, corpus_file, reviews_file, tmp_path, monkeypatch
):
    source = corpus_file if objective == "causal" else reviews_file
    plan = {"steps": 40, "batch": 8, "deterministic": True, "device": "cuda"}
    changes = [*SMALL, {"train": plan}]
    whole = api.train(objective, source, out=tmp_path / "a", changes=changes)
    step = loop._Training._step

    def stopping(self, feed):
        step(self, feed)
        if self.state.step == 17:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(loop._Training, "_step", stopping)
        api.train(objective, source, out=tmp_path / "b", changes=changes)
    again = api.resume(tmp_path / "b")
    for name in ("model.safetensors", "metrics.jsonl", "scores.json"):
        assert (whole.run.path / name).read_bytes() == (again.run.path / name).read_bytes(), name


def test_large_and_small_batches_score_alike_where_memory_is_short(tokens, monkeypatch):
    model = classifier(STACKS["modern"], tokens.size, BOTH)
    draw = np.random.default_rng(0)
    texts = [Labelled(draw.integers(4, tokens.size, 3 + i % 25), i % 2) for i in range(3_000)]
    slow = evaluate(model, BOTH, texts, tokens, 16, torch.float32)
    model = model.cuda()
    found = [evaluate(model, BOTH, texts, tokens, 16, torch.float32)]
    torch.cuda.empty_cache()
    held, total = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1]
    tried, tries = module._found, []
    monkeypatch.setattr(module, "_found", lambda *given: tries.append(1) or tried(*given))
    torch.cuda.set_per_process_memory_fraction((held + 24 * 2**20) / total)
    try:
        found.append(evaluate(model, BOTH, texts, tokens, 4096, torch.float32, most=2**20))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(tries) > 1
    for one in found:
        np.testing.assert_allclose(one.logits_NC, slow.logits_NC, rtol=1e-3, atol=1e-4)
        assert one.loss == pytest.approx(slow.loss, rel=1e-4)
