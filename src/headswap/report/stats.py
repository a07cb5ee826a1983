"""Intervals and tests for paired comparisons.

Two sources of chance are kept apart and never merged: the seeds of training, and the texts
that happen to be in the test set. An interval over seeds says what another training would
give on these texts; one over texts, what these trainings would give on other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from headswap.randomness import generator

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A 95% interval, and how likely a difference at least this large is by chance."""

    low: float
    high: float
    p: float

    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def over_seeds(differences: Sequence[float]) -> Interval | None:
    """Student's interval for the mean of paired differences; None for a single seed."""
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return None
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(len(values))
    if error == 0:
        return Interval(float(mean), float(mean), 1.0 if mean == 0 else 0.0)
    reach = stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1) * error
    p = 2 * stats.t.sf(abs(mean) / error, len(values) - 1)
    return Interval(float(mean - reach), float(mean + reach), float(p))


def over_texts(one_SN: np.ndarray, two_SN: np.ndarray, seed: int = 0) -> Interval:
    """Bootstrap interval for mean(two) - mean(one) over texts.

    Rows are seeds, columns texts, both in the same order; a text is drawn with all of its
    seeds and both of its arms, so that what they share cancels (Efron and Tibshirani 1993,
    chapter 8).
    """
    gains_N = two_SN.mean(0) - one_SN.mean(0)
    means = _bootstrap_means(gains_N, seed)
    low, high = np.quantile(means, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    centre = gains_N.mean()
    # How often chance alone, with this spread, goes at least as far from zero.
    p = (1 + np.count_nonzero(np.abs(means - centre) >= abs(centre))) / (1 + RESAMPLES)
    return Interval(float(low), float(high), float(min(p, 1.0)))


def mean_over_texts(one_SN: np.ndarray, seed: int = 0) -> Interval:
    """Bootstrap interval for one arm's mean."""
    return over_texts(np.zeros_like(one_SN), one_SN, seed)


def holm(values: Sequence[float]) -> list[float]:
    """p-values adjusted for having made several comparisons (Holm 1979)."""
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, (len(values) - rank) * values[index])
        adjusted[index] = min(1.0, highest)
    return [float(value) for value in adjusted]


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error over equally filled bins (Nixon et al. 2019)."""
    order = np.argsort(confidence, kind="stable")
    gaps = [
        len(part) * abs(confidence[part].mean() - right[part].mean())
        for part in np.array_split(order, bins)
        if len(part)
    ]
    return float(sum(gaps) / max(len(order), 1))


def _bootstrap_means(values_N: np.ndarray, seed: int) -> np.ndarray:
    """Means of resamples. Equal values are drawn together, so that 25,000 texts with a
    handful of different gains take no longer than a handful."""
    levels, counts = np.unique(values_N, return_counts=True)
    draw = generator(seed, "bootstrap")
    drawn = draw.multinomial(len(values_N), counts / len(values_N), size=RESAMPLES)
    return np.asarray(drawn @ levels / len(values_N))
