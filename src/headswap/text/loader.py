"""Batches of examples whose order is a pure function of (seed, epoch, position).

There is no iterator to save: any batch of any epoch can be asked for at any time, which is
what makes a run resumable at every step and equal on any number of ranks. A global batch is
defined first; rank r of n takes every n-th example of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import numpy as np

from headswap.randomness import derive, shuffled
from headswap.text.sharded import Sharded
from headswap.text.shards import Shards
from headswap.types import Ids

BUCKET_BATCHES = 32
HELD_OUT_SHARDS = 8


@dataclass(frozen=True)
class Window:
    """Up to length + 1 consecutive tokens: each but the last is read, each but the first
    may be predicted. Windows overlap by that one token, so every token is scored once."""

    ids: Ids


@dataclass(frozen=True)
class Labelled:
    """A text's ids, without specials, and the number of its label."""

    ids: Ids
    label: int


@dataclass(frozen=True)
class Pair:
    """A source and a target, without specials; ``backwards`` where they are exchanged."""

    source: Ids
    target: Ids
    backwards: bool = False

    @property
    def ids(self) -> Ids:
        """The longer side, by which pairs are sorted."""
        return self.source if len(self.source) > len(self.target) else self.target


E = TypeVar("E", covariant=True)


class Loader(Protocol[E]):
    """``batches`` an epoch, each a list of examples."""

    batches: int

    def batch(self, epoch: int, index: int) -> Sequence[E]: ...


class Source(Protocol):
    """Windows to train on, in any order, and those that are held out."""

    count: int
    held_out: int

    def window(self, index: int) -> Window: ...
    def valid(self) -> list[int]: ...
    def train(self, positions: Ids, key: int) -> Ids: ...


