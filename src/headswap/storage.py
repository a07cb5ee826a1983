"""Files that are either wholly there or not at all.

A file or folder is written under a temporary name, synced to disk, and renamed. A folder
carries a manifest of sizes and SHA-256 sums, written last, so that any flipped or missing
byte is found when it is read back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from headswap.errors import StorageError

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
STAGING = ".staging-"
WAIT_S = 40.0


def write(path: Path, content: bytes | str) -> None:
    """Replace a file's content in one step."""
    with new_file(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose content becomes ``path`` when the block succeeds."""
    staged = staging_name(path)
    with explained(path):
        try:
            with staged.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            staged.replace(path)
            _sync_folder(path.parent)
        finally:
            staged.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, replace: bool = True) -> Iterator[Path]:
    """A staging folder that becomes ``path``, with a manifest, when the block succeeds. Without
    ``replace`` the first of several processes wins, and the others fail."""
    staged = staging_name(path)
    with explained(path):
        try:
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(parents=True)
            yield staged
            write_manifest(staged)
            if replace:
                remove(path)
            staged.rename(path)
            _sync_folder(path.parent)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


@contextlib.contextmanager
def alone(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Inside, no other process works on the folder. One that was killed holds nothing; one that
    was asked to stop is waited for while it saves. Where the file system has no locks, as some
    networks' have none, nothing is checked."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        until, told = time.monotonic() + WAIT_S, False
        while not _locked(handle):
            if time.monotonic() > until:
                raise StorageError(
                    "another process is working on it", where=folder, fix="let it end, or stop it"
                )
            if not told:
                tell(f"another process is working on {folder}: waiting for it to end")
            told = True
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def copied(source: Path, path: Path) -> Iterator[Path]:
    """A staged copy of a folder, to be added to, that takes the place of ``path`` when the
    block succeeds."""
    staged = staging_name(path)
    with explained(path):
        try:
            shutil.rmtree(staged, ignore_errors=True)
            shutil.copytree(source, staged)
            yield staged
            remove(path)
            staged.rename(path)
            _sync_folder(path.parent)
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def write_manifest(folder: Path, names: Sequence[str] | None = None) -> None:
    """List the files of a folder, those inside its folders too, with their hashes, after
    syncing each to disk."""
    if names is None:
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        names = sorted(path.as_posix() for path in found)
    for name in names:
        with (folder / name).open("rb") as stream:
            os.fsync(stream.fileno())
    write(folder / MANIFEST, _render({name: _entry(folder / name) for name in names}))


def problem(folder: Path, only: tuple[str, ...] = ()) -> str | None:
    """What is wrong with a folder that has a manifest, or None. ``only`` checks a few files."""
    try:
        content = (folder / MANIFEST).read_text("utf-8")
        entries = json.loads(content)["files"]
        if _render(entries) != content:
            return f"{MANIFEST} was changed"
        for name, entry in entries.items():
            if only and name not in only:
                continue
            if Path(name).is_absolute() or ".." in Path(name).parts:
                return f"{MANIFEST} names a path outside the folder"
            if (folder / name).is_symlink():
                return f"{name} is a symbolic link"
            if _entry(folder / name) != entry:
                return f"{name} does not match its SHA-256 sum"
    except FileNotFoundError as error:
        return f"{os.path.relpath(error.filename, folder)} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def remove(folder: Path) -> None:
    """Delete a folder so that a half-deleted one is never mistaken for a whole one."""
    doomed = staging_name(folder.with_name(f"old-{folder.name}"))
    with contextlib.suppress(FileNotFoundError):  # or another process was faster
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Delete what killed processes left behind."""
    for path in folder.glob(f"{STAGING}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the file system's refusals into one clear line."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                "the disk is full",
                where=path,
                fix="free some space; what was saved before is intact",
            ) from error
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError("no permission to write", where=path) from error
        reason = os.strerror(number) if number else str(error)
        raise StorageError(f"cannot write ({reason})", where=path) from error


def _error_number(error: Exception) -> int | None:
    """The file system's number for what it refused, 0 where it has none; None for all other
    errors. The safetensors library gives it in words."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = re.search(r"os error (\d+)", str(error))
    named = type(error).__name__ == "SafetensorError"
    return int(found.group(1)) if named and found else None


@contextlib.contextmanager
def ordinary(path: Path) -> Iterator[None]:
    """Inside, a library writes a new file; afterwards those may read it who may read any new
    file. Some libraries think of their own user alone."""
    path.unlink(missing_ok=True)  # left behind by one that was killed
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield
    path.chmod(mode)


def staging_name(path: Path) -> Path:
    """A name that no other process uses, on this host or on one that shares the disk."""
    path = path if path.name else path.resolve()  # of "." and ".."
    return path.with_name(f"{STAGING}{path.name}-{socket.gethostname()}-{os.getpid()}")


def _entry(path: Path) -> dict[str, object]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _render(entries: object) -> str:
    return json.dumps({"files": entries}, indent=1, sort_keys=True) + "\n"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
