"""Text files read as a stream of clean lines: plain, .gz or .xz, UTF-8, no NUL, no BOM.

Everything that can be wrong with the bytes of a file is found here, with its line number.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from headswap.errors import DataError, HeadswapError, ResourceError, StorageError, UsageError

Paths = str | Path | Sequence[str | Path]

LONGEST_LINE = 64 * 2**20
COMPRESSED = (".gz", ".xz", ".zst")
TEXTS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
NOT_TEXTS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), "save it as .csv"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pdf", ".epub"), "save it as .txt"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".bz2"), "unpack it"),
    ".json": "write it as .jsonl, one object a line",
}
ZSTD_BYTES = 1024
BOMB_BYTES, BOMB_RATIO = 2**28, 200
SHARDS = "shards.json"


def kind(path: Path) -> str:
    """The extension that says the format, below any compression: ``a.jsonl.gz`` is ``.jsonl``."""
    plain = path.with_suffix("") if path.suffix in COMPRESSED else path
    return plain.suffix.lower()


def listed(paths: Paths) -> list[Path]:
    """One path or several, as a list."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def check_text(path: Path) -> None:
    """Refuse a file whose extension says that it is no text."""
    if remedy := NOT_TEXTS.get(kind(path)):
        raise UsageError(f"a {kind(path)} file is not read as text", where=path, fix=remedy)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's decompressed bytes; a missing or unreadable file is a clear error."""
    try:
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        if path.suffix == ".xz":
            return lzma.open(path, "rb")
        if path.suffix == ".zst":
            new_frame = _zstandard().ZstdDecompressor().decompressobj
            return io.BufferedReader(_ZstdStream(path.open("rb"), new_frame), 2**16)
        return path.open("rb")
    except OSError as error:
        raise _refusal(path, error) from error


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Files and folders of shards as they are; other folders and patterns as the text files in
    them, sorted by name."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir() and not is_sharded(path):
            inside = [
                entry
                for entry in path.rglob("*")
                if kind(entry) in TEXTS and not _hidden(entry.relative_to(path))
            ]
        elif not path.exists() and any(sign in path.name for sign in "*?["):
            wanted = path.name.startswith(".")
            inside = [
                entry
                for entry in path.parent.glob(path.name)
                if wanted or not _hidden(Path(entry.name))
            ]
        else:
            found.append(path)
            continue
        if not inside:
            raise StorageError("no text files there", where=path, fix=f"use {', '.join(TEXTS)}")
        found += sorted(inside)
    return found


def _hidden(path: Path) -> bool:
    """Whether a shell would pass it over: an editor's copies, say."""
    return any(part.startswith(".") and part not in (".", "..") for part in path.parts)


def is_sharded(path: Path) -> bool:
    """Whether a folder holds a tokenised corpus."""
    return (path / SHARDS).is_file()


class _ZstdStream(io.RawIOBase):
    """Decompressed bytes of a .zst file. Fed a little at a time, so that a bomb expands by
    megabytes at most before it is noticed; a file that ends inside a frame is an error."""

    def __init__(self, source: IO[bytes], new_frame: Callable[[], Any]) -> None:
        self._source, self._new = source, new_frame
        self._frame, self._rest, self._ready = self._new(), b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._rest or self._source.read(ZSTD_BYTES)
            self._rest = b""
            if not data:
                if not self._frame.eof:
                    raise EOFError("it ends inside a frame")
                return 0
            if self._frame.eof:
                self._frame = self._new()
            self._ready = self._frame.decompress(data)
            self._rest = self._frame.unused_data
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ResourceError(
            "reading .zst files needs zstandard", fix="pip install 'headswap[formats]'"
        ) from error
    return zstandard


def _refusal(path: Path, error: OSError) -> HeadswapError:
    if isinstance(error, FileNotFoundError):
        return StorageError("no such file", where=path, fix="check the path")
    if isinstance(error, IsADirectoryError):
        return UsageError("is a folder, not a file", where=path, fix="name the files in it")
    return StorageError(f"cannot read it ({error.strerror})", where=path)


def standard_input() -> Iterator[str]:
    """The lines of standard input, held to the same rules as a file's."""
    if sys.stdin is None:
        raise UsageError("standard input is closed", fix="name a file, or give --text")
    for number, raw in enumerate(iter(lambda: sys.stdin.buffer.readline(LONGEST_LINE + 1), b""), 1):
        yield _decode(raw, Path("standard input"), f"line {number}", number == 1)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without its line end), one line in memory at a time."""
    with open_bytes(path) as stream:
        number = seen = 0
        limit = _bomb_limit(path)
        try:
            while raw := stream.readline(LONGEST_LINE + 1):
                number += 1
                seen += len(raw)
                if seen > limit:
                    raise DataError(
                        f"the file expands more than {BOMB_RATIO} times: a decompression bomb?",
                        where=f"{path}, line {number}",
                        fix="unpack it by hand if you trust it",
                    )
                yield number, _decode(raw, path, f"line {number}", number == 1)
        except _damage() as error:
            raise DataError(
                f"the compressed file is damaged or cut short ({error})",
                where=f"{path}, after line {number}",
                fix="copy or download it again",
            ) from error
        except OSError as error:
            raise StorageError(f"reading failed ({error.strerror or error})", where=path) from error


def lines_from(path: Path, start: int) -> Iterator[tuple[int, str]]:
    """(the byte at which it begins, text) of every line of a plain file that begins at byte
    ``start`` or later."""
    with open_bytes(path) as stream:
        try:
            if start:  # the line that byte start - 1 belongs to began earlier
                stream.seek(start - 1)
                while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
            place = stream.tell()
            while raw := stream.readline(LONGEST_LINE + 1):
                yield place, _decode(raw, path, f"the line at byte {place:,}", place == 0)
                place += len(raw)
        except OSError as error:
            raise StorageError(f"reading failed ({error.strerror or error})", where=path) from error


def _bomb_limit(path: Path) -> float:
    if path.suffix not in COMPRESSED:
        return float("inf")
    return max(BOMB_BYTES, BOMB_RATIO * path.stat().st_size)


def _damage() -> tuple[type[Exception], ...]:
    """What the decompressors raise on broken data."""
    kinds = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
    loaded = sys.modules.get("zstandard")
    return (*kinds, loaded.ZstdError) if loaded else kinds


def _decode(raw: bytes, path: Path, place: str, first: bool) -> str:
    where = f"{path}, {place}"
    if len(raw) > LONGEST_LINE:
        raise DataError(
            f"the line is longer than {LONGEST_LINE // 2**20} MiB",
            where=where,
            fix="put one document or sentence on a line",
        )
    if first:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(
                "the file is UTF-16, not UTF-8",
                where=path,
                fix=f"convert it with: iconv -f UTF-16 -t UTF-8 {path.name}",
            )
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in raw:
        raise DataError("the line holds a NUL byte", where=where, fix="is this a text file?")
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"invalid UTF-8 (byte 0x{raw[error.start]:02x} at column {error.start + 1})",
            where=where,
            fix="convert the file to UTF-8, for example with: iconv -f WINDOWS-1252 -t UTF-8",
        ) from error


def sha256(paths: Sequence[Path]) -> str:
    """One hash over the stored bytes of the files, in order. For a folder of shards its manifest
    stands, which holds their hashes."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with (path / SHARDS if is_sharded(path) else path).open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise _refusal(path, error) from error
    return digest.hexdigest()
