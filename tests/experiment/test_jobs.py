"""Work that is done side by side, and work that makes other work possible."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headswap.errors import Interrupted, UsageError
from headswap.experiment.design import Folder
from headswap.experiment.jobs import Tasks, Workers, Workshop, told
from headswap.experiment.plan import Arm, Job
from headswap.progress import Silent
from headswap.run import METRICS


class Told(Silent):
    def __init__(self):
        self.shares, self.facts = [], []

    def update(self, share, facts):
        self.shares.append(share)
        self.facts.append(facts)


def note(item):
    folder, number = item
    (folder / str(number)).touch()


def fail(item):
    raise UsageError(f"{item} cannot be done")


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_done_makes_more_possible(tmp_path, count):
    following = {1: [10, 11], 10: [100]}

    def then(item):
        return [(tmp_path, number) for number in following.get(item[1], ())]

    report = Told()
    later = [(tmp_path, number) for number in (10, 11, 100)]
    items = [(tmp_path, 1), (tmp_path, 2)]
    with Workers(count, 1, report) as workers:
        workers.each("counting", Tasks(note, items, lambda item: item[1], then, later))
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2", "10", "11", "100"}
    facts = [fact for fact in dict.fromkeys(report.facts) if fact != "0 of 5"]  # a slow start
    assert facts == [f"{number} of 5" for number in range(1, 6)]
    assert report.shares == sorted(report.shares) and report.shares[-1] == 1.0


def test_work_that_is_half_done_counts_by_half():
    """Many long runs that end together would otherwise look like none at all."""
    so_far = {"a": 0.5, "b": 0.25}
    news = [(None, ["a", "b"]), ("a", ["b"]), ("b", [])]
    report = Told()
    tasks = Tasks(print, ["a", "b"], lambda _: 2.0, so_far=lambda item: so_far[item])
    told(report, "training", iter(news), tasks)
    assert report.shares == [0.375, 0.625, 1.0]
    assert report.facts == ["0 of 2", "1 of 2", "2 of 2"]


def test_a_run_tells_how_far_it_is(tmp_path):
    arm = Arm("scratch", "scratch", "base")
    job = Job(arm, 100, 0, 1e-3, 8)
    shop = Workshop(Folder(tmp_path), None, None)
    assert shop.so_far(job) == 0.0
    path = shop.path(job)
    path.mkdir(parents=True)
    (path / METRICS).write_text(
        '{"split": "train", "epoch": 0.5}\n{"split": "valid", "epoch": 2}\n'
    )
    assert shop.so_far(job) == 0.25
    (path / METRICS).write_text('{"split": "valid", "strength": 0.1}\n')  # a linear model's
    assert shop.so_far(job) == 0.0


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_failure_ends_it(count):
    with (
        pytest.raises(UsageError, match="cannot be done"),
        Workers(count, 1, Silent()) as workers,
    ):
        workers.each("failing", Tasks(fail, [1, 2], lambda _: 1.0))


def interrupt(item):
    raise KeyboardInterrupt


def test_an_interrupt_is_told_as_one_by_a_single_worker_too():
    with pytest.raises(Interrupted, match="interrupted"), Workers(1, 1, Silent()) as workers:
        workers.each("stopping", Tasks(interrupt, [1], lambda _: 1.0))


def write_environment(path):
    (path / f"{os.getpid()}").write_text(os.environ.get("HEADSWAP_TRIED", "nothing"))


def test_workers_know_the_environment_of_now(tmp_path, monkeypatch):
    """Also those that come from a process which began before it was changed."""
    for value in ("once", "twice", None):
        folder = tmp_path / str(value)
        folder.mkdir()
        if value is None:
            monkeypatch.delenv("HEADSWAP_TRIED")
        else:
            monkeypatch.setenv("HEADSWAP_TRIED", value)
        with Workers(2, 1, Silent()) as workers:
            workers.each("looking", Tasks(write_environment, [folder], lambda _: 1.0))
        (found,) = (path.read_text() for path in folder.iterdir())
        assert found == (value or "nothing")


def sleep(path):
    (path / f"{os.getpid()}").touch()
    time.sleep(60)


ALONE = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_jobs import Silent, Tasks, Workers, sleep

if __name__ == "__main__":
    with Workers(2, 1, Silent()) as workers:
        workers.each("sleeping", Tasks(sleep, [Path({folder!r})] * 2, lambda _: 1.0))
"""


def test_workers_end_with_an_experiment_that_is_killed(tmp_path):
    folder, script = tmp_path / "pids", tmp_path / "alone.py"
    folder.mkdir()
    script.write_text(ALONE.format(tests=str(Path(__file__).parent), folder=str(folder)))
    with subprocess.Popen([sys.executable, str(script)]) as experiment:
        wait_for(lambda: len(list(folder.iterdir())) == 2)
        experiment.kill()
    pids = [int(path.name) for path in folder.iterdir()]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def wait_for(condition, seconds=40.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
