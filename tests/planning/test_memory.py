"""Foretold memory against real tensors, and what is done when it is short."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import headswap as api
from headswap import settings
from headswap.errors import ResourceError
from headswap.nn.backbone import Backbone
from headswap.nn.spec import STYLES, Stack
from headswap.nn.visibility import Inputs, Visibility
from headswap.planning import advice, memory

CPU = torch.device("cpu")


@examples(max_examples=12, deadline=None)
@given(st.sampled_from(sorted(STYLES)), st.integers(1, 3), st.sampled_from([0.0, 0.1]), st.data())
def test_activations_are_those_that_autograd_keeps(style, layers, dropout, data):
    heads = data.draw(st.integers(1, 3))
    shape = {"width": 8 * heads, "heads": heads, "layers": layers, "feedforward": 24}
    stack = Stack(**{**STYLES[style], **shape, "length": 20, "dropout": dropout})
    batch, length = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 20))
    backbone = Backbone(stack, 8).train()
    weights = {p.untyped_storage().data_ptr() for p in backbone.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.zeros((batch, length), dtype=torch.long)
    given_inputs = Inputs(ids, Visibility("causal", torch.zeros_like(ids)), torch.zeros_like(ids))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = backbone(given_inputs)
    kept[hidden.untyped_storage().data_ptr()] = hidden.untyped_storage()
    real = sum(storage.nbytes() for storage in kept.values())
    foretold = memory.activations(stack, batch, length, "causal", True, torch.float32)
    assert foretold == pytest.approx(real, rel=0.05)


def test_the_largest_batch_fits_and_hardly_more_does():
    made = settings.resolve("causal", "tiny")

    def total(batch):
        return memory.needed(made, 4_000, torch.float32, "cpu", batch).total

    assert total(1) < total(8) < total(64)
    free = int(total(40) / memory.ROOM) + 1
    most = memory.largest(made, 4_000, torch.float32, "cpu", free)
    assert 37 <= most <= 40
    assert memory.largest(made, 4_000, torch.float32, "cpu", total(1) // 2) == 0


def test_a_batch_that_does_not_fit_is_cut_into_parts(monkeypatch):
    made = settings.resolve("causal", "small", [{"train": {"steps": 1}}])
    same, told = advice.line(made, CPU)
    assert same == made and "GiB" in told
    need = memory.needed(made, 8_000, torch.float32, "cpu", made.train.batch).total
    monkeypatch.setattr(memory, "free", lambda device: need // 2)
    cut, told = advice.line(made, CPU)
    assert cut.train.accumulate >= 2 and "parts" in told
    assert dataclasses.replace(cut, train=made.train) == made
    monkeypatch.setattr(memory, "free", lambda device: 10_000_000)
    with pytest.raises(ResourceError, match="one sequence at a time"):
        advice.line(made, CPU)


def test_training_that_cannot_fit_leaves_nothing(monkeypatch, tmp_path, corpus_file):
    monkeypatch.setattr(memory, "free", lambda device: 10_000_000)
    with pytest.raises(ResourceError, match="smaller recipe"):
        api.train("causal", corpus_file, out=tmp_path / "run", changes=["train.steps=1"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", ["tiny", "course", "tiny-translate"])
def test_tiny_passes_and_tensors_without_content_tell_the_same(recipe, precision, monkeypatch):
    objective = "translate" if recipe == "tiny-translate" else "causal"
    stack = settings.resolve(objective, recipe, [{"model": {"dropout": 0.0}}]).model
    found = []
    for wide in (memory.WIDE, 0):
        monkeypatch.setattr(memory, "WIDE", wide)
        memory._kept.cache_clear()
        sizes = [(1, 1), (3, 17), (64, 200)]
        found.append([memory.activations(stack, *s, "full", True, precision) for s in sizes])
    memory._kept.cache_clear()
    assert found[0] == found[1]


def test_a_plan_does_not_load_the_compiler():
    """It takes as long to load as torch itself."""
    code = "import sys; from headswap import settings; from headswap.planning import memory; "
    code += "import torch; made = settings.resolve('causal', 'small'); "
    code += "memory.needed(made, 8_000, torch.float32, 'cpu', 64); "
    code += "print('torch._dynamo' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
