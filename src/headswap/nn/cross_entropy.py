"""The loss over a large vocabulary, a few rows of logits at a time.

Most of the arithmetic of a small language model is here: a vocabulary of 50,000 costs more than
all its layers. The gradients are made in the forward pass, while a chunk's logits are at hand,
so no more than one chunk of logits exists at any time and nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headswap.nn import kernels

CHUNK_ROWS = {"cpu": 512, "cuda": 8192}
CACHED_ROWS = 32
ALIGNED_TOKENS, ALIGNED_WIDTH = 64, 8


def cross_entropy(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of the cross-entropies of x·Wᵀ + b, and each row's own (without
    gradient)."""
    total, each_N = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        x_ND, weight_VD, bias_V, targets_N, weights_N, smoothing
    )
    return total, each_N


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        weights_N: Tensor,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        device = x_ND.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_ND.dtype
        arguments = (x_ND, weight_VD, bias_V, targets_N, weights_N, smoothing)
        with torch.autocast(device, enabled=False):
            if device == "cuda" and low == torch.bfloat16 and kernels.usable(x_ND.device):
                each_N, *gradients = _fused(*arguments, ctx.needs_input_grad)
            else:
                each_N, *gradients = _plain(*arguments, ctx.needs_input_grad, low)
            ctx.save_for_backward(*gradients)
            ctx.mark_non_differentiable(each_N)
            return (each_N * weights_N).sum(), each_N

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> Any:
        scaled = [None if grad is None else grad.mul_(grad_total) for grad in ctx.saved_tensors]
        return (*scaled, None, None, None)


Found = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def _plain(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor,
    smoothing: float,
    learning: tuple[bool, ...],
    low: torch.dtype,
) -> Found:
    """In torch's own operations, for any device and precision."""
    device, tokens = x_ND.device.type, len(weight_VD)
    rows = CHUNK_ROWS.get(device, 512)
    weight = weight_VD.to(low)
    learns = any(learning[:3])
    grad_x = torch.empty_like(x_ND) if learns else None
    grad_w = torch.zeros_like(weight_VD) if learning[1] else None
    grad_b = torch.zeros_like(bias_V) if learning[2] else None  # type: ignore[arg-type]
    each_N = torch.empty(len(x_ND), device=x_ND.device, dtype=torch.float32)
    # One buffer for all chunks, as new memory of this size costs more than its use. Its rows
    # begin at aligned addresses: with 50,001 tokens the products are up to twice as fast.
    room = min(rows, len(x_ND))
    buffer = x_ND.new_empty((room, _aligned(tokens, ALIGNED_TOKENS)), dtype=low)[:, :tokens]
    for start in range(0, len(x_ND), rows):
        part = slice(start, start + rows)
        x = x_ND[part].to(low)
        logits = buffer[: len(x)]
        torch.mm(x, weight.T, out=logits)
        # All passes over a few rows follow each other: a CPU's cache still holds them.
        few = CACHED_ROWS if device == "cpu" else rows
        targets, weights, losses = targets_N[part], weights_N[part], each_N[part]
        for first in range(0, len(x), few):
            some = slice(first, first + few)
            _softmax_gradient(
                logits[some], bias_V, targets[some], weights[some], losses[some], smoothing, learns
            )
            if grad_b is not None:
                grad_b += logits[some].sum(0, dtype=torch.float32)
        if grad_x is not None:
            grad_x[part] = logits @ weight
        if grad_w is not None and grad_w.dtype == low:
            grad_w.addmm_(logits.T, x)
        elif grad_w is not None:
            grad_w += logits.T @ x
    return each_N, grad_x, grad_w, grad_b


def _softmax_gradient(
    low_logits_NV: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor,
    losses_N: Tensor,
    smoothing: float,
    learns: bool,
) -> None:
    """Fill in the losses; where anything learns, put the weighted gradient of each in the
    logits' place."""
    logits = low_logits_NV.float()
    if bias_V is not None:
        logits += bias_V
    hit = logits.gather(1, targets_N[:, None])[:, 0]
    mean = logits.mean(-1) if smoothing else None
    top = logits.amax(-1)
    # From here on the logits' own memory holds what is made of them.
    chances = logits.sub_(top[:, None]).exp_()
    total = chances.sum(-1)
    normal = total.log() + top
    losses_N.copy_(normal - hit)
    if mean is not None:
        losses_N.mul_(1 - smoothing).add_(smoothing * (normal - mean))
    if learns:
        weigh = weights_N.to(chances.dtype)
        grad = chances.mul_((weigh / total)[:, None])
        if smoothing:
            grad.sub_((smoothing / grad.shape[1]) * weigh[:, None])
        grad.scatter_add_(1, targets_N[:, None], (smoothing - 1) * weigh[:, None])
        if grad.dtype != low_logits_NV.dtype:
            low_logits_NV.copy_(grad)


def _fused(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor,
    smoothing: float,
    learning: tuple[bool, ...],
) -> Found:
    """On a GPU: bf16 products of aligned sizes and a kernel of our own between them, or one that
    joins the first product to what follows it.

    The vocabulary is padded to a multiple of 64 and the width to one of 8, neither seen from
    outside. A bias is one more column of the weights, beside a one in each x: its gradient
    then comes with the weights' and costs no further pass over the logits.
    """
    count, width = x_ND.shape
    tokens = len(weight_VD)
    padded = _aligned(tokens, ALIGNED_TOKENS)
    columns = _aligned(width + (bias_V is not None), ALIGNED_WIDTH)
    weight = weight_VD.new_zeros((padded, columns), dtype=torch.bfloat16)
    weight[:tokens, :width] = weight_VD
    if columns == width:
        low_x = x_ND.to(torch.bfloat16)
    else:
        low_x = F.pad(x_ND.to(torch.bfloat16), (0, columns - width))
    if bias_V is not None:
        weight[:tokens, width] = bias_V
        low_x[:, width] = 1
    learns = any(learning[:3])
    grad_x = torch.empty_like(low_x) if learns else None
    grad_w = weight.new_zeros(weight.shape, dtype=torch.float32) if any(learning[1:3]) else None
    each_N = torch.empty(count, device=x_ND.device, dtype=torch.float32)
    joined = learns and not smoothing and kernels.joins(x_ND.device, columns)
    shares = torch.empty_like(each_N)
    rows = CHUNK_ROWS["cuda"]
    buffer = weight.new_empty((min(rows, count), padded))
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        x = low_x[part]
        logits = buffer[: len(x)]
        targets, weights, each = targets_N[part], weights_N[part], each_N[part]
        if joined:
            x = kernels.joined(x, weight, targets, weights, each, shares[part], logits, tokens)
        else:
            torch.mm(x, weight.T, out=logits)
            kernels.softmax_gradient(logits, targets, weights, each, tokens, smoothing, learns)
        if grad_x is not None:
            torch.mm(logits, weight, out=grad_x[part])
        if grad_w is not None:
            _add_product(grad_w, logits.T, x)
    if grad_x is not None:
        grad_x = grad_x[:, :width]
        grad_x = (grad_x * shares[:, None] if joined else grad_x).to(x_ND.dtype)
    return (
        each_N,
        grad_x,
        None if grad_w is None or not learning[1] else grad_w[:tokens, :width].contiguous(),
        None if grad_w is None or not learning[2] else grad_w[:tokens, width].contiguous(),
    )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a·b of lower precision, summed in the total's where torch can."""
    try:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    except (TypeError, RuntimeError):
        total += a @ b


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step
