"""Causal language modelling: predict each token from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, LanguageModelSpec, Stack
from headswap.nn.visibility import PADDING, Inputs, Rule, Visibility
from headswap.objectives.base import Batch, Targets, Term, pad_rows
from headswap.text.loader import Window
from headswap.text.tokenizer import Tokenizer
from headswap.types import Ids

HEAD = "next"


@dataclass(frozen=True)
class Causal:
    """``<s> A B C`` is read and ``A B C </s>`` is predicted."""

    label_smoothing: float = 0.0

    name: ClassVar[str] = "causal"
    reads: ClassVar[type] = Window
    specials: ClassVar[tuple[str, ...]] = ()

    @property
    def visibility(self) -> Rule:
        return "causal"

    def heads(self, stack: Stack, vocabulary: int) -> dict[str, HeadSpec]:
        return {HEAD: LanguageModelSpec(stack.width, vocabulary, stack.head_bias, stack.tied)}

    def batch(
        self,
        examples: Sequence[Window],
        stack: Stack,
        tokens: Tokenizer,
        noise: np.random.Generator,
    ) -> Batch:
        rows = [window.ids for window in examples]
        table = pad_rows(rows, tokens.pad)
        read, predicted = table[:, :-1], table[:, 1:]
        visibility, positions = packed(read, tokens, "causal")
        # The start of the next document is not predictable from this one.
        scored = (predicted != tokens.bos) & (predicted != tokens.pad)
        where = np.flatnonzero(scored)
        targets = Targets(
            torch.from_numpy(predicted.ravel()[where]),
            torch.ones(len(where)),
            rows_N=torch.from_numpy(where),
        )
        inputs = Inputs(torch.from_numpy(np.ascontiguousarray(read)), visibility, positions)
        real = int((read != tokens.pad).sum())
        return Batch(inputs, {HEAD: targets}, {HEAD: float(len(where))}, real)

    def loss(self, model: Model, batch: Batch) -> dict[str, Term]:
        target = batch.targets[HEAD]
        assert target.rows_N is not None
        hidden_ND = model.backbone(batch.inputs).flatten(0, 1).index_select(0, target.rows_N)
        smoothing = self.label_smoothing if model.training else 0.0
        total, _ = model.heads[HEAD].losses(  # type: ignore[operator]
            hidden_ND, target.answers_N, target.weights_N, smoothing
        )
        return {HEAD: Term(total)}


def packed(ids: Ids, tokens: Tokenizer, rule: Rule) -> tuple[Visibility, torch.Tensor | None]:
    """Visibility and positions of rows that hold several documents, each begun by ``<s>``.

    No document sees another, and each counts its positions from zero.
    """
    padding = ids == tokens.pad
    starts = ids == tokens.bos
    starts[:, 0] = True
    single = not starts[:, 1:].any()
    if single and (rule == "causal" or not padding.any()):
        return Visibility(rule), None
    columns = np.arange(ids.shape[1])
    begun = np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
    documents = np.where(padding, PADDING, np.cumsum(starts, axis=1) - 1)
    return (
        Visibility(rule, torch.from_numpy(documents)),
        torch.from_numpy(columns - begun),
    )
