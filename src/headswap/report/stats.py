"""Intervals and tests for paired comparisons.

Two sources of chance are kept apart and never merged: the seeds of training, and the texts
that happen to be in the test set. An interval over seeds says what another training would
give on these texts; one over texts, what these trainings would give on other texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headswap.randomness import generator

RESAMPLES = 10_000
WORTH_RESAMPLES = 2_000
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
    from scipy import special  # its statistics would take a second to load

    reach = special.stdtrit(len(values) - 1, 0.5 + LEVEL / 2) * error
    p = 2 * special.stdtr(len(values) - 1, -abs(mean) / error)
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


def temperature(chances_NC: np.ndarray, truth_N: np.ndarray) -> float:
    """The divisor of the log-probabilities that fits them best (Guo et al. 2017)."""
    logs_NC = np.log(np.maximum(chances_NC, 1e-12))
    places = np.arange(len(truth_N))

    def loss(log_scale: float) -> float:
        scaled = logs_NC / np.exp(log_scale)
        top = scaled.max(1)
        normal = np.log(np.exp(scaled - top[:, None]).sum(1)) + top
        return float((normal - scaled[places, truth_N]).mean())

    from scipy import optimize

    found = optimize.minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded")
    return float(np.exp(found.x))


def tempered(chances_NC: np.ndarray, scale: float) -> np.ndarray:
    """Probabilities at a temperature."""
    powers = np.maximum(chances_NC, 1e-12) ** (1 / scale)
    return np.asarray(powers / powers.sum(1, keepdims=True))


@dataclass(frozen=True)
class Worth:
    """A number of labels with its 95% interval over texts. None for a bound means more than
    the curve has; a value at the curve's beginning means that or fewer."""

    value: float | None
    low: float | None
    high: float | None


def worth_in_labels(
    sizes: Sequence[int], curve_KN: np.ndarray, target_N: np.ndarray, seed: int = 0
) -> Worth:
    """How many labels one arm needs to be as accurate as another is on the same texts.

    ``curve_KN`` has a row for each size: for each text, the share of seeds that were right.
    The curve is made monotone and read between its sizes on a logarithmic scale; texts are
    resampled, with all rows together, for the interval.
    """
    count = curve_KN.shape[1]
    both_MN = np.concatenate([curve_KN, target_N[None]])
    kinds_MU, counts_U = np.unique(both_MN, axis=1, return_counts=True)
    draw = generator(seed, "worth")  # texts on which all arms did alike are drawn together
    drawn_RU = draw.multinomial(count, counts_U / count, size=WORTH_RESAMPLES)
    means_RM = drawn_RU @ kinds_MU.T / count
    found = [_crossing(sizes, row[:-1], row[-1]) for row in means_RM]
    point = _crossing(sizes, curve_KN.mean(1), target_N.mean())
    low, high = np.quantile(found, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], method="nearest")
    return Worth(*(None if np.isinf(value) else float(value) for value in (point, low, high)))


def _crossing(sizes: Sequence[int], means: np.ndarray, target: float) -> float:
    """Where a monotone curve first reaches the target; infinity where it does not."""
    rising = _monotone(means)
    if target <= rising[0]:
        return float(sizes[0])
    if target > rising[-1]:
        return float("inf")
    above = int(np.argmax(rising >= target))
    share = (target - rising[above - 1]) / (rising[above] - rising[above - 1])
    logs = np.log(sizes)
    return float(np.exp(logs[above - 1] + share * (logs[above] - logs[above - 1])))


def _monotone(values: np.ndarray) -> np.ndarray:
    """The nearest curve that never falls (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (one, m), (two, n) = blocks[-2], blocks[-1]
            blocks[-2:] = [((m * one + n * two) / (m + n), m + n)]
    return np.concatenate([np.full(n, value) for value, n in blocks])


def _bootstrap_means(values_N: np.ndarray, seed: int) -> np.ndarray:
    """Means of resamples. Equal values are drawn together, so that 25,000 texts with a
    handful of different gains take no longer than a handful."""
    levels, counts = np.unique(values_N, return_counts=True)
    draw = generator(seed, "bootstrap")
    drawn = draw.multinomial(len(values_N), counts / len(values_N), size=RESAMPLES)
    return np.asarray(drawn @ levels / len(values_N))
