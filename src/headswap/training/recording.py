"""Steps that a GPU replays as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headswap.objectives import Batch

SCARCE = 0.25  # of a GPU's memory: below it, what is cached is given back before a recording


@dataclass(frozen=True)
class Recording:
    """A step that can be played again once new values are put into its tensors."""

    graph: torch.cuda.CUDAGraph
    tensors: list[Tensor]
    counts: dict[str, Tensor]

    def play(self, parts: Sequence[Batch], counts: Mapping[str, float]) -> None:
        for tensor, value in zip(self.tensors, tensors_of(parts), strict=True):
            tensor.copy_(value, non_blocking=True)
        for name, count in counts.items():
            self.counts[name].fill_(count)
        self.graph.replay()


class Recorder:
    """Records as ``torch.cuda.graph`` does. That also gives all free memory back before every
    recording, the host's too; to get it again takes longer than to record, and texts of thirty
    lengths are thirty recordings."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._pool: Any = None

    @contextmanager
    def recording(self, graph: torch.cuda.CUDAGraph, first: bool) -> Iterator[None]:
        """Inside, this thread's kernels are recorded and do not run; another thread prepares
        the next batch meanwhile. All recordings share their memory."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        free, total = torch.cuda.mem_get_info()
        if first or free < SCARCE * total:
            torch.cuda.empty_cache()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)


def tensors_of(parts: Sequence[Batch]) -> list[Tensor]:
    """A batch's tensors, always in the same order."""
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    for part in parts:
        part.map(take)
    return found


def shapes_of(parts: Sequence[Batch]) -> Any:
    """All that decides which kernels run: shapes, who sees whom, which terms there are."""

    def inputs(some: Any) -> Any:
        seen = some.visibility
        return (
            tuple(some.ids_BT.shape),
            seen.rule,
            seen.documents_BS is None,
            some.positions_BT is None,
            None if some.source is None else inputs(some.source),
        )

    def targets(some: Any) -> Any:
        every = (some.answers_N, some.rows_N, some.lengths_B, some.owners_B)
        return tuple(None if tensor is None else tuple(tensor.shape) for tensor in every)

    return tuple(
        (inputs(part.inputs), tuple((name, targets(t)) for name, t in part.targets.items()))
        for part in parts
    )
