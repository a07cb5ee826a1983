"""A finished experiment as one classifier: the seeds of an arm vote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headswap import predictions, use
from headswap.errors import DataError
from headswap.experiment.design import REPORT, Folder
from headswap.labelling import Labeller
from headswap.text.corpus import Cleaning
from headswap.types import Table

SMALLEST = 1e-12


class Voters(Labeller):
    """The arm whose vote validation prefers, with the share of the linear model that it
    prefers, as the report says it; the fewer models where two are equal. Each model cleans
    texts as it was taught to."""

    clean: tuple[Cleaning, ...] = ()

    def __init__(self, path: Path, device: str = "auto") -> None:
        folder = Folder.open(path)
        report = folder.path / REPORT
        if not report.exists():
            raise folder.unfinished()
        try:
            found: Table = json.loads(report.read_text("utf-8"))
            self.labels = tuple(found["labels"])
            self.chosen = chosen(found)
            runs = {
                row["name"]: row["runs"] for row in found["arms"] if row["labels"] == found["main"]
            }
            share = self.chosen["linear_share"] or 0.0
            weights = {self.chosen["name"]: 1.0 - share} | ({"linear": share} if share else {})
            parts = [
                (folder.path / run, weight / len(runs[name]))
                for name, weight in weights.items()
                for run in runs[name]
            ]
        except (ValueError, KeyError, TypeError) as error:
            fix = f"headswap report {path}"  # one of an older version lacks the votes
            raise DataError(f"damaged ({error})", where=report, fix=fix) from error
        self._members = [(use.load(run, device), weight) for run, weight in parts]

    def scored(self, texts: Sequence[str]) -> np.ndarray:
        chances = sum(
            weight * predictions.softmax(model.logits(texts)) for model, weight in self._members
        )
        return np.log(np.maximum(chances, SMALLEST))


def chosen(found: Table) -> Table:
    """What a report's votes say is best on validation; with one seed, the run it keeps."""
    if not found["votes"]:
        return {"name": found["best"]["arm"], "linear_share": None}
    return max(found["votes"], key=lambda row: (row["valid_accuracy"], row["linear_share"] is None))
