"""Files that lie elsewhere: S3, GCS, HTTP and whatever else fsspec reads, fetched into a cache.

A file is fetched under a temporary name, its SHA-256 sum is compared, and only then does it get
its name: what is in the cache is right. The cache gives up what was used longest ago when it
grows beyond HEADSWAP_CACHE_GIB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from headswap import storage
from headswap.errors import DataError, ResourceError, StorageError, UsageError

TRIES, PAUSE = 3, 0.5
GIB, DEFAULT_GIB = 2**30, 50.0
URL = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(name: str) -> bool:
    return URL.match(name) is not None


def read(url: str) -> bytes:
    """The content of a small file."""
    with _opened(url) as stream:
        return bytes(stream.read())


def fetch(url: str, target: Path, sha256: str) -> None:
    """Copy a file here. What does not have the sum is not kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for rest in reversed(range(TRIES)):
        try:
            found = _copy(url, target, sha256)
            break
        except StorageError:
            if not rest:
                raise
            time.sleep(PAUSE)
    if found != sha256:
        raise DataError(
            "does not match the manifest's SHA-256 sum", where=url, fix="upload the shards again"
        )


def make_room(folder: Path, kept: Collection[Path]) -> None:
    """Delete what was used longest ago until the cache is as small as it may be; never what is
    in use now."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("*/tokens-*.bin"):
        with contextlib.suppress(OSError):  # another process makes room too
            facts = path.stat()
            found.append((facts.st_mtime, facts.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= _limit():
            return
        if path not in kept:
            path.unlink(missing_ok=True)
            total -= size


def _copy(url: str, target: Path, sha256: str) -> str:
    digest = hashlib.sha256()
    staged = storage.staging_name(target)
    with storage.explained(target):
        try:
            with _opened(url) as source, staged.open("wb") as stream:
                while data := _more(url, source):
                    digest.update(data)
                    stream.write(data)
            if digest.hexdigest() == sha256:
                staged.replace(target)
            return digest.hexdigest()
        finally:
            staged.unlink(missing_ok=True)


def _more(url: str, source: Any) -> bytes:
    try:
        return bytes(source.read(2**20))
    except Exception as error:
        raise StorageError(f"reading it failed ({_told(error)})", where=url) from error


def _opened(url: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ResourceError(
            "reading from elsewhere needs fsspec", where=url, fix="pip install 'headswap[scale]'"
        ) from error
    try:
        return fsspec.open(url, "rb").open()
    except ImportError as error:  # the library of one kind of store
        fix = "pip install 'headswap[scale]'" if url.startswith("http") else None
        raise ResourceError(f"cannot read it ({_told(error)})", where=url, fix=fix) from error
    except FileNotFoundError as error:
        raise StorageError(
            "is not there, or not to be reached", where=url, fix="check the address"
        ) from error
    except ValueError as error:
        raise UsageError(f"cannot be read ({_told(error)})", where=url) from error
    except Exception as error:  # every kind of store has errors of its own
        raise StorageError(f"cannot be reached ({_told(error)})", where=url) from error


def _told(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n")[0]


def _limit() -> float:
    given = os.environ.get("HEADSWAP_CACHE_GIB", str(DEFAULT_GIB))
    try:
        return float(given) * GIB
    except ValueError as error:
        raise UsageError(
            f"HEADSWAP_CACHE_GIB={given} is not a number", fix="write it like 50"
        ) from error
