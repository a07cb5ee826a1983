"""One arm of an experiment at one number of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from headswap import predictions, storage
from headswap.errors import StorageError
from headswap.experiment.plan import Arm
from headswap.predictions import Predictions
from headswap.run import CONFIG, METRICS, PREDICTIONS, SCORES, TESTED, Run
from headswap.wording import quoted

SAID = tuple(f"{PREDICTIONS}/{split}.jsonl" for split in ("valid", "test"))
RESULTS = (CONFIG, METRICS, SCORES, TESTED, *SAID)


@dataclass(frozen=True)
class Cell:
    """One arm at one number of labels: a run for every seed."""

    arm: Arm
    size: int
    runs: list[Run]

    @cached_property
    def test(self) -> list[Predictions]:
        return [predictions.read(run, "test") for run in self.runs]

    @cached_property
    def valid(self) -> list[Predictions]:
        return [predictions.read(run, "valid") for run in self.runs]

    @cached_property
    def right_SN(self) -> np.ndarray:
        return np.stack([said.right_N for said in self.test])

    @property
    def valid_accuracy(self) -> float:
        return float(np.mean([said.right_N.mean() for said in self.valid]))

    @property
    def epochs(self) -> list[float]:
        """When any of its runs was validated, from 0 on."""
        return sorted({epoch for curve in self._curves("valid") for epoch in curve})

    def curve(self, split: str, epochs: Sequence[float]) -> list[list[float]]:
        """For each of the epochs the accuracy of every seed; one that stopped early stays where
        it was."""
        curves = self._curves(split)
        return [
            [curve[max(one for one in curve if one <= epoch)] for curve in curves]
            for epoch in epochs
        ]

    def _curves(self, split: str) -> list[dict[float, float]]:
        return [
            {line["epoch"]: line["accuracy"] for line in run.metrics() if line["split"] == split}
            for run in self.runs
        ]


def whole(path: Path) -> Run:
    """A run whose results are as they were written; its weights, which the report does not
    read, are not looked at."""
    run = Run.open(path)
    wrong = storage.problem(path, only=RESULTS)
    if wrong:
        raise StorageError(
            f"damaged ({wrong})", where=path, fix=f"headswap resume {quoted(path.parent.parent)}"
        )
    return run
