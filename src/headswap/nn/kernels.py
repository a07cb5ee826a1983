"""Kernels of our own, for GPUs that Triton knows. Everything else has a plain torch path."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl  # type: ignore[import-not-found]

LANES, EACH = 1024, 8
OLDEST = (7, 0)


@lru_cache(maxsize=16)
def usable(device: torch.device) -> bool:
    """Whether Triton compiles and runs here: tried once, on a tiny input."""
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < OLDEST:
        return False
    try:
        logits = torch.zeros((1, 64), device=device, dtype=torch.bfloat16)
        nought = torch.zeros(1, device=device)
        softmax_gradient(logits, nought.long(), nought + 1, nought, 60, 0.1, True)
        return bool(torch.isfinite(logits).all())
    except Exception:  # a compiler's failures have no common type
        return False


def softmax_gradient(
    logits_NP: Tensor,
    targets_N: Tensor,
    weights_N: Tensor,
    losses_N: Tensor,
    tokens: int,
    smoothing: float,
    learns: bool,
) -> None:
    """Fill ``losses_N`` and, where anything learns, put the weighted gradient of each loss in
    the logits' place. The first ``tokens`` columns are real; the others get no gradient."""
    wanted = -(-logits_NP.shape[1] // EACH)
    lanes = max(32, min(LANES, 1 << (wanted - 1).bit_length()))
    _compiled()[(len(logits_NP),)](
        logits_NP,
        logits_NP.stride(0),
        targets_N,
        weights_N,
        losses_N,
        tokens,
        logits_NP.shape[1],
        tokens // (lanes * EACH) * (lanes * EACH),
        smoothing,
        SMOOTH=smoothing > 0,
        LEARNS=learns,
        LANES=lanes,
        EACH=EACH,
        LOG2E=math.log2(math.e),
        num_warps=lanes // 32,
    )


@lru_cache(maxsize=1)
def _compiled() -> Any:
    import triton
    import triton.language as tl

    # Triton reads a kernel's source and its globals: these are the names it knows.
    globals()["tl"] = tl
    return triton.jit(_softmax_gradient)


def _softmax_gradient(  # type: ignore[no-untyped-def]
    logits, stride, targets, weights, losses, tokens, columns, whole, smoothing,
    SMOOTH: tl.constexpr, LEARNS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
    LOG2E: tl.constexpr,
):  # fmt: skip
    """One row a program, read twice: for its normaliser (Milakov and Gimelshein 2018) and for
    the gradient, the second time from the cache. Each lane reads EACH neighbours at a time and
    keeps a highest logit and a sum of its own, so nothing is exchanged before the row's end.
    The ``whole`` stretches need no mask; the last one is masked by ``columns``, a multiple of 16,
    as loads masked by ``tokens`` would read each number alone. Powers are of two: a
    multiplication and a subtraction are then one instruction.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    weight = tl.load(weights + row).to(tl.float32)
    hit = tl.load(logits + target).to(tl.float32)
    lane = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    top = tl.full((LANES,), -1e38, tl.float32)  # not -inf, which less itself is no number
    total = tl.zeros((LANES,), tl.float32)
    added = tl.zeros((LANES,), tl.float32)
    for start in tl.range(0, whole, LANES * EACH):
        x = tl.load(logits + start + lane).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 1))
        part = tl.sum(tl.exp2(x * LOG2E - (higher * LOG2E)[:, None]), 1)
        total = total * tl.exp2((top - higher) * LOG2E) + part
        top = higher
        if SMOOTH:
            added += tl.sum(x, 1)
    rest = whole + lane
    if whole < tokens:
        x = tl.load(logits + rest, mask=rest < columns, other=0.0).to(tl.float32)
        if SMOOTH:
            added += tl.sum(tl.where(rest < tokens, x, 0.0), 1)
        x = tl.where(rest < tokens, x, float("-inf"))
        higher = tl.maximum(top, tl.max(x, 1))
        part = tl.sum(tl.exp2(x * LOG2E - (higher * LOG2E)[:, None]), 1)
        total = total * tl.exp2((top - higher) * LOG2E) + part
        top = higher
    highest = tl.max(top, 0)
    summed = tl.sum(total * tl.exp2((top - highest) * LOG2E), 0)
    normal2 = highest * LOG2E + tl.log2(summed)
    loss = normal2 / LOG2E - hit
    if SMOOTH:
        mean = tl.sum(added, 0) / tokens
        loss = (1 - smoothing) * loss + smoothing * (normal2 / LOG2E - mean)
    tl.store(losses + row, loss)
    if LEARNS:
        tl.debug_barrier()  # all have read the target's logit
        less = weight * smoothing / tokens
        for start in tl.range(0, whole, LANES * EACH):
            x = tl.load(logits + start + lane).to(tl.float32)
            grad = weight * tl.exp2(x * LOG2E - normal2) - less
            tl.store(logits + start + lane, grad.to(tl.bfloat16))
        if whole < columns:
            x = tl.load(logits + rest, mask=rest < columns, other=0.0).to(tl.float32)
            x = tl.where(rest < tokens, x, float("-inf"))
            grad = weight * tl.exp2(x * LOG2E - normal2) - less
            grad = tl.where(rest < tokens, grad, 0.0)
            tl.store(logits + rest, grad.to(tl.bfloat16), mask=rest < columns)
        tl.debug_barrier()  # the target's gradient is written over
        grad = weight * (tl.exp2(hit * LOG2E - normal2) - (1 - smoothing)) - less
        tl.store(logits + target, grad.to(tl.bfloat16))
