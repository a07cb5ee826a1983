"""Causal and masked prediction in turns, on one backbone and one head.

GPT-BERT (Charpentier and Samuel 2024) mixes the two batch by batch; training causally first
and masked afterwards is the other order that is known to work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from headswap.errors import UsageError
from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, Stack
from headswap.nn.visibility import Rule
from headswap.objectives.base import Batch, Context, Objective, Term, register
from headswap.objectives.causal import TERM as CAUSAL
from headswap.objectives.causal import Causal
from headswap.objectives.masked import Masked
from headswap.text.loader import Window
from headswap.text.tokenizer import MASK, SEP


@register
@dataclass(frozen=True)
class Hybrid:
    """``masked_share`` of the steps is masked: spread evenly, or the last ones."""

    masked_share: float = 0.875
    order: Literal["mixed", "causal first"] = "mixed"
    masked: Masked = field(default_factory=lambda: Masked(rate=0.2))

    name: ClassVar[str] = "hybrid"
    reads: ClassVar[type] = Window
    specials: ClassVar[tuple[str, ...]] = (MASK, SEP)

    def __post_init__(self) -> None:
        if not 0 <= self.masked_share <= 1:
            raise UsageError(f"hybrid.masked_share must be from 0 to 1, not {self.masked_share}")

    @property
    def scored(self) -> float:
        return self.masked_share * self.masked.rate + 1 - self.masked_share

    @property
    def visibility(self) -> Rule:
        return "full"

    def heads(self, stack: Stack, vocabulary: int) -> dict[str, HeadSpec]:
        return self.masked.heads(stack, vocabulary)

    def batch(self, examples: Sequence[Window], context: Context) -> Batch:
        turn = self.masked if self._masked_turn(context) else Causal()
        return turn.batch(examples, context)

    def loss(self, model: Model, batch: Batch) -> dict[str, Term]:
        turn = Causal() if CAUSAL in batch.targets else self.masked
        return turn.loss(model, batch)

    def views(self) -> Sequence[Objective]:
        """Both, but for one that has no turn in training."""
        views: list[tuple[float, Objective]] = [
            (1 - self.masked_share, Causal()),
            (self.masked_share, self.masked),
        ]
        return [view for share, view in views if share]

    def _masked_turn(self, context: Context) -> bool:
        if self.order == "causal first":
            return context.progress >= 1 - self.masked_share
        share, step = self.masked_share, context.step
        return math.floor((step + 1) * share) > math.floor(step * share)