class Windows:
    """The windows of a corpus, some of them held out by hash for validation.

    Windows do not overlap in what they score, so no validation token is ever trained on.
    """

    def __init__(self, shards: Shards | Sharded, length: int, seed: int, held_out: int = 0) -> None:
        self.shards, self.length, self.held_out = shards, length, held_out
        self._key = derive(seed, "split")
        self.count = max(0, -(-(len(shards) - 1) // length))

    def window(self, index: int) -> Window:
        start = index * self.length
        return Window(self.shards.read(start, start + self.length + 1))

    def valid(self) -> list[int]:
        return [int(i) for i in shuffled(np.arange(self.held_out), self.count, self._key)]

    def train(self, positions: Ids, key: int) -> Ids:
        """The windows at these positions of an epoch's order."""
        inner = shuffled(positions, self.count - self.held_out, key)
        return shuffled(inner + self.held_out, self.count, self._key)


class NearWindows:
    """The windows of a sharded corpus in an order that needs few shards at a time.

    An epoch takes the shards in a new order, ``near`` of them at once, and their windows in
    any order among these; so a corpus can be read through a cache that holds a part of it. No
    window reaches into another shard. What is held out is the end of a few shards.
    """

    def __init__(self, shards: Sharded, length: int, seed: int, near: int, held_out: int = 0):
        self.shards, self.length, self.near = shards, length, near
        sizes = np.array(shards.manifest.shard_tokens, dtype=np.int64)
        self._counts = np.maximum(0, -(-(sizes - 1) // length))
        self._firsts: Ids = np.concatenate([[0], np.cumsum(self._counts)])
        self.count = int(self._firsts[-1])
        self._away = np.zeros_like(self._counts)
        some = len(self._counts)
        share = -(-held_out // min(HELD_OUT_SHARDS, some))
        for shard in shuffled(np.arange(some), some, derive(seed, "split")):
            room = min(share, held_out - int(self._away.sum()), int(self._counts[shard]) // 2)
            self._away[shard] = room
        self.held_out = int(self._away.sum())
        self._plan = lru_cache(maxsize=8)(self._make_plan)

    def window(self, index: int) -> Window:
        shard = int(np.searchsorted(self._firsts, index, side="right")) - 1
        base = int(self.shards.starts[shard])
        start = base + (index - int(self._firsts[shard])) * self.length
        stop = min(start + self.length + 1, int(self.shards.starts[shard + 1]))
        return Window(self.shards.read(start, stop))

    def valid(self) -> list[int]:
        ends = self._firsts[1:]
        return [
            int(i)
            for shard in np.flatnonzero(self._away)
            for i in range(ends[shard] - self._away[shard], ends[shard])
        ]

    def train(self, positions: Ids, key: int) -> Ids:
        """The windows at these positions of an epoch's order; what comes next is fetched."""
        order, ends, groups = self._plan(key)
        found = np.empty(len(positions), dtype=np.int64)
        group_of = np.searchsorted(groups, positions, side="right")
        for group in np.unique(group_of):
            self.shards.ahead([int(i) for i in order[group * self.near : (group + 2) * self.near]])
            chosen = group_of == group
            first = int(groups[group - 1]) if group else 0
            size = int(groups[group]) - first
            within = first + shuffled(positions[chosen] - first, size, derive(key, "near", group))
            place = np.searchsorted(ends, within, side="right")
            shard = order[place]
            left = ends[place] - within  # windows of the shard from this one on
            found[chosen] = self._firsts[shard] + (self._counts - self._away)[shard] - left
        return found

    def _make_plan(self, key: int) -> tuple[Ids, Ids, Ids]:
        """The shards in the epoch's order, and where each of them and each group ends."""
        some = len(self._counts)
        order = shuffled(np.arange(some), some, derive(key, "shards"))
        ends = np.cumsum((self._counts - self._away)[order])
        last = np.minimum(np.arange(self.near, some + self.near, self.near), some) - 1
        return order, ends, ends[last]


class WindowLoader:
    """Training batches of windows, in a new order each epoch."""

    def __init__(self, windows: Source, batch: int, seed: int) -> None:
        self._windows, self._size, self._seed = windows, batch, seed
        self._count = windows.count - windows.held_out
        self.batches = -(-self._count // batch)

    def batch(self, epoch: int, index: int) -> list[Window]:
        positions = np.arange(index * self._size, min((index + 1) * self._size, self._count))
        chosen = self._windows.train(positions, derive(self._seed, "order", epoch))
        return [self._windows.window(int(i)) for i in chosen]


class MixedLoader:
    """Windows of several corpora in a mixture that may move over ``steps``.

    Every step gives its places to the corpora that are owed most, so each is never more than a
    window or so away from its share, and this order too is a function of the step alone. A corpus
    that is read through begins anew.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float],
        weights_end: Sequence[float],
        batch: int,
        seed: int,
        steps: int,
    ) -> None:
        self._sources, self._size, self._seed = sources, batch, seed
        self._start = np.array(weights) / sum(weights)
        self._slope = (np.array(weights_end) / sum(weights_end) - self._start) / max(steps, 1)
        self._reached = (0, np.zeros(len(weights), np.int64))
        self.batches = -(-sum(s.count - s.held_out for s in sources) // batch)

    def batch(self, epoch: int, index: int) -> list[Window]:
        step = epoch * self.batches + index
        begin, end = self._read_before(step), self._read_before(step + 1)
        chosen: list[Window] = []
        for number, source in enumerate(self._sources):
            places = np.arange(begin[number], end[number])
            turns, within = np.divmod(places, source.count - source.held_out)
            for turn in np.unique(turns):
                key = derive(self._seed, "order", number, int(turn))
                found = source.train(within[turns == turn], key)
                chosen += [source.window(int(i)) for i in found]
        return chosen

    def _read_before(self, step: int) -> Ids:
        """How many windows of each corpus; counted on from the step that was asked for last."""
        reached, read = self._reached
        if step < reached:
            reached, read = 0, np.zeros_like(read)
        for now in range(reached + 1, step + 1):
            shares = self._start * now + self._slope * now**2 / 2
            read = read + self._shared_out(self._size * shares - read)
        self._reached = (step, read)
        return read

    def _shared_out(self, owed: np.ndarray) -> Ids:
        """A batch's places: the whole windows that each corpus is owed, the others by what is
        left of it."""
        counts = np.maximum(np.floor(owed + 1e-9), 0).astype(np.int64)
        while over := int(counts.sum()) - self._size:
            change = -1 if over > 0 else 1
            able = np.flatnonzero((counts > 0) | (change > 0))
            most_first = able[np.argsort(change * (counts - owed)[able], kind="stable")]
            counts[most_first[: abs(over)]] += change
        return counts


class BucketLoader(Generic[E]):
    """Training batches of texts of similar length, in a new order each epoch.

    The epoch's shuffled order is cut into runs of a few batches; each run is sorted by
    length and cut into batches, and the batches are shuffled again.
    """

    def __init__(self, examples: Sequence[E], lengths: Ids, batch: int, seed: int) -> None:
        self._examples, self._lengths = examples, np.asarray(lengths)
        self._size, self._seed = batch, seed
        self.batches = -(-len(examples) // batch)
        self._plan = lru_cache(maxsize=2)(self._make_plan)

    def batch(self, epoch: int, index: int) -> list[E]:
        return [self._examples[int(i)] for i in self._plan(epoch)[index]]

    def _make_plan(self, epoch: int) -> list[Ids]:
        count = len(self._examples)
        order = shuffled(np.arange(count), count, derive(self._seed, "order", epoch))
        run = BUCKET_BATCHES * self._size
        batches: list[Ids] = []
        for start in range(0, count, run):
            part = order[start : start + run]
            part = part[np.argsort(self._lengths[part], kind="stable")]
            batches += [part[i : i + self._size] for i in range(0, len(part), self._size)]
        turn = shuffled(np.arange(len(batches)), len(batches), derive(self._seed, "buckets", epoch))
        return [batches[int(i)] for i in turn]


class TokenLoader(Generic[E]):
    """Training batches of at most so many tokens, padding included, of similar length.

    Sorted by length, the cuts between batches depend on the lengths alone; examples of one
    length trade places in every epoch, so batch mates change and the number of batches does
    not.
    """

    def __init__(self, examples: Sequence[E], lengths: Ids, tokens: int, seed: int) -> None:
        self._examples, self._lengths, self._seed = examples, np.asarray(lengths), seed
        ordered = np.sort(self._lengths)
        cuts, start = [0], 0
        for place, length in enumerate(ordered):
            if (place - start + 1) * length > tokens and place > start:
                cuts.append(place)
                start = place
        self._cuts = [*cuts, len(ordered)]
        self.batches = len(cuts)
        self._plan = lru_cache(maxsize=2)(self._make_plan)

    def batch(self, epoch: int, index: int) -> list[E]:
        return [self._examples[int(i)] for i in self._plan(epoch)[index]]

    def _make_plan(self, epoch: int) -> list[Ids]:
        count = len(self._examples)
        order = shuffled(np.arange(count), count, derive(self._seed, "order", epoch))
        order = order[np.argsort(self._lengths[order], kind="stable")]
        parts = [order[a:b] for a, b in pairwise(self._cuts)]
        turn = shuffled(np.arange(len(parts)), len(parts), derive(self._seed, "buckets", epoch))
        return [parts[int(i)] for i in turn]


def fitted(ids: Ids, room: int, long: str) -> Ids:
    """The part of a text that fits: its head, or with ``head+tail`` half of it from the end."""
    if len(ids) > room and long == "head+tail":
        return np.concatenate([ids[: room // 2], ids[room // 2 - room :]])
    return ids[:room]


def by_length(lengths: Sequence[int], batch: int, tokens: int | None = None) -> list[list[int]]:
    """Indices in batches of similar length, longest first: for evaluation, where order is
    free and the largest batch should fail first if memory is short. ``tokens`` bounds a batch
    too, its padding counted; a longer text goes alone."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        last = batches[-1] if batches else []
        full = tokens is not None and last and (len(last) + 1) * lengths[last[0]] > tokens
        if full or len(last) == batch or not batches:
            batches.append([i])
        else:
            last.append(i)
    return batches


def share(examples: Sequence[E], rank: int, world: int) -> Sequence[E]:
    """The part of a global batch that one rank works on."""
    return examples[rank::world]
