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
JOINED = 9
"""The generation of GPUs (Hopper) on which the joined kernel was measured and won."""
WIDEST = 256
TILE, ACROSS, STRIP, WARPS = 128, 64, 16, 8
HIGHEST = 100.0
"""Of a power of two: a token this much above the target counts as this much."""


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


@lru_cache(maxsize=16)
def joins(device: torch.device, width: int) -> bool:
    """Whether ``joined`` runs here, for x of a width: tried once, on a tiny input."""
    hopper = usable(device) and torch.cuda.get_device_capability(device)[0] == JOINED
    if not hopper or width > WIDEST:
        return False
    try:
        x = torch.zeros((1, width), device=device, dtype=torch.bfloat16)
        logits, ones = x.new_empty((1, 64)), torch.ones(1, device=device)
        joined(
            x, x.new_zeros((64, width)), ones.long(), ones, ones.clone(), ones.clone(), logits, 60
        )
        return bool(torch.isfinite(logits).all())
    except Exception:  # a compiler's failures have no common type
        return False


def joined(
    x_ND: Tensor,
    weight_PD: Tensor,
    targets_N: Tensor,
    weights_N: Tensor,
    losses_N: Tensor,
    shares_N: Tensor,
    out_NP: Tensor,
    tokens: int,
) -> Tensor:
    """The head's first product and its softmax in one kernel, which no pass over the logits
    follows. ``out_NP`` gets each loss's gradient for the logits, but for a factor of its row:
    that is in ``shares_N``, and the rows of x times it are returned.

    A logit counts from the target's, which is known beforehand: e = exp(z - z_target) overflows
    for no token that has a chance, and with s, the sum of e over all tokens but the target,
    the loss is log(1 + s) and its gradient e / (1 + s), at the target -s / (1 + s).
    """
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-not-found]

    count, width = x_ND.shape
    columns, deep = len(weight_PD), max(16, 1 << (width - 1).bit_length())
    down, strips = -(-count // TILE), -(-columns // (ACROSS * STRIP))
    hits, exponentials, finish = _compiled_joined()
    own_N = torch.empty_like(losses_N)
    sums_SN = losses_N.new_empty((strips, count))
    scaled_ND = torch.empty_like(x_ND)
    few = {"ROWS": 16, "WIDE": 256}
    rows = (-(-count // few["ROWS"]),)
    hits[rows](x_ND, weight_PD, targets_N, own_N, count, width, **few)
    exponentials[(down * strips,)](
        TensorDescriptor.from_tensor(x_ND, [TILE, deep]),
        TensorDescriptor.from_tensor(weight_PD, [ACROSS, deep]),
        own_N,
        targets_N,
        TensorDescriptor.from_tensor(out_NP, [TILE, ACROSS]),
        sums_SN,
        count,
        tokens,
        columns,
        TILE=TILE,
        ACROSS=ACROSS,
        STRIP=STRIP,
        LOG2E=math.log2(math.e),
        HIGHEST=HIGHEST,
        num_warps=WARPS,
    )
    finish[rows](
        x_ND, scaled_ND, out_NP, out_NP.stride(0), sums_SN, strips, targets_N, weights_N, losses_N,
        shares_N, count, width, STRIPS=64, **few,
    )  # fmt: skip
    return scaled_ND


@lru_cache(maxsize=1)
def _compiled() -> Any:
    return _jit(_softmax_gradient)


@lru_cache(maxsize=1)
def _compiled_joined() -> Any:
    return _jit(_hits), _jit(_exponentials), _jit(_finish)


def _jit(kernel: Any) -> Any:
    import triton
    import triton.language as tl

    # Triton reads a kernel's source and its globals: these are the names it knows.
    globals()["tl"] = tl
    return triton.jit(kernel)


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


def _hits(  # type: ignore[no-untyped-def]
    x, weight, targets, own, count, width, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    """The targets' own logits."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(targets + row, mask=row < count, other=0)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, width, WIDE):
        column = start + tl.arange(0, WIDE)[None, :]
        real = (row < count)[:, None] & (column < width)
        a = tl.load(x + row[:, None] * width + column, mask=real, other=0.0)
        b = tl.load(weight + target[:, None] * width + column, mask=real, other=0.0)
        total += tl.sum(a.to(tl.float32) * b.to(tl.float32), 1)
    tl.store(own + row, total, mask=row < count)


def _exponentials(  # type: ignore[no-untyped-def]
    x, weight, own, targets, out, sums, count, tokens, columns, TILE: tl.constexpr,
    ACROSS: tl.constexpr, STRIP: tl.constexpr, LOG2E: tl.constexpr, HIGHEST: tl.constexpr,
):  # fmt: skip
    """A strip of tiles of exponentials, and their sums by row. The rows of x are read once a
    strip and stay. Few tiles hold a target or the vocabulary's end: the others need no mask."""
    down = tl.cdiv(count, TILE)
    i, strip = tl.program_id(0) % down, tl.program_id(0) // down
    row = i * TILE + tl.arange(0, TILE)
    known = tl.where(row < count, row, 0)
    start = tl.load(own + known) * LOG2E
    target = tl.load(targets + known).to(tl.int32)
    left = x.load([i * TILE, 0])
    total = tl.zeros((TILE,), tl.float32)
    first = strip * STRIP * ACROSS
    for begin in tl.range(first, min(first + STRIP * ACROSS, columns), ACROSS, num_stages=1):
        product = tl.dot(left, weight.load([begin, 0]).T)
        power = product * LOG2E - start[:, None]
        e = tl.exp2(tl.minimum(power, HIGHEST, propagate_nan=tl.PropagateNan.ALL))
        inside = tl.max(((target >= begin) & (target < begin + ACROSS)).to(tl.int32), 0)
        if (inside > 0) | (begin + ACROSS > tokens):
            column = begin + tl.arange(0, ACROSS)[None, :]
            e = tl.where((column != target[:, None]) & (column < tokens), e, 0.0)
        total += tl.sum(e, 1)
        out.store([i * TILE, begin], e.to(out.dtype))
    tl.store(sums + strip.to(tl.int64) * count + row, total, mask=row < count)


def _finish(  # type: ignore[no-untyped-def]
    x, scaled, out, stride, sums, strips, targets, weights, losses, shares, count, width,
    ROWS: tl.constexpr, WIDE: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    """The losses, the targets' own gradients, each row's factor, and x times it."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < count
    parts = tl.zeros((STRIPS, ROWS), tl.float32)
    for start in tl.range(0, strips, STRIPS):
        strip = start + tl.arange(0, STRIPS)
        there = (strip < strips)[:, None] & real[None, :]
        parts += tl.load(sums + strip[:, None] * count + row[None, :], mask=there, other=0.0)
    others = tl.sum(parts, 0)
    tl.store(losses + row, tl.where(others < 1e-4, others, tl.log(1 + others)), mask=real)
    share = tl.load(weights + row, mask=real, other=0.0).to(tl.float32) / (1 + others)
    tl.store(shares + row, share, mask=real)
    target = tl.load(targets + row, mask=real, other=0)
    tl.store(out + row * stride + target, (-others).to(out.dtype.element_ty), mask=real)
    for start in tl.range(0, width, WIDE):
        column = start + tl.arange(0, WIDE)[None, :]
        place, there = row[:, None] * width + column, real[:, None] & (column < width)
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32) * share[:, None]
        tl.store(scaled + place, value.to(scaled.dtype.element_ty), mask=there)
