"""What every classifier does alike once it can score texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from headswap import predictions
from headswap.predictions import Prediction
from headswap.text import corpus
from headswap.text.corpus import Cleaning, Reading
from headswap.text.files import Paths
from headswap.text.tables import mended
from headswap.types import Table


class Labeller(ABC):
    """``labels`` by name; ``clean`` is how texts were cleaned in training."""

    labels: tuple[str, ...]
    clean: tuple[Cleaning, ...]

    @abstractmethod
    def scored(self, texts: Sequence[str]) -> np.ndarray:
        """A score for every cleaned text and label."""

    def predict(self, texts: str | Iterable[str]) -> Iterator[Prediction]:
        """The label of each text, in order, reading only a few thousand ahead."""
        return predictions.of_texts(texts, self.labels, self.logits)

    def evaluate(self, paths: Paths, reading: Reading = Reading()) -> Table:
        """Accuracy and macro-F1."""
        rows, truth = corpus.labelled_as(paths, replace(reading, clean=self.clean), self.labels)
        logits = self.scored([row.text for row in rows])
        return {"texts": len(rows), **predictions.scores(logits, truth)}

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """A score for every text and label."""
        return self.scored([mended(Reading(clean=self.clean).cleaned(text)) for text in texts])
