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
