"""The single runs of an experiment, and how several are made side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Generic, TypeVar

import torch

from headswap import config, linear, pipeline, predictions, settings, storage, use
from headswap.errors import Interrupted, ResourceError
from headswap.experiment import bases
from headswap.experiment.design import Design, Folder
from headswap.experiment.plan import Base, Job, Plan
from headswap.progress import Reporter, Silent
from headswap.run import CHECKPOINTS, CONFIG, TIMING, TOKENIZER, Run
from headswap.settings import Settings
from headswap.text import corpus, files
from headswap.text.corpus import Reading
from headswap.training import signals
from headswap.types import Table

W = TypeVar("W")
SAVING_S = 10.0
TICK_S = 5.0
STOPPED = "interrupted; every run that had begun was saved"
METHOD = "forkserver" if sys.platform == "linux" else "spawn"
"""How workers begin. Where it is safe, they are forked from a process that has loaded all they
need and done nothing else: it has touched no GPU and computed nothing."""


@dataclass(frozen=True)
class Workshop:
    """All that a worker needs to make any run of one experiment."""

    folder: Folder
    design: Design
    plan: Plan

    def path(self, job: Job) -> Path:
        return self.folder.run(job.arm.name, job.size, job.seed, job.rate)

    def base_path(self, name: str) -> Path:
        base = next(base for base in self.plan.bases if base.name == name)
        return bases.located(self.folder, base)

    def make(self, job: Job) -> None:
        """Bring one run to its end, or find it there."""
        data, valid = self.folder.subset(job.size, job.seed), self.folder.data("valid")
        out = self.path(job)
        if not job.arm.neural:
            twin = self.twin(job)
            if twin and Run(self.path(twin)).finished and not Run(out).finished:
                with storage.copied(self.path(twin), out) as staged:
                    _renamed(Run(staged), data, job.seed)
                return
            reading = Reading(clean=self.design.clean)
            linear.fit(self.plan.labels, data, valid, out, job.seed, reading)
            return
        run = Run(out)
        if run.exists() and self._finds(run, data):
            pipeline.execute(run, Silent(), planned=True)
        else:
            storage.remove(out)  # of a worker that was killed as it began, or of a moved folder
            pipeline.start(self.settings(job, data, valid), out, Silent(), planned=True)
        storage.remove(out / CHECKPOINTS)

    def _finds(self, run: Run, data: Path) -> bool:
        """Whether a run has its data where it knows them; one that is finished needs none."""
        return run.finished or run.settings()["data"]["train"] == [str(data.resolve())]

    def so_far(self, job: Job) -> float:
        """The share of a run's epochs that it has noted down."""
        try:
            *_, last = Run(self.path(job)).metrics()
            return float(min(1.0, last["epoch"] / job.epochs))
        except (ValueError, KeyError, OSError):  # nothing yet; or a linear model, without epochs
            return 0.0

    def twin(self, job: Job) -> Job | None:
        """The first seed's run where this one is the same: fitting a linear model has no
        randomness, and with all labels every seed has the same."""
        if job.arm.neural or job.seed == 0:
            return None
        first, own = (self.folder.subset(job.size, seed).read_bytes() for seed in (0, job.seed))
        return replace(job, seed=0) if first == own else None

    def make_base(self, base: Base) -> None:
        """Bring one base to its end, or find it there."""
        bases.make(self.folder, self.design, base, self.plan.bases, Silent())

    def test(self, job: Job) -> None:
        """Score a finished run on the test set, once."""
        run = Run(self.path(job))
        if run.tested:
            run.seal()
            return
        path = self.folder.data("test")
        model = use.load(run, self.design.device)
        rows, truth = corpus.labelled_as([path], Reading(), self.plan.labels)
        logits = model.logits([row.text for row in rows])
        lines = predictions.lines(logits, truth, self.plan.labels)
        hashes = {"sha256": files.sha256([path])}
        run.add_test(lines, predictions.scores(logits, truth), hashes)

    def settings(self, job: Job, data: Path, valid: Path) -> Settings:
        """A neural arm's settings. Scratch and pretrained differ in their first weights and
        in nothing else."""
        assert job.arm.base is not None
        base = Run.open(self.base_path(job.arm.base))
        sources: Table = {"train": [str(data)], "valid": [str(valid)]}
        changes: list[Table] = [*map(config.parse_assignment, self.design.changes)]
        plan: Table = {
            "epochs": job.epochs,
            "lr": job.rate,
            "seed": job.seed,
            "keep": "best",
            "threads": self.plan.threads,
            "device": self.design.device,
        }
        if job.arm.kind == "scratch":
            changes.append({"tokenizer": {"model": str((base.path / TOKENIZER).resolve())}})
        else:
            sources["base"] = base.reference
        if job.arm.kind == "probe":
            plan["freeze"] = "backbone"
        sources["clean"] = list(self.design.clean)
        changes.append({"classify": {"labels": list(self.plan.labels)}})
        known = settings.from_table(base.settings())
        return settings.resolve(
            "classify", None, [*changes, {"data": sources, "train": plan}], base=known
        )


