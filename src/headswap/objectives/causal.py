"""Causal language modelling: predict each token from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from headswap.errors import UsageError
from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, Stack
from headswap.nn.visibility import Inputs, Rule
from headswap.objectives.base import Batch, Context, Objective, Term, pad_rows, register
from headswap.objectives.language import packed, scored, token_head, token_loss
from headswap.text.loader import Window

TERM = "causal"


@register
@dataclass(frozen=True)
class Causal:
    """``<s> A B C`` is read and ``A B C </s>`` is predicted."""

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            given = self.label_smoothing
            raise UsageError(f"causal.label_smoothing must be in [0, 1), not {given}")

    name: ClassVar[str] = "causal"
    reads: ClassVar[type] = Window
    specials: ClassVar[tuple[str, ...]] = ()

    @property
    def scored(self) -> float:
        return 1.0

    @property
    def visibility(self) -> Rule:
        return "causal"

    def heads(self, stack: Stack, vocabulary: int) -> dict[str, HeadSpec]:
        return token_head(stack, vocabulary)

    def batch(self, examples: Sequence[Window], context: Context) -> Batch:
        tokens = context.tokens
        table = pad_rows([window.ids for window in examples], tokens.pad)
        read, predicted = table[:, :-1], table[:, 1:]
        visibility, positions = packed(read, tokens, "causal")
        # The start of the next document is not predictable from this one. Where one token is
        # both marks (GPT-2's), the start is the one that follows an end.
        start = predicted == tokens.bos
        if tokens.bos == tokens.eos:
            start &= read == tokens.eos
        where = np.flatnonzero(~start & (predicted != tokens.pad))
        inputs = Inputs(torch.from_numpy(np.ascontiguousarray(read)), visibility, positions)
        real = int((read != tokens.pad).sum())
        targets = {TERM: scored(predicted.ravel()[where], where, context)}
        return Batch(inputs, targets, {TERM: float(len(where))}, real)

    def loss(self, model: Model, batch: Batch) -> dict[str, Term]:
        hidden_BTD = model.backbone(batch.inputs)
        return {TERM: token_loss(model, hidden_BTD, batch, TERM, self.label_smoothing)}

    def views(self) -> Sequence[Objective]:
        return [self]
