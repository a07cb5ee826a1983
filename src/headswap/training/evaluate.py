"""Scoring a model on examples, in batches of similar length, without gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headswap import metrics
from headswap.errors import ResourceError
from headswap.nn.model import Model
from headswap.objectives import Context, Objective
from headswap.randomness import generator
from headswap.text.loader import by_length, share
from headswap.text.tokenizer import Tokenizer
from headswap.training.ranks import ALONE, Ranks

ROWS_ON_GPU = 1_024
Found = dict[str, tuple[float, float, np.ndarray | None]]
"""What one batch gave, by term: a sum, a count and perhaps a classifier's logits."""


@dataclass(frozen=True)
class Evaluation:
    """``losses`` in nats a scored answer by term, ``loss`` their sum; ``logits_NC`` in the
    order of the examples."""

    loss: float
    losses: dict[str, float]
    counts: dict[str, float]
    logits_NC: np.ndarray | None = None


def evaluate(
    model: Model,
    objective: Objective,
    examples: Sequence[Any],
    tokens: Tokenizer,
    batch: int,
    precision: torch.dtype,
    ranks: Ranks = ALONE,
    most: int | None = None,
) -> Evaluation:
    """The loss of a model on examples; a classifier's logits too. Batches have up to ``batch``
    examples and ``most`` tokens; on a GPU, where a small batch costs as much as a large one, they
    are as large as training has memory for: what that keeps of every layer, is here that of one.
    Ranks take them in turn, and their results are put together in the order in which one process
    would make them. Where memory is short all the same, batches are halved."""
    stack = model.backbone.stack
    lengths, longest = [len(example.ids) for example in examples], stack.length + 1
    if most is None and model.device.type == "cuda":
        batch, most = max(batch, ROWS_ON_GPU), stack.layers * batch * longest
        if getattr(objective, "long", None) == "windows":  # which overlap by half
            lengths = [length if length < longest else 2 * length for length in lengths]
        else:  # the rest is not read
            lengths = [min(length, longest) for length in lengths]
    training = model.training
    if training:  # each switch walks all modules
        model.eval()
    mine = None
    while mine is None:
        groups = list(enumerate(by_length(lengths, batch, most)))
        turns = [(view, number, group) for view in objective.views() for number, group in groups]
        mine = _found(model, examples, tokens, precision, share(turns, ranks.rank, ranks.world))
        if mine is None and (batch == 1 or not ranks.alone):
            raise ResourceError(
                "the GPU's memory is too small to evaluate", fix="lower train.batch"
            )
        batch, most = max(1, batch // 2), most and most // 2
    if training:
        model.train()
    totals: dict[str, float] = {}
    counts: dict[str, float] = {}
    logits: dict[int, np.ndarray] = {}
    by_rank = ranks.gather(mine)
    for turn, (_, _, group) in enumerate(turns):
        for name, (total, count, rows) in by_rank[turn % ranks.world][turn // ranks.world].items():
            totals[name] = totals.get(name, 0.0) + total
            counts[name] = counts.get(name, 0.0) + count
            if rows is not None:
                logits |= zip(group, rows, strict=True)
    losses = {name: total / max(counts[name], 1e-9) for name, total in totals.items()}
    order = range(len(examples))
    return Evaluation(
        sum(losses.values()),
        losses,
        counts,
        np.stack([logits[i] for i in order]) if logits else None,
    )


def _found(
    model: Model,
    examples: Sequence[Any],
    tokens: Tokenizer,
    precision: torch.dtype,
    turns: Sequence[tuple[Objective, int, list[int]]],
) -> list[Found] | None:
    """What every batch gave; None where memory is too short for them."""

    def one(view: Objective, number: int, group: list[int]) -> Found:
        context = Context(model.backbone.stack, tokens, generator(0, "evaluate", number))
        made = view.batch([examples[i] for i in group], context).to(model.device)
        return {
            name: (
                float(term.total),
                made.counts[name],
                None if term.scores_NC is None else term.scores_NC.float().cpu().numpy(),
            )
            for name, term in view.loss(model, made).items()
        }

    try:
        with torch.no_grad(), autocast(model.device, precision):
            return [one(*turn) for turn in turns]
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()  # once the error holds nothing any more
    return None


def scores(evaluation: Evaluation, truth: Sequence[int] | None) -> dict[str, float]:
    """The figures that are logged and compared."""
    figures = {"loss": evaluation.loss}
    if len(evaluation.losses) > 1:
        figures |= {f"loss_{name}": loss for name, loss in evaluation.losses.items()}
    if evaluation.logits_NC is not None and truth is not None:
        predicted = evaluation.logits_NC.argmax(1).tolist()
        figures |= metrics.classification(truth, predicted, evaluation.logits_NC.shape[1])
    return figures


def autocast(
    device: torch.device, precision: torch.dtype
) -> contextlib.AbstractContextManager[Any]:
    if precision == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=precision)
