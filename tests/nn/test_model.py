from __future__ import annotations

import torch

from conftest import STACKS, causal_model
from headswap.nn.model import new_model, swap_head
from headswap.objectives import Causal, Classify


def test_swapping_the_head_keeps_the_backbone_byte_for_byte(stack):
    model = causal_model(stack, 50)
    before = {name: tensor.clone() for name, tensor in model.backbone.named_parameters()}
    objective = Classify(("a", "b"))
    swapped, carried = swap_head(model, objective.heads(stack, 50), seed=1)
    after = dict(swapped.backbone.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert carried.tensors == len(before)
    assert carried.parameters == sum(tensor.numel() for tensor in before.values())
    assert carried.new_tensors == len(swapped.tensors()) - len(before)
    assert list(swapped.heads) == ["label"]


def test_a_kept_head_goes_along(stack):
    model = causal_model(stack, 50)
    heads = Causal().heads(stack, 50)
    swapped, carried = swap_head(model, heads, seed=9, keep=("token",))
    assert carried.new_tensors == 0
    assert torch.equal(swapped.heads["token"].weight, model.heads["token"].weight)
    anew, _ = swap_head(model, heads, seed=9)
    assert stack.tied or not torch.equal(anew.heads["token"].weight, model.heads["token"].weight)


def test_weights_are_a_function_of_seed_and_name():
    stack = STACKS["classic"]
    one = new_model(stack, 50, Causal().heads(stack, 50), seed=5).tensors()
    two = new_model(stack, 50, Classify(("a", "b")).heads(stack, 50), seed=5).tensors()
    three = new_model(stack, 50, Causal().heads(stack, 50), seed=6).tensors()
    shared = [name for name in one if name in two]
    assert len(shared) == len(one) - 2
    assert all(torch.equal(one[name], two[name]) for name in shared)
    assert not torch.equal(one["backbone.embedding.weight"], three["backbone.embedding.weight"])


def test_the_courses_ranges():
    stack = STACKS["classic"]
    model = new_model(stack, 5000, Causal().heads(stack, 5000), seed=0)
    embedding = model.backbone.embedding.weight
    assert 0.099 < embedding.abs().max() <= 0.1
    assert abs(embedding.std() - 0.2 / 12**0.5) < 1e-3
    assert model.heads["token"].bias.abs().max() == 0
