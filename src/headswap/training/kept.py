"""Which weights a training evaluates and leaves: the last ones, the best, or an average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headswap.nn.model import Model
from headswap.training import parallel
from headswap.training.checkpoint import State
from headswap.training.optim import Average
from headswap.training.plan import Plan


class Kept:
    """The average and the best of the weights, where the plan keeps them. An evaluation comes
    every so many steps, and after the last where the ``total`` is known."""

    def __init__(self, model: Model, plan: Plan, every: int, total: int | None) -> None:
        self._model, self._plan, self._every, self._total = model, plan, every, total
        self.average: Average | None = None
        self.best: dict[str, torch.Tensor] | None = None

    def begin(self) -> Average | None:
        """Take the weights of now as the first of the average, where the plan wants one."""
        if self._plan.ema is not None or self._plan.average_last is not None:
            self.average = Average(self._model)
        return self.average

    def add(self, step: int) -> None:
        """Let the weights of an evaluation count, where the last evaluations are averaged."""
        if self.average is not None and self._plan.average_last and self._averaging(step):
            self.average.update(1 / self._averaging(step))

    @contextmanager
    def averaged(self, step: int) -> Iterator[None]:
        """Inside, the model has the averaged weights, where an average is kept."""
        if self.average is None or not self._averaging(step):
            yield
            return
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()

    def remember(self, state: State, value: float, lower: bool, loss: float) -> None:
        """Note in the state whether an evaluation is the best so far, and keep its weights;
        ``lower`` values are better, or higher ones. Of equal ones the lower loss is better."""
        best = state.best_value
        better = best is None or (value < best if lower else value > best)
        if better or (value == best and state.best_loss is not None and loss < state.best_loss):
            state.best_step, state.best_value, state.best_loss = state.step, value, loss
            state.stale = 0
            if self._plan.keep == "best":
                averaged = self.average is not None and self._averaging(state.step)
                source = self.average.tensors if averaged else self._model.tensors()  # type: ignore[union-attr]
                self.best = {name: tensor.detach().clone() for name, tensor in source.items()}
        elif state.step:
            state.stale += 1
            patience = self._plan.patience
            state.stopped_early = patience is not None and state.stale >= patience

    def choose(self, step: int) -> None:
        """Leave the weights that the plan keeps in the model."""
        if self._plan.keep == "best" and self.best is not None:
            for name, tensor in self._model.tensors().items():
                parallel.put(tensor, self.best[name])
        elif self.average is not None and self._averaging(step):
            self.average.swap()

    def _averaging(self, step: int) -> int:
        """How many states the average holds; always one where it moves along."""
        last = self._plan.average_last
        if last is None:
            return 1
        if self._total is None:  # a budget in minutes has no last evaluations to foresee
            return 0
        points = [*range(self._every, self._total, self._every), self._total]
        return sum(point <= step for point in points[-last:])
