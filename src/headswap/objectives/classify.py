"""Classification: one label for a whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from headswap.errors import UsageError
from headswap.nn.model import Model
from headswap.nn.spec import ClassifierSpec, HeadSpec, Pool, Stack
from headswap.nn.visibility import Inputs, Rule, Visibility
from headswap.objectives.base import Batch, Targets, Term, pad_rows
from headswap.text.loader import Labelled
from headswap.text.tokenizer import Tokenizer
from headswap.types import Ids

HEAD = "label"


@dataclass(frozen=True)
class Classify:
    """``labels`` are names; a label's number is its place here. ``class_weights`` go with
    them (empty: all 1). Without ``sees`` and ``pool`` the base decides: a causal base is read
    causally at its last token, any other in full at its mean."""

    labels: tuple[str, ...] = ()
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    sees: Rule = "full"
    pool: Pool = "mean"

    name: ClassVar[str] = "classify"
    reads: ClassVar[type] = Labelled
    specials: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.class_weights and len(self.class_weights) != len(self.labels):
            raise UsageError(
                f"{len(self.class_weights)} class weights for {len(self.labels)} labels",
                fix=f"give one weight for each of: {', '.join(self.labels)}",
            )

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

    def ids(self, ids: Ids, stack: Stack, tokens: Tokenizer) -> Ids:
        """What the model reads of a text: ``<s>`` and its first tokens, and ``</s>`` where
        the future is visible (a causal base has never read beyond ``</s>``)."""
        ending = [] if self.sees == "causal" else [tokens.eos]
        kept = ids[: self.room(stack)]
        return np.concatenate([[tokens.bos], kept, ending]).astype(np.int64)

    def room(self, stack: Stack) -> int:
        """How many tokens of a text fit beside the specials."""
        return stack.length - (1 if self.sees == "causal" else 2)

    def batch(
        self,
        examples: Sequence[Labelled],
        stack: Stack,
        tokens: Tokenizer,
        noise: np.random.Generator,
    ) -> Batch:
        rows = [self.ids(example.ids, stack, tokens) for example in examples]
        lengths_B = torch.tensor([len(row) for row in rows])
        table = torch.from_numpy(pad_rows(rows, tokens.pad))
        answers = torch.tensor([example.label for example in examples])
        weights = torch.ones(len(rows))
        if self.class_weights:
            weights = torch.tensor(self.class_weights)[answers]
        visibility = Visibility.of_lengths(self.sees, lengths_B, table.shape[1])
        return Batch(
            Inputs(table, visibility),
            {HEAD: Targets(answers, weights, lengths_B=lengths_B)},
            {HEAD: float(weights.sum())},
            int(lengths_B.sum()),
        )

    def loss(self, model: Model, batch: Batch) -> dict[str, Term]:
        target = batch.targets[HEAD]
        logits_BC = model.heads[HEAD](model.backbone(batch.inputs), target.lengths_B).float()
        smoothing = self.label_smoothing if model.training else 0.0
        each_B = F.cross_entropy(
            logits_BC, target.answers_N, reduction="none", label_smoothing=smoothing
        )
        hits_B = logits_BC.detach().argmax(-1) == target.answers_N
        return {
            HEAD: Term(
                (each_B * target.weights_N).sum(),
                correct=(hits_B * target.weights_N).sum(),
                scores_NC=logits_BC.detach(),
            )
        }
