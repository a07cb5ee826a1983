"""Reading shards: from this disk, from elsewhere, in an order that needs few at a time."""

from __future__ import annotations

import sys

import fsspec
import numpy as np
import pytest

from conftest import corpus_text
from headswap import api
from headswap.errors import DataError, ResourceError, StorageError, UsageError
from headswap.randomness import derive
from headswap.text import remote, sharded, sharding, stretches
from headswap.text.loader import MixedLoader, NearWindows, WindowLoader, Windows
from headswap.text.sharded import Sharded


@pytest.fixture
def folder(tokens, tmp_path, monkeypatch):
    cut = stretches.cut
    monkeypatch.setattr(sharding.stretches, "cut", lambda paths, size: cut(paths, 2_000))
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    path = tmp_path / "text.txt"
    path.write_text(corpus_text(150), "utf-8")
    sharding.make([path], tokens, tmp_path / "shards")
    return tmp_path / "shards"


def elsewhere(folder, name="corpus"):
    """The folder's files in a store that is not this disk."""
    store = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            store.pipe(f"/{name}/{path.relative_to(folder)}", path.read_bytes())
    return f"memory://{name}"


@pytest.fixture(autouse=True)
def empty_store():
    fsspec.filesystem("memory").store.clear()


def cached(place):
    return {path.name for path in place.glob("tokens-*.bin")}


def test_elsewhere_and_here_are_the_same(folder):
    here = Sharded(folder)
    for url in (elsewhere(folder), f"file://{folder}", f"file://{folder}/"):
        there = Sharded(sharded.located(url))
        assert not cached(there.folder) or url != "memory://corpus", "nothing is fetched unasked"
        for start in range(0, len(here), 1_700):
            assert np.array_equal(there.read(start, start + 900), here.read(start, start + 900))
        assert there.tokenizer().fingerprint == here.tokenizer().fingerprint
        assert not list(there.folder.glob(".staging*"))


def test_shards_are_fetched_ahead(folder):
    there = Sharded(sharded.located(elsewhere(folder)))
    there.ahead([3, 4])
    there._pool.shutdown(wait=True)
    assert cached(there.folder) == {"tokens-00003.bin", "tokens-00004.bin"}


def test_the_cache_gives_up_what_was_used_longest_ago(folder, monkeypatch):
    there = Sharded(sharded.located(elsewhere(folder)))
    size = there.manifest.shard_tokens[0] * 2
    monkeypatch.setenv("HEADSWAP_CACHE_GIB", str(3.5 * size / 2**30))
    for first in range(0, 8, 2):
        there.ahead([first, first + 1])
        for index in (first, first + 1):
            there.read(int(there.starts[index]), int(there.starts[index]) + 5)
    assert len(cached(there.folder)) <= 4
    assert np.array_equal(there.read(0, 50), Sharded(folder).read(0, 50)), "fetched again"
    monkeypatch.setenv("HEADSWAP_CACHE_GIB", "much")
    with pytest.raises(UsageError, match="HEADSWAP_CACHE_GIB"):
        remote.make_room(there.folder.parent, ())


def test_ranks_of_one_host_fetch_a_shard_once(folder, monkeypatch):
    place = sharded.located(elsewhere(folder))
    fetched, fetch = [], remote.fetch
    monkeypatch.setattr(remote, "fetch", lambda *given: (fetched.append(given[0]), fetch(*given)))
    ranks = [Sharded(place) for _ in range(4)]
    for rank in ranks:
        rank.ahead([0, 1])
    for rank in ranks:
        rank._pool.shutdown(wait=True)
        rank.read(0, 50)
    assert len(fetched) == 2


def test_a_cache_that_others_empty(folder, monkeypatch):
    there = Sharded(sharded.located(elsewhere(folder)))
    get = there._get

    def emptied(index):
        get(index)
        there._path(index).unlink()

    monkeypatch.setattr(there, "_get", emptied)
    with pytest.raises(StorageError, match="HEADSWAP_CACHE_GIB"):
        there.read(0, 5)


def test_a_damaged_cache_is_fetched_again(folder):
    url = elsewhere(folder)
    place = sharded.located(url)
    Sharded(place).read(0, 50)
    path = place / "tokens-00000.bin"
    path.write_bytes(b"\1" * path.stat().st_size)
    assert np.array_equal(Sharded(place).read(0, 50), Sharded(folder).read(0, 50))


