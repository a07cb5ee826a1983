"""Heads: hidden states to scores. A head never sees more positions than are scored.

A head is two classes here: a frozen spec, from which the ledger counts, and the module that
the spec builds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headswap.nn.cross_entropy import cross_entropy
from headswap.nn.spec import Cost, Dim, Dims, Pool


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
        return cross_entropy(x_ND, self.weight, self.bias, targets_N, weights_N, smoothing)


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
    height, width = hidden_BTD.shape[:2]
    if how == "first":
        return hidden_BTD[:, 0]
    if how == "last":  # the gradient of an indexed tensor would be sorted first
        ends_B = torch.arange(height, device=hidden_BTD.device) * width + lengths_B - 1
        return hidden_BTD.flatten(0, 1).index_select(0, ends_B)
    inside_BT1 = (torch.arange(width, device=hidden_BTD.device) < lengths_B[:, None])[..., None]
    if how == "mean":
        return hidden_BTD.where(inside_BT1, 0).sum(1) / lengths_B[:, None]
    if how == "max":
        return hidden_BTD.masked_fill(~inside_BT1, float("-inf")).amax(1)
    parts = [pool(hidden_BTD, lengths_B, name) for name in ("mean", "max", "first")]
    return torch.cat(parts, dim=-1)
