"""Requests of many clients, worked on together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Work = Callable[[Sequence[Any]], Sequence[Any]]


class QueueFull(Exception):
    """More is waiting than the server takes."""


@dataclass
class _Waiting:
    item: Any
    done: asyncio.Future[Any]
    since: float


class Batcher:
    """Items that arrive while a batch is computed make the next one: no client waits for
    company, and under load there is some. ``room`` items may wait; ``most`` go at once.

    ``key`` groups what can be computed together. One thread computes, so models are never
    used by two requests at a time.
    """

    def __init__(self, most: int, room: int, pool: ThreadPoolExecutor | None = None) -> None:
        self._most, self._room = most, room
        self._pool = pool or ThreadPoolExecutor(1, thread_name_prefix="model")
        self._queues: dict[Hashable, tuple[Work, list[_Waiting]]] = {}
        self._waiting = 0
        self._busy = False
        self.batches, self.items = 0, 0

    @property
    def waiting(self) -> int:
        return self._waiting

    async def submit(self, key: Hashable, work: Work, items: Sequence[Any]) -> list[Any]:
        """The results of a request's items; ``QueueFull`` at once when too much is waiting.
        Where there is room for one, there is for all: else a long request would never be let
        in, however idle the server is."""
        if self._waiting >= self._room:
            raise QueueFull
        loop, now = asyncio.get_running_loop(), time.monotonic()
        waiting = [_Waiting(item, loop.create_future(), now) for item in items]
        self._queues.setdefault(key, (work, []))[1].extend(waiting)
        self._waiting += len(waiting)
        self._go()
        return list(await asyncio.gather(*(one.done for one in waiting)))

    async def alone(self, work: Callable[[], Any]) -> Any:
        """One piece of work in the models' thread, in its turn."""
        if self._waiting >= self._room:
            raise QueueFull
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def _go(self) -> None:
        """Start the batch whose first item has waited longest, unless one is being computed."""
        if self._busy or not self._queues:
            return
        key = min(self._queues, key=lambda key: self._queues[key][1][0].since)
        work, queue = self._queues[key]
        some, rest = queue[: self._most], queue[self._most :]
        if rest:
            self._queues[key] = (work, rest)
        else:
            del self._queues[key]
        self._waiting -= len(some)
        some = [one for one in some if not one.done.cancelled()]
        if not some:
            self._go()
            return
        self._busy = True
        self.batches += 1
        self.items += len(some)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._pool, _done, work, [one.item for one in some])
        running.add_done_callback(lambda future: self._finish(future, some))

    def _finish(self, future: asyncio.Future[list[Any]], some: Sequence[_Waiting]) -> None:
        self._busy = False
        for one, result in zip(some, future.result(), strict=True):
            if one.done.cancelled():
                continue
            if isinstance(result, Exception):
                one.done.set_exception(result)
            else:
                one.done.set_result(result)
        self._go()

    def close(self) -> None:
        """Begin nothing more. What is being computed cannot be stopped."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _done(work: Work, items: Sequence[Any]) -> list[Any]:
    """What each item gave, or its error: where a batch fails, each is tried alone, so that
    nobody suffers from another's text."""
    try:
        return list(work(items))
    except Exception as error:
        return [error] if len(items) == 1 else [_done(work, [item])[0] for item in items]
