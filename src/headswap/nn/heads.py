"""Heads: hidden states to scores. A head never sees more positions than are scored.

A head is two classes here: a frozen spec, from which the ledger counts, and the module that
the spec builds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headswap.nn.spec import Cost, Dim, Dims, Pool

CHUNK_ROWS = {"cpu": 512, "cuda": 8192}


@dataclass(frozen=True)
class LanguageModelSpec:
    """Scores every token of the vocabulary at each scored position."""

    width: int
    vocabulary: int
    bias: bool
    tied: bool

    def tensors(self) -> dict[str, Dims]:
        tokens = Dim("V", self.vocabulary)
        shapes: dict[str, Dims] = {}
        if not self.tied:
            shapes["weight"] = (tokens, Dim("d", self.width))
        if self.bias:
            shapes["bias"] = (tokens,)
        return shapes

    def costs(self, scored: float) -> list[Cost]:
        flops = 2 * self.width * self.vocabulary * scored
        return [Cost("vocabulary", f"{scored:g}·2·d·V" if scored != 1 else "2·d·V", flops)]

    def build(self, embedding: nn.Embedding) -> LanguageModelHead:
        return LanguageModelHead(self, embedding)


@dataclass(frozen=True)
class ClassifierSpec:
    """One decision a text: pool, then a linear layer, or dense, GELU and linear."""

    width: int
    classes: int
    pool: Pool
    dense: bool
    bias: bool

    @property
    def pooled(self) -> int:
        """The width after pooling: ``concat`` joins mean, max and first."""
        return 3 * self.width if self.pool == "concat" else self.width

    def tensors(self) -> dict[str, Dims]:
        width, classes = Dim("d", self.width), Dim("C", self.classes)
        pooled = Dim("3d" if self.pooled > self.width else "d", self.pooled)
        shapes: dict[str, Dims] = {}
        if self.dense:
            shapes |= {"dense.weight": (width, pooled), "dense.bias": (width,)}
        shapes["out.weight"] = (classes, width if self.dense else pooled)
        if self.bias:
            shapes["out.bias"] = (classes,)
        return shapes

    def costs(self, scored: float) -> list[Cost]:
        weights = [dims for dims in self.tensors().values() if len(dims) == 2]
        flops = sum(2 * rows.size * columns.size * scored for rows, columns in weights)
        return [Cost("classes", "2·d·C a text", flops)]

    def build(self, embedding: nn.Embedding) -> ClassifierHead:
        return ClassifierHead(self)


class LanguageModelHead(nn.Module):
    """One score for each token of the vocabulary."""

    def __init__(self, spec: LanguageModelSpec, embedding: nn.Embedding | None) -> None:
        super().__init__()
        self.spec = spec
        if spec.tied:
            assert embedding is not None
            self.weight = embedding.weight
        else:
            self.weight = nn.Parameter(torch.empty(spec.vocabulary, spec.width))
        self.bias = nn.Parameter(torch.empty(spec.vocabulary)) if spec.bias else None

    def forward(self, x_ND: Tensor) -> Tensor:
        """Logits of a few rows, as when decoding."""
        return F.linear(x_ND, self.weight, self.bias)

    def scorer(self, rows: int) -> Callable[[Tensor], Tensor]:
        """Logits without gradients, for many calls with at most so many rows: on a CPU from
        weights laid out for it once, which is up to twice as fast."""
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.float32:
            return self.forward
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), rows)
        except (AttributeError, RuntimeError):  # a torch without oneDNN
            return self.forward
        linear, bias = torch.ops.mkldnn._linear_pointwise, self.bias

        def score(x_ND: Tensor) -> Tensor:
            logits_NV: Tensor = linear(x_ND, packed, bias, "none", [], "")
            return logits_NV

        return score

    def losses(
        self, x_ND: Tensor, targets_N: Tensor, weights_N: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum of cross-entropies, and each row's own (without gradient)."""
        rows = CHUNK_ROWS.get(x_ND.device.type, 512)
        total, each_N = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            x_ND, self.weight, self.bias, targets_N, weights_N, smoothing, rows
        )
        return total, each_N


