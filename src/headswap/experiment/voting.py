"""Several runs that vote: the seeds of an arm together, and together with the linear model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from headswap.experiment.cells import Cell
from headswap.predictions import Predictions
from headswap.report import stats
from headswap.types import Table

SHARES = np.linspace(0.0, 1.0, 21)


def together(said: Sequence[Predictions]) -> Predictions:
    """The mean of their probabilities."""
    return replace(said[0], chances_NC=np.mean([one.chances_NC for one in said], axis=0))


def blended(one: Predictions, two: Predictions, share: float) -> Predictions:
    """``share`` of the second, the rest of the first."""
    return replace(one, chances_NC=(1 - share) * one.chances_NC + share * two.chances_NC)


def best_share(one: Predictions, two: Predictions) -> float:
    """What share of the second validation prefers; the lower loss where two are equal."""

    def worth(share: float) -> tuple[float, float]:
        said = blended(one, two, share)
        chances = said.chances_NC[np.arange(len(said.truth_N)), said.truth_N]
        return float(said.right_N.mean()), float(np.log(np.maximum(chances, 1e-12)).mean())

    return float(max(SHARES, key=worth))


def votes(cells: Sequence[Cell], linear: Cell, leaked_N: np.ndarray) -> list[Table]:
    """Each arm's seeds as one classifier, alone and with the linear model's share, against the
    linear model."""
    valid, test = together(linear.valid), together(linear.test)
    rows = [_row("linear", None, valid, test, test, leaked_N)]
    for cell in cells:
        ours = together(cell.valid), together(cell.test)
        rows.append(_row(cell.arm.name, None, *ours, test, leaked_N))
        share = best_share(ours[0], valid)
        mixed = blended(ours[0], valid, share), blended(ours[1], test, share)
        rows.append(_row(cell.arm.name, share, *mixed, test, leaked_N))
    return rows


def _row(
    name: str,
    share: float | None,
    valid: Predictions,
    test: Predictions,
    linear: Predictions,
    leaked_N: np.ndarray,
) -> Table:
    right_N = test.right_N
    interval = stats.mean_over_texts(right_N[None])
    kept_N = ~leaked_N
    return {
        "name": name,
        "linear_share": share,
        "accuracy": float(right_N.mean()),
        "over_texts": [interval.low, interval.high],
        "valid_accuracy": float(valid.right_N.mean()),
        "accuracy_without_leaks": float(right_N[kept_N].mean()) if kept_N.any() else None,
        "gain_over_linear": float(right_N.mean() - linear.right_N.mean()),
        "over_linear": asdict(stats.over_texts(linear.right_N[None], right_N[None])),
    }
