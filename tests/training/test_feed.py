"""Batches made ahead are the same batches, and failures are not lost."""

from __future__ import annotations

import threading

import pytest

from headswap.training.feed import Feed


def test_each_step_is_made_once_and_ahead():
    made: list[int] = []
    ahead = threading.Event()

    def make(step):
        made.append(step)
        if step == 1:
            ahead.set()
        return [step]

    with Feed(make, end=4) as feed:
        assert feed.parts(0) == [0]
        assert ahead.wait(10), "the next step is made before it is asked for"
        assert [feed.parts(step) for step in (1, 2, 3)] == [[1], [2], [3]]
    assert made == [0, 1, 2, 3], "nothing beyond the end, nothing twice"


def test_a_jump_is_made_on_demand():
    with Feed(lambda step: [step], end=None) as feed:
        assert feed.parts(5) == [5]
        assert feed.parts(9) == [9]


def test_a_failure_reaches_the_loop():
    def make(step):
        if step == 1:
            raise ValueError("damaged shard")
        return [step]

    with Feed(make, end=None) as feed:
        feed.parts(0)
        with pytest.raises(ValueError, match="damaged shard"):
            feed.parts(1)
