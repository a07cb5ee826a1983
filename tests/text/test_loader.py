from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter

import numpy as np
import pytest

from conftest import corpus_text
from headswap.text import shards
from headswap.text.loader import (
    BucketLoader,
    MixedLoader,
    WindowLoader,
    Windows,
    by_length,
    share,
    shuffled,
)


@pytest.fixture
def corpus(tokens):
    return shards.prepare(lambda: corpus_text(80).split("\n\n"), tokens, "source")


def test_windows_score_every_token_once(corpus):
    windows = Windows(corpus, 16, seed=0)
    cut = [windows.window(i).ids for i in range(windows.count)]
    scored = np.concatenate([ids[1:] for ids in cut])
    assert np.array_equal(scored, corpus.read(1, len(corpus)))
    assert all(a[-1] == b[0] for a, b in itertools.pairwise(cut))


def test_training_and_validation_windows_never_meet(corpus):
    windows = Windows(corpus, 16, seed=0, held_out=9)
    loader = WindowLoader(windows, batch=8, seed=0)
    held = {windows.window(i).ids.tobytes() for i in windows.valid()}
    for epoch in range(2):
        seen = [w.ids.tobytes() for i in range(loader.batches) for w in loader.batch(epoch, i)]
        assert len(seen) == windows.count - 9
        everything = Counter(windows.window(i).ids.tobytes() for i in range(windows.count))
        assert Counter(seen) + Counter(held) == everything


def test_each_epoch_has_its_own_order_and_any_batch_can_be_asked_for(corpus):
    loader = WindowLoader(Windows(corpus, 16, seed=0), batch=8, seed=0)
    again = WindowLoader(Windows(corpus, 16, seed=0), batch=8, seed=0)
    first = [loader.batch(0, i) for i in range(loader.batches)]
    for i in reversed(range(loader.batches)):
        assert all(
            np.array_equal(a.ids, b.ids) for a, b in zip(first[i], again.batch(0, i), strict=True)
        )
    assert any(
        not np.array_equal(a.ids, b.ids) for a, b in zip(first[0], loader.batch(1, 0), strict=True)
    )


def test_buckets_hold_every_example_once_and_waste_little():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 500, 1000)
    loader = BucketLoader(list(range(1000)), lengths, batch=8, seed=3)
    for epoch in range(3):
        batches = [loader.batch(epoch, i) for i in range(loader.batches)]
        assert sorted(functools.reduce(operator.iadd, batches, [])) == list(range(1000))
        padded = sum(len(batch) * lengths[batch].max() for batch in batches)
        assert padded < 1.1 * lengths.sum()
    assert loader.batch(0, 5) != loader.batch(1, 5)
    assert loader.batch(0, 5) == BucketLoader(list(range(1000)), lengths, 8, 3).batch(0, 5)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_share_one_global_order(world):
    whole = list(range(24))
    parts = [share(whole, rank, world) for rank in range(world)]
    rebuilt = [None] * 24
    for rank, part in enumerate(parts):
        rebuilt[rank::world] = part
    assert rebuilt == whole


def test_by_length_bounds_tokens():
    lengths = [3, 90, 40, 30, 2, 41, 40]
    groups = by_length(lengths, 3, 82)
    assert groups == [[1], [5, 2], [6, 3], [0, 4]]
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert by_length([], 4, 10) == [] and by_length([5, 5, 5, 5], 3, 100) == [[0, 1, 2], [3]]


def test_by_length_covers_everything_longest_first():
    groups = by_length([3, 9, 1, 9, 4], 2)
    assert groups == [[1, 3], [4, 0], [2]]


def test_a_mixture_reads_each_corpus_by_its_weight(tokens):
    sizes = (300, 60)
    sources = [
        Windows(
            shards.prepare(lambda n=n: corpus_text(n, seed=n).split("\n\n"), tokens, f"s{n}"),
            16,
            seed=0,
        )
        for n in sizes
    ]
    held = [{s.window(i).ids.tobytes() for i in range(s.count)} for s in sources]
    loader = MixedLoader(sources, [1.0, 3.0], [3.0, 1.0], batch=8, seed=0, steps=100)
    seen = [[], []]
    for step in range(100):
        batch = loader.batch(*divmod(step, loader.batches))
        assert len(batch) == 8
        counts = [sum(w.ids.tobytes() in names for w in batch) for names in held]
        for kept, count in zip(seen, counts, strict=True):
            kept.append(count)
    first, second = (np.array(kept) for kept in seen)
    assert abs(first[:10].mean() - 2.25) < 0.5 and abs(first[-10:].mean() - 5.75) < 0.5
    assert abs(first.sum() - 400) < 12 and abs(second.sum() - 400) < 12
    again = MixedLoader(sources, [1.0, 3.0], [3.0, 1.0], batch=8, seed=0, steps=100)
    for one, two in zip(again.batch(0, 17), loader.batch(0, 17), strict=True):
        assert np.array_equal(one.ids, two.ids)


def test_a_small_corpus_is_read_again_in_another_order(tokens):
    source = Windows(
        shards.prepare(lambda: corpus_text(20).split("\n\n"), tokens, "small"), 16, seed=0
    )
    loader = MixedLoader([source], [1.0], [1.0], batch=source.count, seed=0, steps=3)
    epochs = [[w.ids.tobytes() for w in loader.batch(e, 0)] for e in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize(("weights", "batch"), [([1, 1], 3), ([3, 2], 8), ([1, 1], 32)])
def test_of_a_mixture_no_window_is_read_twice_before_all_are_read(corpus, weights, batch):
    sources = [Windows(corpus, 16, seed=0), Windows(corpus, 8, seed=1)]
    loader = MixedLoader(sources, weights, weights, batch=batch, seed=0, steps=1_000)
    every = [Counter(s.window(i).ids.tobytes() for i in range(s.count)) for s in sources]
    read = [Counter(), Counter()]
    for step in range(400 // batch + 40):
        some = loader.batch(*divmod(step, loader.batches))
        assert len(some) == batch
        for window in some:
            read[window.ids.tobytes() not in every[0]][window.ids.tobytes()] += 1
    for counts, known in zip(read, every, strict=True):
        both = every[0].keys() & every[1].keys()
        own = {key: number for key, number in known.items() if key not in both}
        turns = [counts[key] / number for key, number in own.items()]
        assert max(turns) - min(turns) <= 1


class Numbers:
    """A corpus whose windows are their own numbers."""

    def __init__(self, count):
        self.count, self.held_out = count, 0

    def train(self, positions, key):
        return shuffled(positions, self.count, key)

    def window(self, index):
        return index


@pytest.mark.parametrize("corpora", [3, 12, 20])
def test_a_mixture_of_many_corpora_keeps_their_shares_and_its_batch(corpora):
    weights = [1 + i % 3 for i in range(corpora)]
    ends = weights[::-1]
    sources = [Numbers(100 + i) for i in range(corpora)]
    loader = MixedLoader(sources, weights, ends, batch=8, seed=0, steps=400)
    before = np.zeros(corpora, int)
    for step in range(1, 401):
        read = loader._read_before(step)
        assert read.sum() == 8 * step and (read >= before).all()
        start, end = np.array(weights) / sum(weights), np.array(ends) / sum(ends)
        due = 8 * (start * step + (end - start) * step**2 / 800)
        assert np.abs(read - due).max() <= 2
        before = read
    chosen = Counter(loader.batch(0, 0))
    assert sum(chosen.values()) == 8
    again = MixedLoader(sources, weights, ends, batch=8, seed=0, steps=400)
    assert again.batch(*divmod(300, again.batches)) == loader.batch(*divmod(300, loader.batches))
