"""A finished run in use: predict, evaluate, generate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from headswap import metrics
from headswap import run as runs
from headswap.decoding.stepper import Stepper, prompt_ids
from headswap.decoding.strategies import Sampling, extend
from headswap.errors import DataError, UsageError
from headswap.objectives import Causal, Classify
from headswap.pipeline import load_model, softmax
from headswap.run import Run
from headswap.text import corpus, tokenizer
from headswap.text.corpus import Reading
from headswap.text.loader import Labelled, Window
from headswap.training import machine
from headswap.training.evaluate import evaluate, scores
from headswap.types import Ids, Table

TEXTS_AT_ONCE = 2_048
BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """A label by name, and the probability of every label."""

    label: str
    probabilities: dict[str, float]


class Trained:
    """A finished run, loaded: ``headswap.load("runs/base")``."""

    def __init__(self, run: Run, device: str = "auto") -> None:
        self.run = run
        self.model, self.settings = load_model(run, machine.pick_device(device))
        self.tokens = tokenizer.load(run.path / runs.TOKENIZER)

    def predict(self, texts: Iterable[str]) -> Iterator[Prediction]:
        """The label of each text, in order, reading only a few thousand ahead."""
        objective = self._classifier()
        for some in _groups(texts, TEXTS_AT_ONCE):
            examples = [Labelled(ids, 0) for ids in self.tokens.encode(some)]
            for row in softmax(self._logits(examples)):
                chances = dict(zip(objective.labels, row.tolist(), strict=True))
                yield Prediction(objective.labels[int(row.argmax())], chances)

    def evaluate(self, paths: Sequence[Path], reading: Reading = Reading()) -> Table:
        """Accuracy and macro-F1 of a classifier; loss and bits per byte of a language model."""
        if isinstance(self.settings.objective, Classify):
            return self._evaluate_labels(paths, reading)
        return self._evaluate_text(paths, reading)

    def generate(
        self, prompts: Sequence[str], length: int = 50, sampling: Sampling = Sampling()
    ) -> list[str]:
        """Each prompt with its continuation."""
        if not isinstance(self.settings.objective, Causal):
            raise UsageError(
                f"a {self.settings.objective.name} run cannot generate",
                where=self.run.path,
                fix="use a run trained with: headswap train causal",
            )
        if length < 1:
            raise UsageError(f"cannot generate {length} tokens", fix="ask for 1 or more")
        started = [prompt_ids(ids, self.tokens.bos) for ids in self.tokens.encode(prompts)]
        stepper = Stepper(self.model, started, length, "next")
        never = [self.tokens.bos, self.tokens.pad, self.tokens.special(tokenizer.MASK)]
        never.append(self.tokens.special(tokenizer.SEP))
        forbidden = tuple(token for token in never if token is not None)
        added = extend(stepper, len(started), length, self.tokens.eos, sampling, forbidden)
        return [
            self.tokens.decode([*map(int, prompt[1:]), *new])
            for prompt, new in zip(started, added, strict=True)
        ]

    def _classifier(self) -> Classify:
        objective = self.settings.objective
        if isinstance(objective, Classify):
            return objective
        raise UsageError(
            f"a {objective.name} run has no labels to predict",
            where=self.run.path,
            fix=f"train a classifier from it: headswap train classify … --from {self.run.path}",
        )

    def _logits(self, examples: Sequence[Labelled]) -> np.ndarray:
        result = evaluate(
            self.model, self.settings.objective, examples, self.tokens, BATCH, torch.float32
        )
        assert result.logits_NC is not None
        return result.logits_NC

    def _evaluate_labels(self, paths: Sequence[Path], reading: Reading) -> Table:
        objective = self._classifier()
        numbers = {label: number for number, label in enumerate(objective.labels)}
        rows = [row for path in paths for row in corpus.labelled(path, reading)]
        for row in rows:
            if row.label not in numbers:
                raise DataError(
                    f"the label {row.label!r} is unknown to the run "
                    f"(it knows {', '.join(objective.labels)})",
                    where=paths[0],
                    fix="take those rows out",
                )
        encoded = self.tokens.encode([row.text for row in rows])
        examples = [
            Labelled(ids, numbers[row.label]) for ids, row in zip(encoded, rows, strict=True)
        ]
        result = evaluate(self.model, objective, examples, self.tokens, BATCH, torch.float32)
        truth = [example.label for example in examples]
        return {"texts": len(rows), **scores(result, truth)}

    def _evaluate_text(self, paths: Sequence[Path], reading: Reading) -> Table:
        """Every token but the ``<s>`` of a document is scored once; the end of a document
        counts as one byte, so that the figure does not depend on the tokenizer."""
        length = self.settings.model.length
        nats = scored = size = texts = 0.0
        documents = corpus.documents(paths, reading)
        for some in _groups(documents, TEXTS_AT_ONCE // 16):
            size += sum(len(text.encode()) + 1 for text in some)
            texts += len(some)
            windows = list(chain.from_iterable(self._cut(ids, length) for ids in self._whole(some)))
            result = evaluate(
                self.model, self.settings.objective, windows, self.tokens, BATCH, torch.float32
            )
            nats, scored = nats + result.nats, scored + result.count
        return {
            "documents": int(texts),
            "tokens": int(scored),
            "bytes": int(size),
            "loss": nats / max(scored, 1),
            "bits_per_byte": metrics.bits_per_byte(nats, int(size)),
        }

    def _whole(self, texts: Sequence[str]) -> Iterator[Ids]:
        for ids in self.tokens.encode(texts):
            yield np.concatenate([[self.tokens.bos], ids, [self.tokens.eos]]).astype(np.int64)

    @staticmethod
    def _cut(ids: Ids, length: int) -> Iterator[Window]:
        for start in range(0, len(ids) - 1, length):
            yield Window(ids[start : start + length + 1])


def _groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while group := list(islice(remaining, size)):
        yield group
