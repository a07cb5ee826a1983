"""What an objective is: it turns examples into a batch that states what is visible and
what is scored, and scores a model's answer to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, Stack
from headswap.nn.visibility import Inputs, Rule
from headswap.text.loader import share
from headswap.text.tokenizer import Tokenizer
from headswap.types import Ids

SHAPE_STEP = 16


@dataclass(frozen=True)
class Targets:
    """What one term of the loss is scored on: the right answers and how much each weighs.

    ``rows_N`` are the scored positions of the flattened batch; None for heads that give one
    answer a text, where ``lengths_B`` says where each text ends and ``owners_B`` (if given)
    which text each row is a part of.
    """

    answers_N: Tensor
    weights_N: Tensor
    rows_N: Tensor | None = None
    lengths_B: Tensor | None = None
    owners_B: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Targets:
        return Targets(
            change(self.answers_N),
            change(self.weights_N),
            *(
                None if value is None else change(value)
                for value in (self.rows_N, self.lengths_B, self.owners_B)
            ),
        )

    def of_rows(self, rows_R: Tensor, chosen_M: Tensor, width: int) -> Targets:
        """What is scored in some rows of a batch, which hold the examples ``chosen_M``."""
        if self.rows_N is None:
            owners = None
            if self.owners_B is not None:
                owners = torch.searchsorted(chosen_M, self.owners_B[rows_R])
            lengths = None if self.lengths_B is None else self.lengths_B[rows_R]
            answers, weights = self.answers_N[chosen_M], self.weights_N[chosen_M]
            return Targets(answers, weights, lengths_B=lengths, owners_B=owners)
        row_N = self.rows_N // width
        kept = torch.isin(row_N, rows_R)
        moved = torch.searchsorted(rows_R, row_N[kept]) * width + self.rows_N[kept] % width
        return Targets(self.answers_N[kept], self.weights_N[kept], rows_N=moved)


@dataclass(frozen=True)
class Batch:
    """``counts`` are the weights' sums by term: known before the model runs, so that
    accumulated micro-batches divide by the whole batch's count."""

    inputs: Inputs
    targets: Mapping[str, Targets]
    counts: Mapping[str, float]
    tokens: int

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same with every tensor changed, always in the same order."""
        targets = {name: target.map(change) for name, target in self.targets.items()}
        return replace(self, inputs=self.inputs.map(change), targets=targets)

    def to(self, device: torch.device) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def of_rank(self, rank: int, world: int) -> Batch:
        """The rows that one rank works on. What was drawn for the whole batch stays, and so do
        its counts: the ranks' losses add up to the batch's. A rank for which nothing is left
        takes a row that weighs nothing, since all ranks have to make the same calls."""
        owners_B = next((t.owners_B for t in self.targets.values() if t.owners_B is not None), None)
        height, width = self.inputs.ids_BT.shape
        count = height if owners_B is None else int(owners_B.max()) + 1
        mine = list(share(range(count), rank, world))
        chosen_M = torch.tensor(mine or [0])
        rows_R = chosen_M
        if owners_B is not None:
            (rows_R,) = torch.isin(owners_B, chosen_M).nonzero(as_tuple=True)
        targets = {
            name: target.of_rows(rows_R, chosen_M, width) for name, target in self.targets.items()
        }
        if not mine:
            targets = {
                name: replace(target, weights_N=torch.zeros_like(target.weights_N))
                for name, target in targets.items()
            }
        return replace(self, inputs=self.inputs.map(lambda tensor: tensor[rows_R]), targets=targets)


@dataclass(frozen=True)
class Term:
    """A loss as a sum and never a mean; what it is divided by is the batch's count.

    ``correct`` is the weight of the right answers where that is free to know; ``scores_NC``
    are a classifier's logits, one row an example; ``each_N`` the loss of each scored position.
    """

    total: Tensor
    correct: Tensor | None = None
    scores_NC: Tensor | None = None
    each_N: Tensor | None = None


@dataclass(frozen=True)
class Context:
    """What an objective may know when it makes a batch: the model's shape, the tokenizer, a
    generator of this batch's own, and where the training stands. Without ``training`` the
    batch is for evaluation: no augmentation, fixed rates. With ``few_shapes`` lengths and
    counts are rounded up, so that a GPU can replay what it did for an earlier batch."""

    stack: Stack
    tokens: Tokenizer
    noise: np.random.Generator
    step: int = 0
    progress: float = 1.0
    training: bool = False
    few_shapes: bool = False

    def width(self, longest: int) -> int:
        """How wide a table is whose longest row has so many tokens."""
        if not self.few_shapes:
            return longest
        return max(longest, min(-(-longest // SHAPE_STEP) * SHAPE_STEP, self.stack.length))

    def rows(self, count: int) -> int:
        """How many rows are scored when so many have an answer: an eighth or 63 more at most."""
        step = max(64, 1 << max(0, count.bit_length() - 4)) if self.few_shapes else 1
        return -(-count // step) * step


class Objective(Protocol):
    """A frozen dataclass whose fields are the objective's hyper-parameters."""

    name: ClassVar[str]
    reads: ClassVar[type]

    @property
    def specials(self) -> tuple[str, ...]:
        """Tokens that the objective needs beside the text's."""

    @property
    def scored(self) -> float:
        """The share of positions at which the whole vocabulary is scored: what it costs."""

    @property
    def visibility(self) -> Rule:
        """What a classifier built on this objective's base should see."""

    def heads(self, stack: Stack, vocabulary: int) -> dict[str, HeadSpec]: ...
    def batch(self, examples: Sequence[Any], context: Context) -> Batch: ...
    def loss(self, model: Model, batch: Batch) -> dict[str, Term]: ...
    def views(self) -> Sequence[Objective]:
        """The objectives that an evaluation scores, each on all examples: usually itself."""


OBJECTIVES: dict[str, type[Objective]] = {}
"""The objectives by name; ``register`` adds to it."""

O = TypeVar("O", bound=type)  # noqa: E741


def register(objective: O) -> O:
    """Make an objective known by its name, to the commands and to the conformance tests."""
    OBJECTIVES[objective.name] = objective  # type: ignore[attr-defined]
    return objective


def pad_rows(rows: Sequence[Ids], fill: int, size: int | None = None) -> Ids:
    """Rows of different lengths as one array, filled on the right."""
    size = max(map(len, rows)) if size is None else size
    table = np.full((len(rows), size), fill, dtype=np.int64)
    for table_row, row in zip(table, rows, strict=True):
        table_row[: len(row)] = row
    return table
