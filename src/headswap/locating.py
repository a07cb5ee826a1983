"""Where the data of a run lie, and whether they are what they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from headswap.errors import DataError, StorageError, UsageError
from headswap.objectives import Classify, Translate
from headswap.prepare import ROLES
from headswap.run import Run
from headswap.settings import DataPlan, Settings
from headswap.text import files, remote, sharded, tokenizer
from headswap.text.sharded import Sharded

SHARDS_NEAR = 16


def absolute(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(name if remote.is_url(name) else str(Path(name).resolve()) for name in paths)


def sources(data: DataPlan) -> dict[str, list[Path]]:
    """The files by role; of shards at a URL, their folder in the cache."""
    return {
        role: [sharded.located(name) for name in getattr(data, role)]
        for role in ROLES
        if getattr(data, role)
    }


def checked_shards(
    settings: Settings, data: DataPlan, located: Mapping[str, Sequence[Path]]
) -> DataPlan:
    """Refuse what shards cannot do; those that lie elsewhere are read a few at a time."""
    found = [path for paths in located.values() for path in paths if files.is_sharded(path)]
    if not found:
        if data.near:
            raise UsageError("data.near goes with a sharded corpus", fix="leave it out")
        return data
    if isinstance(settings.objective, Classify | Translate):
        raise UsageError(
            f"holds shards of plain text, which {settings.objective.name} cannot read",
            where=found[0],
            fix="give labelled texts or pairs",
        )
    if len(located.get("valid", ())) > 1 and any(map(files.is_sharded, located["valid"])):
        raise UsageError("several sources to validate on", fix="name one folder of shards")
    made = {Sharded(path).manifest.tokenizer for path in found}
    if len(made) > 1:
        raise UsageError(
            "the shards were made with different tokenizers",
            where=found[0],
            fix="shard all text with the same --tokenizer",
        )
    if settings.tokenizer.model and not data.base:
        pieces = settings.tokenizer.pieces
        loaded = tokenizer.load_model(
            Path(settings.tokenizer.model), None if pieces is None else Path(pieces)
        )
        if not loaded.extends(Sharded(found[0]).tokenizer()):
            raise UsageError(
                "the shards were made with another tokenizer",
                where=found[0],
                fix="leave --tokenizer out: shards bring their own",
            )
    if data.near is not None:
        return data
    away = any(map(remote.is_url, data.train))
    return dataclasses.replace(data, near=SHARDS_NEAR if away else 0)


def again(run: Run, settings: Settings, folder: Path | None) -> dict[str, list[Path]]:
    """The data's files, here or in ``folder``, checked against the hashes of the run."""
    hashes = run.provenance()["data"]
    located: dict[str, list[Path]] = {}
    for role in ROLES:
        for name in getattr(settings.data, role):
            path = sharded.located(name)
            if folder is not None and (folder / path.name).exists():
                path = folder / path.name
            if not path.exists():
                raise StorageError(
                    "the run's data is not there",
                    where=path,
                    fix="name the folder that holds it with --data",
                )
            located.setdefault(role, []).append(path)
    for role, paths in located.items():
        if files.sha256(paths) != hashes[role]["sha256"]:
            raise DataError(
                f"the {role} data has changed since the run began",
                where=paths[0],
                fix="restore it, or train a new run",
            )
    return located
