"""Predictions of a classifier: one JSON line an example, written by runs and read by reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from headswap import metrics
from headswap.errors import DataError, StorageError, UsageError
from headswap.run import PREDICTIONS, Run

TEXTS_AT_ONCE = 2_048


@dataclass(frozen=True)
class Prediction:
    """A label by name, and the probability of every label."""

    label: str
    probabilities: dict[str, float]


def several(texts: str | Iterable[str]) -> Iterator[str]:
    """One text or several, as several: a string is never read letter by letter."""
    if not isinstance(texts, Iterable):
        raise UsageError(f"texts are wanted, not {texts!r}", fix="give a string or several")
    for text in [texts] if isinstance(texts, str) else texts:
        if not isinstance(text, str):
            raise UsageError(f"a text is wanted, not {text!r}", fix="give strings")
        yield text


def of_texts(
    texts: str | Iterable[str],
    labels: Sequence[str],
    logits: Callable[[Sequence[str]], np.ndarray],
) -> Iterator[Prediction]:
    """The label of each text, in order, reading only a few thousand ahead."""
    waiting = several(texts)
    while some := list(islice(waiting, TEXTS_AT_ONCE)):
        for row in softmax(logits(some)):
            chances = dict(zip(labels, row.tolist(), strict=True))
            yield Prediction(labels[int(row.argmax())], chances)


@dataclass(frozen=True)
class Predictions:
    """What a classifier said of each text of a split, and what was right."""

    labels: tuple[str, ...]
    truth_N: np.ndarray
    chances_NC: np.ndarray

    @cached_property
    def predicted_N(self) -> np.ndarray:
        return np.asarray(self.chances_NC.argmax(1))

    @cached_property
    def right_N(self) -> np.ndarray:
        return np.asarray(self.predicted_N == self.truth_N, dtype=float)

    @cached_property
    def confidence_N(self) -> np.ndarray:
        return np.asarray(self.chances_NC.max(1))

    def confusion(self) -> np.ndarray:
        """Rows are the truth, columns what was predicted."""
        return metrics.confusion(self.truth_N.tolist(), self.predicted_N.tolist(), len(self.labels))

    def only(self, kept_N: np.ndarray) -> Predictions:
        return Predictions(self.labels, self.truth_N[kept_N], self.chances_NC[kept_N])


def lines(logits_NC: np.ndarray, truth: Sequence[int], labels: Sequence[str]) -> str:
    """One JSON line an example, in the order of the data."""
    written = []
    for index, (row, right) in enumerate(zip(softmax(logits_NC), truth, strict=True)):
        line = {
            "index": index,
            "label": labels[right],
            "predicted": labels[int(row.argmax())],
            "probabilities": dict(zip(labels, row.tolist(), strict=True)),
        }
        written.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(written)


def read(run: Run, split: str) -> Predictions:
    """A finished run's predictions for a split."""
    source = run.path / PREDICTIONS / f"{split}.jsonl"
    try:
        rows = [json.loads(line) for line in source.read_bytes().splitlines()]
        labels = tuple(rows[0]["probabilities"])
        numbers = {label: number for number, label in enumerate(labels)}
        truth = np.array([numbers[row["label"]] for row in rows])
        chances = np.array([[row["probabilities"][name] for name in labels] for row in rows])
        return Predictions(labels, truth, chances)
    except FileNotFoundError as error:
        kind = run.settings().get("objective")
        if kind not in ("classify", "linear"):
            raise UsageError(
                f"a {kind} run predicts no labels", where=run.path, fix="name classifiers"
            ) from error
        raise StorageError(
            f"the run has no {split} predictions",
            where=run.path,
            fix=f"train it with --{split}, or compare another --split",
        ) from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"damaged predictions ({error})", where=source) from error


def scores(logits_NC: np.ndarray, truth: Sequence[int]) -> dict[str, float]:
    """Loss, accuracy and macro-F1."""
    chances = softmax(logits_NC)[np.arange(len(truth)), list(truth)]
    loss = float(-np.log(np.maximum(chances, 1e-12)).mean())
    found = metrics.classification(truth, logits_NC.argmax(1).tolist(), logits_NC.shape[1])
    return {"loss": loss, **found}


def softmax(logits_NC: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits_NC.astype(np.float64) - logits_NC.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))
