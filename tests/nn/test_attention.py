from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from headswap.nn.attention import Attention, HeadNorm, rotary, rotary_angles, rotate
from headswap.nn.spec import Stack
from headswap.nn.visibility import Visibility


def test_queries_and_keys_are_normed_in_their_own_precision():
    norm = HeadNorm(8, eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2.0, 8))
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # two precisions at once warn, and take the slow way
        half = norm(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("bias", [True, False])
def test_zeros_at_the_end_of_heads_change_nothing(bias):
    """What a GPU is given where heads are of an odd width: the same values and gradients."""
    stack = Stack(width=20, heads=2, feedforward=8, bias=bias, qk_norm=False)
    torch.manual_seed(0)
    layer = Attention(stack, 0)
    wide = Attention(Stack(width=40, heads=2), 0)
    assert (layer._room(torch.bfloat16), layer._room(torch.float32)) == (6, 2)
    assert (wide._room(torch.bfloat16), wide._room(torch.float32)) == (4, 0)
    x = torch.randn(3, 7, 20)
    mask = Visibility("causal").kernel(7, 7, x.device)
    found = []
    for way in (layer.forward, partial(layer._aligned, room=6)):
        layer.zero_grad()
        result = way(x, mask)
        result.square().sum().backward()
        found.append([result.detach(), *(one.grad.clone() for one in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_rotations_are_those_of_the_paper_and_turn_back(kind):
    """Su et al. 2021, equation 34, by halves: what the cosines and sines make of two numbers;
    and its gradient as autograd finds it."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, 8, generator=draw).to(kind)
    places = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 0, 1]])
    cos, sin = rotary_angles(places, 8, 10_000.0)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    first, second = one.float().chunk(2, dim=-1)
    by_hand = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(kind)
    made = rotate(other, rotary(places, 8, 10_000.0))
    change = torch.randn(x.shape, generator=draw).to(kind)
    by_hand.backward(change)
    made.backward(change)
    close = {"rtol": 2e-2, "atol": 2e-2} if kind == torch.bfloat16 else {}
    torch.testing.assert_close(made, by_hand, **close)
    torch.testing.assert_close(other.grad, one.grad, **close)
    with torch.no_grad():
        assert torch.equal(rotate(x, rotary(places, 8, 10_000.0)), made)
