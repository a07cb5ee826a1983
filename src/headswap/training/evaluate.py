"""Scoring a model on examples, in batches of similar length, without gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headswap import metrics
from headswap.nn.model import Model
from headswap.objectives import Context, Objective
from headswap.randomness import generator
from headswap.text.loader import by_length
from headswap.text.tokenizer import Tokenizer


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
) -> Evaluation:
    """The loss of a model on examples; a classifier's logits too."""
    totals: dict[str, float] = {}
    counts: dict[str, float] = {}
    logits: list[np.ndarray | None] = [None] * len(examples)
    training = model.training
    model.eval()
    groups = list(enumerate(by_length([len(example.ids) for example in examples], batch)))
    views = [(view, number, group) for view in objective.views() for number, group in groups]
    with torch.no_grad(), autocast(model.device, precision):
        for view, number, group in views:
            chosen = [examples[i] for i in group]
            noise = generator(0, "evaluate", number)
            context = Context(model.backbone.stack, tokens, noise)
            made = view.batch(chosen, context).to(model.device)
            for name, term in view.loss(model, made).items():
                totals[name] = totals.get(name, 0.0) + float(term.total)
                counts[name] = counts.get(name, 0.0) + made.counts[name]
                if term.scores_NC is not None:
                    for i, row in zip(group, term.scores_NC.float().cpu().numpy(), strict=True):
                        logits[i] = row
    model.train(training)
    losses = {name: total / max(counts[name], 1e-9) for name, total in totals.items()}
    found = [row for row in logits if row is not None]
    return Evaluation(
        sum(losses.values()),
        losses,
        counts,
        np.stack(found) if len(found) == len(examples) and found else None,
    )


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
