"""A corpus tokenised by many workers, who need nothing in common but a folder.

The corpus is cut into stretches; stretch k becomes ``tokens-k.bin``, whoever makes it. A worker
makes every n-th one and notes each, when it is whole, in ``parts``; what is noted is not made
again. Joining puts the notes into one manifest. Nothing in the result tells how many workers
there were, so their number never changes a byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headswap import storage
from headswap.errors import DataError, HeadswapError, StorageError, UsageError
from headswap.run import TOKENIZER
from headswap.text import files, stretches
from headswap.text.corpus import Reading
from headswap.text.files import SHARDS
from headswap.text.shards import batched, encoded, stored_as
from headswap.text.stretches import Stretch
from headswap.text.tokenizer import Tokenizer
from headswap.types import Table

FORMAT = 1
SAMPLES, SAMPLE_BYTES = 16, 2**16
MEGABYTES = 32
PARTS, PLAN = "parts", "plan.json"
NAMED_AT_MOST = 8


@dataclass(frozen=True)
class Part:
    """The ``number``-th of ``count`` workers, from 1."""

    number: int = 1
    count: int = 1

    @staticmethod
    def of(text: str) -> Part:
        """``3/8``."""
        number, slash, count = text.partition("/")
        try:
            part = Part(int(number), int(count) if slash else 0)
        except ValueError:
            part = Part(0, 0)
        if not 1 <= part.number <= part.count:
            raise UsageError(
                f"--part {text} is not one of 1/n to n/n", fix="write --part 3/8 for the third of 8"
            )
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def make(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    part: Part = Part(),
    reading: Reading = Reading(),
    megabytes: int = MEGABYTES,
    progress: Callable[[float, int], None] = lambda share, tokens: None,
) -> bool:
    """Make one worker's shards, or find them made. Whoever comes last joins them all; True when
    the corpus is whole. ``progress`` hears the share that is done and the tokens."""
    if megabytes < 1:
        raise UsageError(f"shards of {megabytes} megabytes", fix="give 1 or more")
    found = stretches.cut(files.expand(paths), megabytes * 10**6)
    asked = _asked(found, tokenizer, reading, megabytes)
    if not files.is_sharded(out):
        try:
            _begin(out, asked, part, tokenizer)
            key, mine = _key(asked), range(part.number - 1, len(found), part.count)
            for place, index in enumerate(mine):
                if not _made(out, index, key):
                    told = partial(progress, place / len(mine))
                    _write(out, index, found[index], tokenizer, reading, key, told)
            if all(_note(out, index).exists() for index in range(len(found))):
                join(out)
        except HeadswapError:
            if not files.is_sharded(out):  # else another worker came last too, and was faster
                raise
    if files.is_sharded(out):
        if _settings(_read(out / SHARDS)) != asked:
            raise _other(out)
        return True
    return False


def join(out: Path) -> Table:
    """Write the manifest when every part is there; what is missing is named."""
    plan = out / PARTS / PLAN
    if files.is_sharded(out) and not plan.exists():
        return _read(out / SHARDS)
    if not plan.exists():
        raise UsageError("no parts of a corpus there", where=out, fix="make them with --part i/n")
    asked = _read(plan)
    count = asked.pop("parts")
    key, notes = _key(asked), []
    missing = [i for i in range(asked["count"]) if not _note(out, i).exists()]
    if missing:
        parts = sorted({index % count + 1 for index in missing})
        named = ", ".join(f"{number}/{count}" for number in parts[:NAMED_AT_MOST])
        more = f" and {len(parts) - NAMED_AT_MOST} more" if len(parts) > NAMED_AT_MOST else ""
        raise DataError(
            f"{len(missing)} of {asked['count']} shards are missing, of part {named}{more}",
            where=out,
            fix=f"run it: headswap shards … --part {named.split(',')[0]}",
        )
    for index in range(asked["count"]):
        note = _read(_note(out, index))
        if note.pop("key", None) != key:
            raise DataError(
                f"part {index % count + 1}/{count} was made with another tokenizer or other "
                f"settings than the rest ({PARTS}/{_note(out, index).name})",
                where=out,
                fix="make all parts with the same command",
            )
        path = out / shard_name(index)
        if not path.exists() or path.stat().st_size != note["bytes"]:
            raise DataError("is missing or cut short", where=path, fix="make its part again")
        notes.append(note)
    totals = {name: sum(n[name] for n in notes) for name in ("tokens", "documents", "utf8_bytes")}
    if not totals["documents"]:
        raise DataError("no text in it", where=out, fix="give files that hold text")
    whole = asked | totals | {"shards": notes}
    storage.write(out / SHARDS, json.dumps(whole) + "\n")
    storage.remove(out / PARTS)
    storage.sweep(out)
    return whole


def shard_name(index: int) -> str:
    return f"tokens-{index:05d}.bin"


def _asked(
    found: Sequence[Stretch],
    tokenizer: Tokenizer,
    reading: Reading,
    megabytes: int,
) -> Table:
    """What decides every byte of the result. Of the files' content, samples: enough to tell
    another text, and little to read however large they are."""
    sizes = {stretch.path: stretch.path.stat().st_size for stretch in found}
    return {
        "format": FORMAT,
        "tokenizer": tokenizer.fingerprint,
        "vocabulary": tokenizer.size,
        "dtype": stored_as(tokenizer).str,
        "reading": {**asdict(reading), "clean": list(reading.clean)},
        "megabytes": megabytes,
        "files": [[path.name, size, _sampled(path, size)] for path, size in sizes.items()],
        "count": len(found),
    }


def _sampled(path: Path, size: int) -> str:
    """A hash of pieces of a file, spread over the whole of it."""
    digest = hashlib.sha256()
    last = max(0, size - SAMPLE_BYTES)
    with storage.explained(path), path.open("rb") as stream:
        for place in range(SAMPLES):
            stream.seek(last * place // (SAMPLES - 1))
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _settings(manifest: Table) -> Table:
    return {
        key: value
        for key, value in manifest.items()
        if key not in ("tokens", "documents", "utf8_bytes", "shards")
    }


def _key(asked: Table) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def _begin(out: Path, asked: Table, part: Part, tokenizer: Tokenizer) -> None:
    """Say what the folder is for, or find that it is for the same."""
    plan = out / PARTS / PLAN
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not plan.parent.exists())):
        raise UsageError("not an empty folder", where=out, fix="give another --out")
    with storage.explained(out):
        plan.parent.mkdir(parents=True, exist_ok=True)
    if not plan.exists():
        storage.write(plan, json.dumps(asked | {"parts": part.count}) + "\n")
    begun = _read(plan)
    count = begun.pop("parts")
    if begun != asked:
        raise _other(out)
    if count != part.count:
        raise UsageError(
            f"begun in {count} parts, not {part.count}", where=out, fix=f"give --part i/{count}"
        )
    folder = out / TOKENIZER
    if not (folder / storage.MANIFEST).exists():
        try:
            with storage.new_folder(folder, replace=False) as staged:
                tokenizer.save(staged)
        except StorageError:
            if not (folder / storage.MANIFEST).exists():  # else another worker was faster
                raise


def _write(
    out: Path,
    index: int,
    stretch: Stretch,
    tokenizer: Tokenizer,
    reading: Reading,
    key: str,
    progress: Callable[[int], None],
) -> None:
    """One shard, and then its note: a shard that has one is whole."""
    tokens = documents = size = 0
    digest = hashlib.sha256()
    with storage.new_file(out / shard_name(index)) as stream:
        for texts in batched(stretch.documents(reading)):
            content = encoded(texts, tokenizer)[0]
            data = content.tobytes()
            stream.write(data)
            digest.update(data)
            tokens += len(content)
            documents += len(texts)
            size += sum(len(text.encode()) for text in texts)
            progress(tokens)
    note = {
        "key": key,
        "tokens": tokens,
        "documents": documents,
        "utf8_bytes": size,
        "bytes": tokens * stored_as(tokenizer).itemsize,
        "sha256": digest.hexdigest(),
    }
    storage.write(_note(out, index), json.dumps(note) + "\n")


def _made(out: Path, index: int, key: str) -> bool:
    path, note = out / shard_name(index), _note(out, index)
    if not note.exists() or not path.exists():
        return False
    found = _read(note)
    return found.get("key") == key and path.stat().st_size == found.get("bytes")


def _note(out: Path, index: int) -> Path:
    return out / PARTS / f"{index:05d}.json"


def _read(path: Path) -> Table:
    try:
        found: Any = json.loads(path.read_text("utf-8"))
        if isinstance(found, dict):
            return found
        raise ValueError("not a JSON object")
    except OSError as error:
        raise StorageError(f"cannot read it ({error.strerror})", where=path) from error
    except ValueError as error:
        raise DataError(f"damaged ({error})", where=path, fix="make it again") from error


def _other(out: Path) -> UsageError:
    return UsageError(
        "the shards there are of another text, tokenizer or settings",
        where=out,
        fix="give the command that the others have, or another --out",
    )