def test_what_differs_from_the_manifest_is_refused(folder):
    url = elsewhere(folder)
    store = fsspec.filesystem("memory")
    store.pipe("/corpus/tokens-00001.bin", b"\0\0")
    store.rm("/corpus/tokens-00002.bin")
    place = sharded.located(url)
    there = Sharded(place)
    with pytest.raises(DataError, match=r"memory://corpus/tokens-00001.bin: does not match"):
        there.read(int(there.starts[1]), int(there.starts[1]) + 1)
    with pytest.raises(StorageError, match=r"tokens-00002.bin: is not there"):
        there.read(int(there.starts[2]), int(there.starts[2]) + 1)
    store.pipe("/corpus/tokens-00002.bin", (folder / "tokens-00002.bin").read_bytes())
    assert len(there.read(int(there.starts[2]), int(there.starts[2]) + 1)), "it is tried again"
    (place / "tokens-00002.bin").unlink()
    assert cached(place) == set() and not list(place.glob(".staging*"))
    path = folder / "tokens-00001.bin"
    path.write_bytes(b"\0" * path.stat().st_size)
    here = Sharded(folder)
    with pytest.raises(DataError, match=r"tokens-00001.bin: does not match"):
        here.read(int(here.starts[1]), int(here.starts[1]) + 1)
    path.write_bytes(b"\0")
    with pytest.raises(DataError, match="not as long"):
        Sharded(folder)
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        Sharded(folder)


def test_damaged_manifests_and_tokenizers(folder, tokens):
    content = (folder / "shards.json").read_text()
    for bad in ("{", "[]", "{}", content.replace('"format": 1', '"format": 9')):
        (folder / "shards.json").write_text(bad)
        with pytest.raises(DataError, match=r"shards.json: damaged"):
            Sharded(folder)
    (folder / "shards.json").write_text(content)
    path = folder / "tokenizer/tokenizer.json"
    path.write_text(path.read_text().replace("null", "[]"))
    with pytest.raises(DataError, match="tokenizer of the shards is damaged"):
        Sharded(folder)


def test_addresses_that_lead_nowhere(monkeypatch):
    with pytest.raises(StorageError, match=r"memory://nowhere/shards.json: is not there"):
        sharded.located("memory://nowhere")
    with pytest.raises(UsageError, match="strange://x"):
        sharded.located("strange://x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ResourceError, match=r"headswap\[scale\]"):
        sharded.located("memory://nowhere")


# The order that needs few shards at a time


@pytest.mark.parametrize(("near", "held"), [(1, 0), (2, 5), (3, 20), (100, 7)])
def test_every_window_once_an_epoch_and_none_that_is_held_out(folder, near, held):
    windows = NearWindows(Sharded(folder), 24, 0, near, held)
    assert windows.held_out == held == len(windows.valid())
    orders = []
    for epoch in range(2):
        key = derive(0, "order", epoch)
        parts = np.array_split(np.arange(windows.count - held), 7)
        found = np.concatenate([windows.train(part, key) for part in parts])
        assert sorted([*found, *windows.valid()]) == list(range(windows.count))
        orders.append(found)
    assert not np.array_equal(*orders)
    scored = sum(len(windows.window(i).ids) - 1 for i in range(windows.count))
    shards = len(windows.shards.manifest.shard_tokens)
    assert scored == len(windows.shards) - shards


def test_few_shards_are_open_at_a_time(folder):
    shards = Sharded(folder)
    windows = NearWindows(shards, 24, 0, 2)
    found = windows.train(np.arange(windows.count), 5)
    of = np.searchsorted(windows._firsts, found, side="right") - 1
    last = {shard: np.flatnonzero(of == shard) for shard in np.unique(of)}
    open_at = [
        sum(places[0] <= i <= places[-1] for places in last.values()) for i in range(len(of))
    ]
    assert max(open_at) == 2 < len(last)


def test_loaders_take_either_order(folder):
    near = NearWindows(Sharded(folder), 24, 0, 2, 4)
    loader = WindowLoader(near, 8, 0)
    whole = [window for i in range(loader.batches) for window in loader.batch(0, i)]
    assert len(whole) == near.count - 4
    mixed = MixedLoader([near, Windows(Sharded(folder), 24, 0, 4)], (3, 1), (3, 1), 8, 0, 10)
    assert [len(mixed.batch(0, i)) for i in range(5)] == [8] * 5


def test_shards_bring_their_own_tokenizer(folder, tmp_path):
    with pytest.raises(UsageError, match=r"tokenizer\.vocabulary cannot be set beside shards"):
        api.train("causal", folder, out=tmp_path / "r", changes="tokenizer.vocabulary=400")
    assert not (tmp_path / "r").exists()
