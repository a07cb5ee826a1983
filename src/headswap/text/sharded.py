"""Reading a corpus that ``sharding`` made, from this disk or from a URL.

Shards are looked at when they are needed. Each is compared with the manifest's SHA-256 sum the
first time that this process reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headswap import storage
from headswap.errors import DataError, StorageError
from headswap.run import TOKENIZER
from headswap.text import remote, tokenizer
from headswap.text.files import SHARDS
from headswap.text.sharding import FORMAT, shard_name
from headswap.text.shards import cache_root, read_across
from headswap.text.tokenizer import Tokenizer
from headswap.types import Ids

FETCHED, ADDRESS = "fetched", "address"
FETCHING_AT_ONCE, MAPPED_AT_ONCE, LOCKS = 4, 256, 64
TOKENIZER_FILES = (storage.MANIFEST, tokenizer.MODEL_FILE, tokenizer.META_FILE)


@dataclass(frozen=True)
class Manifest:
    tokenizer: str
    dtype: str
    tokens: int
    documents: int
    utf8_bytes: int
    shard_tokens: tuple[int, ...]
    sha256: tuple[str, ...]


class Sharded:
    """Random access to the tokens of a sharded corpus as if they were one long array."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        self.starts: Ids = np.concatenate([[0], np.cumsum(self.manifest.shard_tokens)])
        address = folder / ADDRESS
        self._url = address.read_text("utf-8").strip() if address.exists() else None
        self._maps: OrderedDict[int, np.ndarray] = OrderedDict()
        self._checked: set[int] = set()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._coming: dict[int, Future[None]] = {}
        self._wanted: tuple[int, ...] = ()
        if self._url is None:
            self._check_sizes()

    def __len__(self) -> int:
        return self.manifest.tokens

    def read(self, start: int, stop: int) -> Ids:
        """A copy of tokens[start:stop], across shard borders."""
        return read_across(self.starts, self._shard, start, stop)

    def ahead(self, shards: Sequence[int]) -> None:
        """These shards are needed next: those that lie elsewhere are fetched meanwhile."""
        if self._url is None or tuple(shards) == self._wanted:
            return
        with self._lock:
            self._wanted = tuple(shards)
            for index in self._maps.keys() - set(shards):  # so that the cache can let them go
                del self._maps[index]
            for index in shards:
                self._begin(index)

    def tokenizer(self) -> Tokenizer:
        return tokenizer.load(self.folder / TOKENIZER)

    def _shard(self, index: int) -> np.ndarray:
        found = self._maps.get(index)
        if found is None:
            found = self._open(index)
            with self._lock:
                self._maps[index] = found
                while len(self._maps) > MAPPED_AT_ONCE:
                    self._maps.popitem(last=False)
        return found

    def _open(self, index: int) -> np.ndarray:
        path, dtype = self._path(index), np.dtype(self.manifest.dtype)
        if self._url is None:
            if index not in self._checked and _sum(path) != self.manifest.sha256[index]:
                raise DataError(
                    "does not match the manifest's SHA-256 sum",
                    where=path,
                    fix="make its part again",
                )
            self._checked.add(index)
            return np.memmap(path, dtype=dtype, mode="r")
        with self._lock:
            coming = self._begin(index)
        try:
            coming.result()
        finally:
            with self._lock:
                self._coming.pop(index, None)
        for _ in range(remote.TRIES):
            try:
                os.utime(path)
                return np.memmap(path, dtype=dtype, mode="r")
            except FileNotFoundError:  # another process made room meanwhile
                self._get(index)
        raise StorageError(
            "the cache is too small for all that is read at once",
            where=self.folder,
            fix="raise HEADSWAP_CACHE_GIB, or lower data.near",
        )

    def _begin(self, index: int) -> Future[None]:
        if index not in self._coming:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(FETCHING_AT_ONCE, thread_name_prefix="fetch")
            self._coming[index] = self._pool.submit(self._get, index)
        return self._coming[index]

    def _get(self, index: int) -> None:
        """Bring a shard here, unless it is here and right."""
        path, expected = self._path(index), self.manifest.sha256[index]
        with _alone(self.folder / f".lock-{index % LOCKS:02d}"):
            if index in self._maps or (path.exists() and _sum(path) == expected):
                return
            remote.fetch(f"{self._url}/{path.name}", path, expected)
        with self._lock:
            used = {index, *self._wanted, *self._maps}
        remote.make_room(self.folder.parent, {self._path(i) for i in used})

    def _path(self, index: int) -> Path:
        return self.folder / shard_name(index)

    def _check_sizes(self) -> None:
        size = np.dtype(self.manifest.dtype).itemsize
        for index, count in enumerate(self.manifest.shard_tokens):
            path = self._path(index)
            if not path.exists():
                raise DataError("the manifest names it, and it is missing", where=path)
            if path.stat().st_size != count * size:
                raise DataError("is not as long as the manifest says", where=path)


def located(name: str) -> Path:
    """Where a source lies: a path as it is; of shards elsewhere, the cache's folder, which has
    the manifest and the tokenizer from the start and the shards as they are read."""
    if not remote.is_url(name):
        return Path(name)
    url = name.rstrip("/")
    content = remote.read(f"{url}/{SHARDS}")
    folder = cache_root() / FETCHED / hashlib.sha256(content).hexdigest()[:32]
    with storage.explained(folder):
        (folder / TOKENIZER).mkdir(parents=True, exist_ok=True)
    for part in TOKENIZER_FILES:
        path = folder / TOKENIZER / part
        if not path.exists():
            storage.write(path, remote.read(f"{url}/{TOKENIZER}/{part}"))
    storage.write(folder / ADDRESS, url + "\n")
    storage.write(folder / SHARDS, content)
    _manifest(folder)
    return folder


def _manifest(folder: Path) -> Manifest:
    try:
        table: Any = json.loads((folder / SHARDS).read_text("utf-8"))
        if table["format"] != FORMAT:
            raise ValueError(f"format {table['format']}, not {FORMAT}")
        found = Manifest(
            tokenizer=table["tokenizer"],
            dtype=table["dtype"],
            tokens=table["tokens"],
            documents=table["documents"],
            utf8_bytes=table["utf8_bytes"],
            shard_tokens=tuple(int(shard["tokens"]) for shard in table["shards"]),
            sha256=tuple(str(shard["sha256"]) for shard in table["shards"]),
        )
        if sum(found.shard_tokens) != found.tokens or not found.tokens:
            raise ValueError("its sums do not add up")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"damaged ({error})", where=folder / SHARDS) from error
    wrong = storage.problem(folder / TOKENIZER)
    if wrong:
        raise DataError(f"the tokenizer of the shards is damaged: {wrong}", where=folder)
    if tokenizer.load(folder / TOKENIZER).fingerprint != found.tokenizer:
        raise DataError("the shards were made with another tokenizer", where=folder / TOKENIZER)
    return found


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time, so that the ranks of a host fetch a shard once."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _sum(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=path) from error
