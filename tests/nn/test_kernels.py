"""The head's kernel against torch's own loss: on a GPU, or anywhere in Triton's interpreter
(``TRITON_INTERPRET=1 python -m pytest tests/nn/test_kernels.py``)."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional as F

from headswap.nn import kernels

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
if not GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("tokens", "columns"), [(60, 64), (300, 320), (8000, 8000), (8192, 8192), (9000, 9024)]
)
def test_it_makes_losses_and_gradients(tokens, columns, smoothing):
    """Also where lanes see no token at all, and where stretches are whole."""
    draw = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, columns, generator=draw)).to(torch.bfloat16)
    logits[0, 3] = 60
    logits[:, tokens:] = 99  # what stands there must not matter
    targets = torch.randint(0, tokens, (5,), generator=draw)
    weights = torch.rand(5, generator=draw)
    known = logits[:, :tokens].float().requires_grad_()
    each = F.cross_entropy(known, targets, reduction="none", label_smoothing=smoothing)
    (each * weights).sum().backward()
    given = [one.to("cuda" if GPU else "cpu") for one in (logits, targets, weights, torch.empty(5))]
    kernels.softmax_gradient(*given, tokens, smoothing, learns=False)
    assert torch.equal(given[0].cpu(), logits)
    kernels.softmax_gradient(*given, tokens, smoothing, learns=True)
    assert torch.allclose(given[3].cpu(), each.detach(), atol=1e-4)
    assert known.grad is not None
    assert torch.allclose(given[0][:, :tokens].cpu().float(), known.grad, atol=5e-3, rtol=1e-2)
    assert not given[0][:, tokens:].any()


@pytest.mark.parametrize(
    ("count", "width", "tokens", "columns"),
    [(5, 16, 60, 64), (130, 208, 300, 320), (128, 64, 256, 256), (200, 72, 1100, 1152)],
)
def test_the_joined_kernel_makes_losses_and_gradients(count, width, tokens, columns):
    """Also in tiles that are not full, for a target that is sure and one that is hopeless."""
    if GPU and not kernels.joins(torch.device("cuda"), 16):
        pytest.skip("not made for this GPU")
    # The interpreter has no products of bf16.
    device, low = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, width, generator=draw).to(low)
    weight = (0.5 * torch.randn(columns, width, generator=draw)).to(low)
    targets = torch.randint(0, tokens, (count,), generator=draw)
    weights = torch.rand(count, generator=draw)
    x[0] *= 4
    targets[0] = (x[0].float() @ weight[:tokens].float().T).argmax()
    targets[1] = (x[1].float() @ weight[:tokens].float().T).argmin()
    known_x, known_w = x.float().requires_grad_(), weight.float().requires_grad_()
    each = F.cross_entropy(known_x @ known_w[:tokens].T, targets, reduction="none")
    (each * weights).sum().backward()
    x, weight, targets, weights = (one.to(device) for one in (x, weight, targets, weights))
    losses, shares = torch.empty_like(weights), torch.empty_like(weights)
    out = torch.full((count, columns), 7.0, device=device, dtype=low)
    scaled = kernels.joined(x, weight, targets, weights, losses, shares, out, tokens)
    assert torch.allclose(losses.cpu(), each.detach(), atol=1e-4, rtol=1e-4)
    assert not out[:, tokens:].any()
    found_x = (out.float() @ weight.float()) * shares[:, None]
    found_w = out.float().T @ scaled.float()
    for found, known in ((found_x, known_x.grad), (found_w, known_w.grad)):
        assert known is not None
        assert (found.cpu() - known).norm() < (1e-2 if GPU else 1e-5) * known.norm()


def test_a_token_far_above_the_target_leaves_finite_numbers():
    if GPU and not kernels.joins(torch.device("cuda"), 16):
        pytest.skip("not made for this GPU")
    device, low = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
    x = torch.ones(1, 16, device=device, dtype=low)
    weight = torch.zeros(64, 16, device=device, dtype=low)
    weight[5] = 50  # 800 nats above the others
    targets, weights = torch.tensor([3], device=device), torch.ones(1, device=device)
    losses, shares = torch.empty(1, device=device), torch.empty(1, device=device)
    out = torch.empty(1, 64, device=device, dtype=low)
    kernels.joined(x, weight, targets, weights, losses, shares, out, 60)
    gradient = (out.float() * shares[:, None]).cpu()[0]
    assert kernels.HIGHEST * 0.69 < float(losses[0]) < 800
    assert float(gradient[5]) == pytest.approx(1, abs=1e-2)
    assert float(gradient[3]) == pytest.approx(-1, abs=1e-2)
