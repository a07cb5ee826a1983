"""The runs of an experiment on a Ray cluster, whose hosts share the experiment's folder.

A run is a task with a share of a host. Runs are idempotent and save themselves, so the run of a
worker that was killed, or whose host is gone, simply goes on elsewhere.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headswap.errors import Interrupted, ResourceError, StorageError
from headswap.experiment.jobs import TICK_S, News, Tasks, interruptible, told
from headswap.progress import Reporter
from headswap.wording import counted

RETRIES, SECONDS = 3, 5.0
W = TypeVar("W")


class Cluster:
    """Stands where ``Workers`` stands: the same work, on other hosts."""

    def __init__(self, cpus: int, gpus: float, threads: int, folder: Path, report: Reporter):
        self._cpus, self._gpus, self._threads = cpus, gpus, threads
        self._folder, self._report = folder, report
        self._ray: Any = None

    def __enter__(self) -> Cluster:
        self._ray = connected()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass

    def each(self, title: str, tasks: Tasks[W]) -> None:
        """Do all the work; the first failure ends it."""
        hosts = sum(node["Alive"] for node in self._ray.nodes())
        where = f"{hosts} host{'s' if hosts > 1 else ''}"
        with interruptible():
            told(self._report, title, self._done(title, tasks), tasks, where)

    def _done(self, title: str, tasks: Tasks[W]) -> News[W]:
        ray = self._ray
        task = ray.remote(_do).options(
            num_cpus=self._cpus,
            num_gpus=self._gpus,
            max_retries=RETRIES,
            name=f"headswap: {title}",
        )

        def begun(items: Sequence[W]) -> dict[Any, W]:
            more = (self._threads, str(self._folder))
            return {task.remote(tasks.work, item, *more): item for item in items}

        waiting = begun(tasks.items)
        try:
            while waiting:
                ready, _ = ray.wait(list(waiting), timeout=TICK_S)
                if not ready:
                    yield None, waiting.values()
                for reference in ready:
                    ray.get(reference)
                    item = waiting.pop(reference)
                    waiting |= begun(tasks.then(item))
                    yield item, waiting.values()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; runs go on from their last checkpoints") from error
        except ray.exceptions.RayError as error:
            raise ResourceError(
                f"a run's worker was killed {RETRIES + 1} times (out of memory?), or the cluster "
                f"is gone ({type(error).__name__})",
                fix="resume with more --cpus a run",
            ) from error
        finally:
            for reference in waiting:  # they save what they have
                ray.cancel(reference)


def connected() -> Any:
    """Ray, joined to the cluster that RAY_ADDRESS names or that this host is part of."""
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of runs that were cancelled
    try:
        import ray
    except ImportError as error:
        raise ResourceError("--on ray needs Ray", fix="pip install 'headswap[scale]'") from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "auto")
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            raise ResourceError(
                f"no Ray cluster can be reached ({str(error).splitlines()[0]})",
                fix="start one with ray start --head, or name one: RAY_ADDRESS=host:6379",
            ) from error
    return ray


def _knock(address: str) -> None:
    """Ask whether anyone is there: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=SECONDS).close()


def share_out(cpus: int, gpus: float) -> tuple[int, int]:
    """How many runs the cluster takes at once, and how many threads each has."""
    ray = connected()
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    places = 0
    for node in alive:
        by_cpu = node.get("CPU", 0.0) / cpus
        places += int(min(by_cpu, node.get("GPU", 0.0) / gpus) if gpus else by_cpu)
    if not places:
        share = counted(cpus, "CPU") + (f" and {gpus:g} GPUs" if gpus else "")
        raise ResourceError(
            f"no host of the cluster has {share} for a run", fix="give fewer --cpus or --gpus"
        )
    return places, cpus


def _do(work: Callable[[W], None], item: W, threads: int, folder: str) -> None:
    """One piece of work, in a worker."""
    import torch

    if not Path(folder).is_dir():
        raise StorageError(
            f"the host {os.uname().nodename} does not see it",
            where=folder,
            fix="put the experiment on a disk that all hosts share",
        )
    torch.set_num_threads(threads)
    work(item)
