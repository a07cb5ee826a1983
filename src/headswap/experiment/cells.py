"""One arm of an experiment at one number of labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headswap import predictions
from headswap.experiment.plan import Arm
from headswap.predictions import Predictions
from headswap.run import Run


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

    def curve(self, split: str) -> list[list[float]]:
        """For every seed the accuracy after each epoch; of validation from epoch 0 on."""
        found = []
        for run in self.runs:
            lines = [line for line in run.metrics() if line["split"] == split]
            by_epoch = {round(line["epoch"]): line for line in lines if line["epoch"] % 1 == 0}
            found.append([by_epoch[epoch]["accuracy"] for epoch in sorted(by_epoch)])
        return found
