"""Work that is done side by side, and work that makes other work possible."""

from __future__ import annotations

import pytest

from headswap.errors import UsageError
from headswap.experiment.jobs import Tasks, Workers
from headswap.progress import Silent


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
    assert report.facts == [f"{number} of 5" for number in range(1, 6)]
    assert report.shares == sorted(report.shares) and report.shares[-1] == 1.0


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_failure_ends_it(count):
    with (
        pytest.raises(UsageError, match="cannot be done"),
        Workers(count, 1, Silent()) as workers,
    ):
        workers.each("failing", Tasks(fail, [1, 2], lambda _: 1.0))
