"""A tokenised corpus on disk: memory-mapped token files, document ends and a manifest.

Each document is stored as ``<s> tokens </s>``. A folder is written under a temporary name
and renamed when complete, so a folder that exists is whole; it is named by what it was made
from, so it is reused exactly when nothing changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headswap import storage
from headswap.errors import DataError, StorageError
from headswap.text.tokenizer import Tokenizer
from headswap.types import Ids

SHARD_TOKENS = 2**26
DOCUMENTS_AT_ONCE = 2_000
CHARACTERS_AT_ONCE = 4_000_000
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    format: int
    key: str
    dtype: str
    tokens: int
    documents: int
    utf8_bytes: int
    shard_tokens: tuple[int, ...]


class Shards:
    """Random access to the tokens of a corpus as if they were one long array."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            table = json.loads((folder / "manifest.json").read_text("utf-8"))
            table["shard_tokens"] = tuple(table["shard_tokens"])
            self.manifest = Manifest(**table)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"damaged shards ({error})", where=folder, fix="delete the folder; it is a cache"
            ) from error
        dtype = np.dtype(self.manifest.dtype)
        self._maps = []
        for index, count in enumerate(self.manifest.shard_tokens):
            path = folder / f"tokens-{index:05d}.bin"
            if not path.exists() or path.stat().st_size != count * dtype.itemsize:
                raise DataError(
                    "a shard is missing or cut short", where=path, fix="delete the folder"
                )
            self._maps.append(np.memmap(path, dtype=dtype, mode="r"))
        self._starts = np.concatenate([[0], np.cumsum(self.manifest.shard_tokens)])

    def __len__(self) -> int:
        return self.manifest.tokens

    def read(self, start: int, stop: int) -> Ids:
        """A copy of tokens[start:stop], across shard borders."""
        return read_across(self._starts, self._maps.__getitem__, start, stop)

    def document_ends(self) -> Ids:
        return np.fromfile(self.folder / "documents.bin", dtype="<i8")


def read_across(starts: Ids, shard: Callable[[int], np.ndarray], start: int, stop: int) -> Ids:
    """A copy of the tokens from ``start`` to ``stop`` of shards that begin at ``starts``, the
    last of which is where they end."""
    stop = min(stop, int(starts[-1]))
    parts = []
    while start < stop:
        index = int(np.searchsorted(starts, start, side="right")) - 1
        end, base = min(stop, int(starts[index + 1])), int(starts[index])
        parts.append(np.array(shard(index)[start - base : end - base], dtype=np.int64))
        start = end
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def cache_root() -> Path:
    """Where shards are kept: HEADSWAP_CACHE, else the user's cache folder."""
    chosen = os.environ.get("HEADSWAP_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headswap"


def prepare(
    documents: Callable[[], Iterable[str]],
    tokenizer: Tokenizer,
    source: str,
    progress: Callable[[int], None] = lambda tokens: None,
) -> Shards:
    """The shards of a corpus, from the cache or newly written.

    ``source`` stands for the corpus: the hash of its files and of how they are read.
    """
    key = hashlib.sha256(f"{FORMAT}/{source}/{tokenizer.fingerprint}".encode()).hexdigest()[:32]
    folder = cache_root() / "shards" / key
    if not (folder / "manifest.json").exists():
        staging = storage.staging_name(folder)
        try:
            staging.mkdir(parents=True, exist_ok=True)
            _write(staging, documents(), tokenizer, key, progress)
            try:
                staging.rename(folder)
            except OSError:
                if not (folder / "manifest.json").exists():
                    storage.remove(folder)  # what is left of a damaged one
                    staging.rename(folder)
        except OSError as error:
            if not (folder / "manifest.json").exists():  # else another process was faster
                raise StorageError(
                    f"cannot write the tokenised corpus ({error.strerror})",
                    where=staging.parent,
                    fix=("free some space, or " if error.errno == errno.ENOSPC else "")
                    + "point HEADSWAP_CACHE elsewhere",
                ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return Shards(folder)


def _write(
    folder: Path,
    documents: Iterable[str],
    tokenizer: Tokenizer,
    key: str,
    progress: Callable[[int], None],
) -> None:
    counts: list[int] = []
    tokens = documents_seen = size = 0
    stream = None
    with (folder / "documents.bin").open("wb") as ends_file:
        for texts in batched(documents):
            flat, lengths = encoded(texts, tokenizer)
            ends = tokens + np.cumsum(lengths)
            ends_file.write(ends.astype("<i8").tobytes())
            for part in _fill(flat, counts):
                if counts[-1] == 0:
                    if stream:
                        stream.close()
                    stream = (folder / f"tokens-{len(counts) - 1:05d}.bin").open("wb")
                assert stream is not None
                stream.write(part.tobytes())
                counts[-1] += len(part)
            tokens += len(flat)
            documents_seen += len(texts)
            size += sum(len(text.encode()) for text in texts)
            progress(tokens)
    if stream:
        stream.close()
    dtype = stored_as(tokenizer).str
    manifest = Manifest(FORMAT, key, dtype, tokens, documents_seen, size, tuple(counts))
    (folder / "manifest.json").write_text(json.dumps(asdict(manifest)) + "\n", "utf-8")


def stored_as(tokenizer: Tokenizer) -> np.dtype[Any]:
    """The type of the ids on disk."""
    return np.dtype("<u2" if tokenizer.size <= 2**16 else "<u4")


def encoded(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, Ids]:
    """The documents as they are stored, one after the other, and their lengths."""
    rows = tokenizer.encode(texts)
    lengths = np.array([len(row) + 2 for row in rows], dtype=np.int64)
    flat = np.empty(int(lengths.sum()), dtype=stored_as(tokenizer))
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    for start, row in zip(starts, rows, strict=True):
        flat[start] = tokenizer.bos
        flat[start + 1 : start + 1 + len(row)] = row
        flat[start + 1 + len(row)] = tokenizer.eos
    return flat, lengths


def _fill(flat: np.ndarray, counts: list[int]) -> Iterator[np.ndarray]:
    """Cut ``flat`` where shards fill up; opens a new count when the last one is full."""
    while len(flat):
        if not counts or counts[-1] >= SHARD_TOKENS:
            counts.append(0)
        room = SHARD_TOKENS - counts[-1]
        yield flat[:room]
        flat = flat[room:]


def batched(documents: Iterable[str]) -> Iterator[Sequence[str]]:
    """Groups of documents of bounded size, large enough to keep all cores encoding."""
    batch: list[str] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if len(batch) >= DOCUMENTS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
