"""Classification: one label for a whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headswap.errors import UsageError
from headswap.nn.heads import ClassifierSpec
from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, Pool, Stack
from headswap.nn.visibility import Inputs, Rule, Visibility
from headswap.objectives.base import Batch, Context, Objective, Targets, Term, pad_rows, register
from headswap.text.loader import Labelled, fitted
from headswap.text.tokenizer import MASK, Tokenizer
from headswap.types import Ids
from headswap.wording import counted

HEAD = TERM = "label"
MOST_WINDOWS = 32


@register
@dataclass(frozen=True)
class Classify:
    """``labels`` are names; a label's number is its place here. ``class_weights`` go with
    them (empty: all 1).

    ``sees`` and ``pool`` say how a text is read; a base decides them unless they are given: a
    causal base is read causally at its last token, any other in full at its mean. ``long``
    says what happens to texts that do not fit: the ``head`` is kept, or ``head+tail``, or all
    of it in overlapping ``windows`` whose scores are averaged (of very long texts 32, spread
    evenly).

    ``token_dropout`` hides a share of the tokens in training; ``r_drop`` weighs the distance
    between two passes with different dropout (Liang et al. 2021).
    """

    labels: tuple[str, ...] = ()
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    sees: Rule = "full"
    pool: Pool = "mean"
    long: Literal["head", "head+tail", "windows"] = "head"
    token_dropout: float = 0.0
    r_drop: float = 0.0

    name: ClassVar[str] = "classify"
    reads: ClassVar[type] = Labelled
    specials: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.labels and self.class_weights and len(self.class_weights) != len(self.labels):
            raise UsageError(
                f"{counted(len(self.class_weights), 'class weight')} for {len(self.labels)} labels",
                fix=f"give one weight for each of: {', '.join(self.labels)}",
            )
        for name in ("token_dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"classify.{name} must be in [0, 1), not {getattr(self, name)}")

    @property
    def scored(self) -> float:
        return 0.0

    @property
    def visibility(self) -> Rule:
        return self.sees

    def heads(self, stack: Stack, vocabulary: int) -> dict[str, HeadSpec]:
        """The stock shapes, so that they export exactly: the course's biased linear layer,
        EuroBERT's dense-GELU-linear, Llama's bias-free linear."""
        dense = not stack.bias and self.sees == "full" and self.pool in ("first", "mean")
        llama = not stack.bias and self.sees == "causal" and self.pool == "last"
        spec = ClassifierSpec(stack.width, len(self.labels), self.pool, dense, bias=not llama)
        return {HEAD: spec}

    def rows(self, ids: Ids, stack: Stack, tokens: Tokenizer) -> list[Ids]:
        """What the model reads of a text: ``<s>`` and its tokens, and ``</s>`` where the
        future is visible (a causal base has never read beyond ``</s>``)."""
        ending = [] if self.sees == "causal" else [tokens.eos]
        room = self.room(stack)
        parts = [fitted(ids, room, self.long)]
        if len(ids) > room and self.long == "windows":
            stride = max(1, room // 2)
            count = min(MOST_WINDOWS, -(-(len(ids) - room) // stride) + 1)
            starts = np.minimum(np.arange(count) * stride, len(ids) - room)
            if count == MOST_WINDOWS:  # a very long text: as many, evenly spread
                starts = np.linspace(0, len(ids) - room, count).astype(int)
            parts = [ids[start:][:room] for start in starts]
        return [np.concatenate([[tokens.bos], part, ending]).astype(np.int64) for part in parts]

    def room(self, stack: Stack) -> int:
        """How many tokens of a text fit beside the specials."""
        return stack.length - (1 if self.sees == "causal" else 2)

    def batch(self, examples: Sequence[Labelled], context: Context) -> Batch:
        tokens = context.tokens
        texts = [self.rows(example.ids, context.stack, tokens) for example in examples]
        rows = [row for text in texts for row in text]
        lengths_B = torch.tensor([len(row) for row in rows])
        table = pad_rows(rows, tokens.pad, context.width(max(map(len, rows))))
        real = int(lengths_B.sum())
        if context.training and self.token_dropout:
            _hide(table, self.token_dropout, tokens, context.noise)
        answers = torch.tensor([example.label for example in examples])
        weights = torch.ones(len(examples))
        if self.class_weights:
            weights = torch.tensor(self.class_weights)[answers]
        owners = None
        if len(rows) > len(texts):
            owners = torch.tensor([i for i, text in enumerate(texts) for _ in text])
        visibility = Visibility.of_lengths(self.sees, lengths_B, table.shape[1])
        target = Targets(answers, weights, lengths_B=lengths_B, owners_B=owners)
        inputs = Inputs(torch.from_numpy(table), visibility)
        return Batch(inputs, {TERM: target}, {TERM: float(weights.sum())}, real)

    def loss(self, model: Model, batch: Batch) -> dict[str, Term]:
        target = batch.targets[TERM]
        logits_NC = self._logits(model, batch)
        smoothing = self.label_smoothing if model.training else 0.0
        each_N = F.cross_entropy(
            logits_NC, target.answers_N, reduction="none", label_smoothing=smoothing
        )
        if self.r_drop and model.training:
            other_NC = self._logits(model, batch)
            each_N = 0.5 * each_N + 0.5 * F.cross_entropy(
                other_NC, target.answers_N, reduction="none", label_smoothing=smoothing
            )
            each_N = each_N + self.r_drop * _distance(logits_NC, other_NC)
        hits_N = logits_NC.detach().argmax(-1) == target.answers_N
        return {
            TERM: Term(
                (each_N * target.weights_N).sum(),
                correct=(hits_N * target.weights_N).sum(),
                scores_NC=logits_NC.detach(),
            )
        }

    def views(self) -> Sequence[Objective]:
        return [self]

    def _logits(self, model: Model, batch: Batch) -> Tensor:
        """One row of scores a text: the mean over its windows where it has several."""
        target = batch.targets[TERM]
        logits_BC: Tensor = model.heads[HEAD](model.backbone(batch.inputs), target.lengths_B)
        logits_BC = logits_BC.float()
        if target.owners_B is None:
            return logits_BC
        texts = len(target.answers_N)
        summed_NC = logits_BC.new_zeros(texts, logits_BC.shape[1])
        summed_NC = summed_NC.index_add(0, target.owners_B, logits_BC)
        windows_N = logits_BC.new_zeros(texts)
        windows_N = windows_N.index_add(0, target.owners_B, torch.ones_like(logits_BC[:, 0]))
        return summed_NC / windows_N[:, None]


def _hide(table: Ids, share: float, tokens: Tokenizer, noise: np.random.Generator) -> None:
    """Replace a share of the tokens by ``<mask>``, in place."""
    mask = tokens.special(MASK)
    free = ~np.isin(table, [tokens.pad, tokens.bos, tokens.eos])
    table[free & (noise.random(table.shape) < share)] = tokens.unk if mask is None else mask


def _distance(one_NC: Tensor, two_NC: Tensor) -> Tensor:
    """The symmetric Kullback-Leibler divergence of two predictions."""
    one, two = one_NC.log_softmax(-1), two_NC.log_softmax(-1)
    return 0.5 * ((one.exp() - two.exp()) * (one - two)).sum(-1)
