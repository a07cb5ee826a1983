"""Scores computed from predictions alone; no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def confusion(truth: Sequence[int], predicted: Sequence[int], classes: int) -> np.ndarray:
    """Counts by (true class, predicted class)."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (np.asarray(truth, dtype=int), np.asarray(predicted, dtype=int)), 1)
    return table


def accuracy(table: np.ndarray) -> float:
    return float(np.trace(table) / max(table.sum(), 1))


def macro_f1(table: np.ndarray) -> float:
    """The mean F1 over the classes that occur in the truth or in the predictions."""
    hits = np.diag(table).astype(float)
    seen = table.sum(0) + table.sum(1)
    occurring = seen > 0
    return float((2 * hits[occurring] / seen[occurring]).mean()) if occurring.any() else 0.0


def classification(
    truth: Sequence[int], predicted: Sequence[int], classes: int
) -> dict[str, float]:
    table = confusion(truth, predicted, classes)
    return {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}


def bits_per_byte(nats: float, size: int) -> float:
    """A loss that does not depend on the tokenizer: bits to code one UTF-8 byte."""
    return nats / math.log(2) / max(size, 1)
