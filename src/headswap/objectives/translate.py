"""Translation: the target's next token from the source and the target so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from headswap.errors import UsageError
from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, Stack
from headswap.nn.visibility import Inputs, Rule, Visibility
from headswap.objectives.base import Batch, Context, Objective, Term, pad_rows, register
from headswap.objectives.language import HEAD, scored, token_head, token_loss
from headswap.text.loader import Pair
from headswap.text.tokenizer import Tokenizer
from headswap.types import Ids

TERM = "translate"
FORWARD, BACKWARD = "<forward>", "<backward>"


@register
@dataclass(frozen=True)
class Translate:
    """``reverse`` exchanges source and target; ``both`` learns both directions in one model,
    a tag at the source's beginning saying which. ``longest`` leaves out training pairs with
    more tokens on a side. ``r_drop`` weighs the distance between two passes with different
    dropout (Liang et al. 2021). ``language`` is the target's, by whose rules the BLEU of older
    papers cuts words."""

    label_smoothing: float = 0.1
    r_drop: float = 0.0
    reverse: bool = False
    both: bool = False
    longest: int = 200
    language: str = "en"

    name: ClassVar[str] = "translate"
    reads: ClassVar[type] = Pair

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"translate.label_smoothing must be in [0, 1), not {self.label_smoothing}"
            )
        if self.reverse and self.both:
            raise UsageError("translate.reverse and translate.both exclude each other")

    @property
    def specials(self) -> tuple[str, ...]:
        return (FORWARD, BACKWARD) if self.both else ()

    @property
    def scored(self) -> float:
        return 0.5

    @property
    def visibility(self) -> Rule:
        return "full"

    def heads(self, stack: Stack, vocabulary: int) -> dict[str, HeadSpec]:
        if not stack.decoder_layers:
            raise UsageError(
                "a translator needs a decoder",
                fix="use the recipe tiny-translate, or set model.decoder_layers",
            )
        return token_head(stack, vocabulary)

    def source(self, ids: Ids, tokens: Tokenizer, backwards: bool = False) -> Ids:
        """What the encoder reads: the sentence, ``</s>``, and before them the direction."""
        tag = []
        if self.both:
            tag = [tokens.special(BACKWARD if backwards else FORWARD)]
        return np.concatenate([tag, ids, [tokens.eos]]).astype(np.int64)

    def batch(self, examples: Sequence[Pair], context: Context) -> Batch:
        tokens = context.tokens
        sources = [self.source(pair.source, tokens, pair.backwards) for pair in examples]
        targets = [np.concatenate([[tokens.bos], p.target, [tokens.eos]]) for p in examples]
        wide = context.width(max(map(len, targets)) - 1)
        read = pad_rows([row[:-1] for row in targets], tokens.pad, wide)
        answers = pad_rows([row[1:] for row in targets], -1, wide)
        (where,) = np.nonzero(answers.ravel() >= 0)
        goal = scored(answers.ravel()[where], where, context)
        causal = Visibility("causal")  # padding lies in the future of everything real
        source = source_inputs(sources, tokens, context.width(max(map(len, sources))))
        inputs = Inputs(torch.from_numpy(read), causal, source=source)
        real = sum(map(len, sources)) + len(where)
        return Batch(inputs, {TERM: goal}, {TERM: float(len(where))}, real)

    def loss(self, model: Model, batch: Batch) -> dict[str, Term]:
        if self.r_drop and model.training:
            return {TERM: self._with_r_drop(model, batch)}
        hidden_BTD = model.backbone(batch.inputs)
        return {TERM: token_loss(model, hidden_BTD, batch, TERM, self.label_smoothing)}

    def _with_r_drop(self, model: Model, batch: Batch) -> Term:
        """The mean loss of two passes, made as one of twice the rows, and how far apart they
        are."""
        target = batch.targets[TERM]
        assert target.rows_N is not None
        both = model.backbone(batch.inputs.twice()).flatten(0, 1).chunk(2)
        logs = [
            F.log_softmax(model.heads[HEAD](hidden[target.rows_N]).float(), -1) for hidden in both
        ]
        each_N = [
            F.cross_entropy(
                log, target.answers_N, reduction="none", label_smoothing=self.label_smoothing
            )
            for log in logs
        ]
        apart_N = ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum(-1)
        loss_N = 0.5 * (each_N[0] + each_N[1] + self.r_drop * apart_N)
        return Term((loss_N * target.weights_N).sum())

    def views(self) -> Sequence[Objective]:
        return [self]


def source_inputs(rows: Sequence[Ids], tokens: Tokenizer, width: int | None = None) -> Inputs:
    """Sources side by side, padded on the right."""
    table = torch.from_numpy(pad_rows(rows, tokens.pad, width))
    lengths_B = torch.tensor([len(row) for row in rows])
    return Inputs(table, Visibility.of_lengths("full", lengths_B, table.shape[1]))
