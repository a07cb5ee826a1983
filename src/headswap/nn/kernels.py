"""Kernels of our own, for GPUs that Triton knows. Everything else has a plain torch path."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl  # type: ignore[import-not-found]

BLOCK, WARPS, STAGES = 2048, 4, 3
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
    block = min(BLOCK, 1 << (logits_NP.shape[1] - 1).bit_length())
    _compiled()[(len(logits_NP),)](
        logits_NP,
        logits_NP.stride(0),
        targets_N,
        weights_N,
        losses_N,
        tokens,
        logits_NP.shape[1],
        smoothing,
        SMOOTH=smoothing > 0,
        LEARNS=learns,
        BLOCK=block,
        STAGES=STAGES,
        num_warps=min(WARPS, max(1, block // 512)),
    )


@lru_cache(maxsize=1)
def _compiled() -> Any:
    import triton
    import triton.language as tl

    # Triton reads a kernel's source and its globals: these are the names it knows.
    globals()["tl"] = tl
    return triton.jit(_softmax_gradient)


def _softmax_gradient(  # type: ignore[no-untyped-def]
    logits, stride, targets, weights, losses, tokens, columns, smoothing,
    SMOOTH: tl.constexpr, LEARNS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One row a program, read twice: for its normaliser (Milakov and Gimelshein 2018) and for
    the gradient, the second time mostly from the cache. Loads are masked by ``columns``, which
    is a multiple of 16: by ``tokens``, which need not be, each number would be read alone."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    weight = tl.load(weights + row).to(tl.float32)
    hit = tl.load(logits + target).to(tl.float32)
    top = float("-inf")
    total = 0.0
    added = 0.0
    for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
        place = start + tl.arange(0, BLOCK)
        x = tl.load(logits + place, mask=place < columns, other=0.0).to(tl.float32)
        x = tl.where(place < tokens, x, float("-inf"))
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
        top = higher
        if SMOOTH:
            added += tl.sum(tl.where(place < tokens, x, 0.0), 0)
    normal = top + tl.log(total)
    loss = normal - hit
    if SMOOTH:
        loss = (1 - smoothing) * loss + smoothing * (normal - added / tokens)
    tl.store(losses + row, loss)
    if LEARNS:
        tl.debug_barrier()
        for start in tl.range(0, columns, BLOCK, num_stages=STAGES):
            place = start + tl.arange(0, BLOCK)
            x = tl.load(logits + place, mask=place < columns, other=0.0).to(tl.float32)
            grad = tl.where(place < tokens, tl.exp(x - normal), 0.0)
            if SMOOTH:
                grad -= tl.where(place < tokens, smoothing / tokens, 0.0)
            grad -= tl.where(place == target, 1.0 - smoothing, 0.0)
            tl.store(logits + place, (grad * weight).to(tl.bfloat16), mask=place < columns)