class ClassifierHead(nn.Module):
    """Pools a text's vectors into one and scores the classes."""

    def __init__(self, spec: ClassifierSpec) -> None:
        super().__init__()
        self.spec = spec
        if spec.dense:
            self.dense = nn.Linear(spec.pooled, spec.width)
        inner = spec.width if spec.dense else spec.pooled
        self.out = nn.Linear(inner, spec.classes, bias=spec.bias)

    def forward(self, hidden_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        pooled = pool(hidden_BTD, lengths_B, self.spec.pool)
        if self.spec.dense:
            pooled = F.gelu(self.dense(pooled))
        logits_BC: Tensor = self.out(pooled)
        return logits_BC


def pool(hidden_BTD: Tensor, lengths_B: Tensor, how: str) -> Tensor:
    """One vector a text, from its real tokens only."""
    rows = torch.arange(hidden_BTD.shape[0], device=hidden_BTD.device)
    inside_BT1 = (torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device) < lengths_B[:, None])[
        ..., None
    ]
    if how == "first":
        return hidden_BTD[:, 0]
    if how == "last":
        return hidden_BTD[rows, lengths_B - 1]
    if how == "mean":
        return hidden_BTD.where(inside_BT1, 0).sum(1) / lengths_B[:, None]
    if how == "max":
        return hidden_BTD.masked_fill(~inside_BT1, float("-inf")).amax(1)
    parts = [pool(hidden_BTD, lengths_B, name) for name in ("mean", "max", "first")]
    return torch.cat(parts, dim=-1)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy of x·Wᵀ + b against targets, a few rows at a time.

    The gradients are made in the forward pass, while a chunk's logits are at hand, so no
    more than one chunk of logits exists at any time and nothing is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        weights_N: Tensor,
        smoothing: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        device = x_ND.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_ND.dtype
        with torch.autocast(device, enabled=False):
            weight = weight_VD.to(low)
            bias = None if bias_V is None else bias_V.to(low)
            learns = any(ctx.needs_input_grad[:3])
            grad_x = torch.empty_like(x_ND) if learns else None
            grad_w = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
            grad_b = torch.zeros_like(bias_V) if ctx.needs_input_grad[2] else None  # type: ignore[arg-type]
            each_N = torch.empty(len(x_ND), device=x_ND.device, dtype=torch.float32)
            # One buffer for all chunks: new memory of this size costs more than its use.
            room = min(rows, len(x_ND))
            buffer = x_ND.new_empty((room, len(weight)), dtype=low)
            for start in range(0, len(x_ND), rows):
                part = slice(start, start + rows)
                x, target = x_ND[part].to(low), targets_N[part, None]
                low_logits = buffer[: len(x)]
                if bias is None:
                    torch.mm(x, weight.T, out=low_logits)
                else:
                    torch.addmm(bias, x, weight.T, out=low_logits)
                logits = low_logits.float()
                hit, mean = logits.gather(1, target)[:, 0], logits.mean(-1) if smoothing else None
                top = logits.amax(-1)
                # From here on the logits' own memory holds what is made of them.
                chances = logits.sub_(top[:, None]).exp_()
                total = chances.sum(-1)
                normal = total.log() + top
                loss = normal - hit
                if mean is not None:
                    loss = (1 - smoothing) * loss + smoothing * (normal - mean)
                each_N[part] = loss
                if not learns:
                    continue
                weigh = weights_N[part].to(chances.dtype)
                grad = chances.mul_((weigh / total)[:, None])
                if smoothing:
                    grad.sub_((smoothing / grad.shape[1]) * weigh[:, None])
                grad.scatter_add_(1, target, (smoothing - 1) * weigh[:, None])
                low_grad = grad.to(low)
                if grad_x is not None:
                    grad_x[part] = (low_grad @ weight).to(grad_x.dtype)
                if grad_w is not None and grad_w.dtype == low:
                    grad_w.addmm_(low_grad.T, x)
                elif grad_w is not None:
                    grad_w += low_grad.T @ x
                if grad_b is not None:
                    grad_b += grad.sum(0).to(grad_b.dtype)
            ctx.save_for_backward(grad_x, grad_w, grad_b)
            ctx.mark_non_differentiable(each_N)
            return (each_N * weights_N).sum(), each_N

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, _: Tensor) -> Any:
        scaled = [None if grad is None else grad.mul_(grad_total) for grad in ctx.saved_tensors]
        return (*scaled, None, None, None, None)