def _renamed(run: Run, data: Path, seed: int) -> None:
    """Make a copied run another seed's: it took no time."""
    table = run.settings()
    table["data"]["train"], table["train"]["seed"] = [str(data.resolve())], seed
    storage.write(run.path / CONFIG, config.dumps(table))
    (run.path / TIMING).unlink(missing_ok=True)
    run.finish()


@dataclass(frozen=True)
class Tasks(Generic[W]):
    """Work on items, which are begun in this order. ``then`` names the ones that a finished
    item makes possible; as many as ``later`` are foreseen, and as long as those. ``so_far`` is
    the share of an unfinished one that is done."""

    work: Callable[[W], None]
    items: Sequence[W]
    cost: Callable[[W], float]
    then: Callable[[W], Sequence[W]] = lambda _: ()
    later: Sequence[W] = ()
    so_far: Callable[[W], float] = lambda _: 0.0


News = Iterator[tuple[W | None, Collection[W]]]
"""From time to time, the item that is finished now, if any, and those that are not."""


def load_ahead() -> None:
    """Begin to load what workers need, beside whatever comes before them."""
    if METHOD == "forkserver":
        multiprocessing.set_forkserver_preload([__name__, *linear.LIBRARIES])
        forkserver.ensure_running()


class Workers:
    """Processes that do a few pieces of work at a time; with one worker, this process."""

    def __init__(self, count: int, threads: int, report: Reporter) -> None:
        self._count, self._threads, self._report = count, threads, report
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        if self._count > 1:
            load_ahead()
            context = multiprocessing.get_context(METHOD)
            begin = (dict(os.environ), self._threads)
            self._pool = ProcessPoolExecutor(self._count, context, _begin_worker, begin)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._pool is None:
            return
        # After a failure the others save what they have, also those few that the pool had
        # already handed out; a scheduler's request to stop reaches this process alone.
        workers = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        while kind is not None and (left := [one for one in workers if one.is_alive()]):
            for worker in left:
                worker.terminate()
            again = time.monotonic() + SAVING_S
            while time.monotonic() < again and any(worker.is_alive() for worker in left):
                time.sleep(0.05)

    def each(self, title: str, tasks: Tasks[W]) -> None:
        """Do all the work; the first failure ends it."""
        try:
            with interruptible():
                told(self._report, title, self._done(tasks), tasks)
        except KeyboardInterrupt as error:
            raise Interrupted(STOPPED) from error

    def _done(self, tasks: Tasks[W]) -> News[W]:
        work = tasks.work
        if self._pool is None:
            signals.forget()
            queue = deque(tasks.items)
            while queue:
                item = queue.popleft()
                work(item)
                if signals.asked():  # in the last step of a run, which could end
                    raise Interrupted(STOPPED)
                queue.extend(tasks.then(item))
                yield item, queue
            return
        try:
            pool = self._pool

            def begin(item: W) -> Future[None]:
                return pool.submit(_unless_stopped, work, item)

            waiting: dict[Future[None], W] = {begin(item): item for item in tasks.items}
            while waiting:
                ready, _ = wait(waiting, timeout=TICK_S, return_when=FIRST_COMPLETED)
                if not ready:
                    yield None, waiting.values()
                for future in ready:
                    future.result()
                    item = waiting.pop(future)
                    waiting |= {begin(new): new for new in tasks.then(item)}
                    yield item, waiting.values()
        except BrokenProcessPool as error:
            raise ResourceError(
                "a worker process was killed (out of memory?)", fix="resume with fewer --workers"
            ) from error


def _unless_stopped(work: Callable[[W], None], item: W) -> None:
    """A worker that was asked to stop does not begin what the pool had handed out before."""
    if signals.asked():
        raise Interrupted(STOPPED)
    work(item)


def told(report: Reporter, title: str, news: News[W], tasks: Tasks[W], where: str = "") -> None:
    """One progress view of all that is being done, wherever it is done."""
    every = [*tasks.items, *tasks.later]
    total, done, number = sum(map(tasks.cost, every)) or 1.0, 0.0, 0
    report.begin(title)
    try:
        for item, unfinished in news:
            if item is not None:
                done += tasks.cost(item)
                number += 1
            begun = sum(tasks.cost(one) * tasks.so_far(one) for one in unfinished)
            facts = f"{number} of {len(every)}" + (f" on {where}" if where else "")
            report.update((done + begun) / total, facts)
    finally:
        report.end()


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, a scheduler's request to stop is the user's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _begin_worker(environment: dict[str, str], threads: int) -> None:
    """Set the threads, and the environment of now: this process comes from one that began
    earlier. Stop, as if asked to, when the experiment itself is gone. Ctrl-C in a terminal
    reaches all its processes: the experiment passes it on, once."""
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    experiment = multiprocessing.parent_process()
    assert experiment is not None

    def watch() -> None:
        experiment.join()
        for _ in range(60):  # the first may end a training, which saves; the next ends the rest
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
