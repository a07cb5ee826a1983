"""What a training writes down as it goes: metrics by step, for machines and for TensorBoard."""

from __future__ import annotations

import json
import os
from typing import Any

from headswap import storage
from headswap.errors import ResourceError
from headswap.run import METRICS, Run
from headswap.training.plan import Plan


class Journal:
    """The run's metrics, kept by one rank of several: the others' ``bytes`` stay 0."""

    def __init__(self, run: Run, plan: Plan, keeps: bool) -> None:
        self._path, self._keeps = run.path / METRICS, keeps
        self._board = _board(run, plan) if keeps else None
        self.bytes = 0

    def write(self, line: dict[str, Any]) -> None:
        if not self._keeps:
            return
        with storage.explained(self._path), self._path.open("ab") as stream:
            stream.write((json.dumps(line) + "\n").encode())
            stream.flush()
            self.bytes = stream.tell()
        if self._board is not None:
            for name, value in line.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{line['split']}/{name}", value, line["step"])

    def sync(self) -> None:
        """Before a checkpoint tells how long it is, it is on the disk."""
        if self._keeps and self._path.exists():
            with self._path.open("rb") as stream:
                os.fsync(stream.fileno())

    def forget_after(self, length: int) -> None:
        """Cut off what was written after a checkpoint, which is done again. A file that lost its
        end, as in a half-made copy, is not filled up."""
        if self._keeps:
            with storage.explained(self._path), self._path.open("ab") as stream:
                length = min(length, stream.tell())
                stream.truncate(length)
        self.bytes = length


def _board(run: Run, plan: Plan) -> Any:
    """A TensorBoard writer beside the run's files, when the plan asks for one."""
    if not plan.tensorboard:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ResourceError(
            "train.tensorboard needs tensorboard", fix="pip install 'headswap[track]'"
        ) from error
    return SummaryWriter(str(run.path / "tensorboard"))
