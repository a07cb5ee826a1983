"""Batches made one step ahead, beside the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from headswap.objectives import Batch


class Feed:
    """The parts of every step's batch, the next step's made while this one is computed.

    A batch is a function of its step alone, so nothing depends on how far ahead it was made.
    """

    def __init__(self, make: Callable[[int], list[Batch]], end: int | None) -> None:
        self._make, self._end = make, end
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._ahead: tuple[int, Future[list[Batch]]] | None = None

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def parts(self, step: int) -> list[Batch]:
        """This step's parts; the next step's are begun."""
        ready = self._ahead
        found = ready[1].result() if ready and ready[0] == step else self._make(step)
        self._ahead = None
        if self._end is None or step + 1 < self._end:
            self._ahead = (step + 1, self._pool.submit(self._make, step + 1))
        return found
