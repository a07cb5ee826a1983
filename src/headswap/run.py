"""A run is a folder; everything about it is in files that need no torch to read.

config.toml         every setting, defaults included
provenance.json     versions, data hashes, machine, command
tokenizer/          the tokenizer
metrics.jsonl       losses and scores by step; no clock, so equal runs are equal bytes
timing.jsonl        the wall-clock times
checkpoints/        the last states, each with a manifest
model.safetensors   the finished weights
predictions/        one line an example, for validation and test
scores.json         the final scores
tested.json         the scores of a test set that was given after training
manifest.json       written last: a run that has it is finished
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from headswap import config, storage
from headswap.errors import DataError, StorageError, UsageError
from headswap.types import Table
from headswap.version import __version__
from headswap.wording import quoted

CONFIG, PROVENANCE, METRICS, TIMING = (
    "config.toml",
    "provenance.json",
    "metrics.jsonl",
    "timing.jsonl",
)
WEIGHTS, SCORES, TOKENIZER, PREDICTIONS, CHECKPOINTS = (
    "model.safetensors",
    "scores.json",
    "tokenizer",
    "predictions",
    "checkpoints",
)
TESTED, VOCABULARY = "tested.json", "vocabulary.json"
EXPERIMENT = "experiment.toml"  # in the folder above the runs of an experiment
LIBRARIES = ("torch", "numpy", "sentencepiece", "safetensors")


class Run:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._since: float | None = None

    @staticmethod
    def create(path: Path, settings: Table, provenance: Table) -> Run:
        """A new run folder; refuses to touch one that exists."""
        run = Run(path)
        claim(path, "a run" if run.exists() else None)
        storage.write(path / PROVENANCE, json.dumps(provenance, indent=1) + "\n")
        storage.write(path / CONFIG, config.dumps(settings))
        return run

    @staticmethod
    def open(path: Path) -> Run:
        """The run in a folder, or a base that comes with Headswap, by its name."""
        run = Run(path)
        if str(path) in shipped() and not path.exists():
            return Run(_bases() / path)
        if not run.exists():
            if not path.exists():
                known = f"check the path, or name one of {', '.join(shipped())}"
                raise StorageError("no such run", where=path, fix=known)
            raise UsageError(
                "not a run folder (no config.toml)",
                where=path,
                fix="name a folder that headswap train made",
            )
        return run

    def exists(self) -> bool:
        return (self.path / CONFIG).is_file()

    @property
    def finished(self) -> bool:
        return (self.path / storage.MANIFEST).is_file()

    def settings(self) -> Table:
        return config.read(self.path / CONFIG)

    @property
    def reference(self) -> str:
        """How other runs name this one: a shipped base by its name, any other by its path."""
        if self.path.parent == _bases():
            return self.path.name
        return str(self.path.resolve())

    def provenance(self) -> Table:
        found = self._json(PROVENANCE)
        if self.tested:
            found["data"]["test"] = self._json(TESTED)["data"]
        return found

    def scores(self) -> Table:
        found = self._json(SCORES)
        if self.tested:
            found["test"] = self._json(TESTED)["scores"]
        return found

    @property
    def tested(self) -> bool:
        return (self.path / TESTED).is_file()

    def metrics(self) -> Iterator[Table]:
        path = self.path / METRICS
        if path.exists():
            with path.open(encoding="utf-8") as stream:
                yield from map(json.loads, stream)

    def check_there(self) -> None:
        """Refuse to go on where somebody has deleted or moved the folder meanwhile: a new one
        of its name would be no run."""
        if not self.exists():
            raise StorageError("the run was moved or deleted while it was trained", where=self.path)

    def check_finished(self) -> None:
        """Refuse a run that is not finished or whose files were damaged."""
        if not self.finished:
            raise UsageError(
                "the run is not finished",
                where=self.path,
                fix=f"headswap resume {quoted(self.path)}",
            )
        wrong = storage.problem(self.path)
        if wrong:
            raise DataError(
                f"the run is damaged: {wrong}",
                where=self.path,
                fix="copy it from where it is whole"
                if any(name in wrong for name in (CONFIG, TOKENIZER))
                else f"headswap resume {quoted(self.path)} restores it from the last checkpoint",
            )

    def finish(self) -> None:
        """List all final files with their hashes; from here on the run is finished."""
        files = (CONFIG, PROVENANCE, METRICS, WEIGHTS, SCORES, VOCABULARY, TESTED)
        names = [name for name in files if (self.path / name).exists()]
        for folder in (TOKENIZER, PREDICTIONS):
            names += [f"{folder}/{path.name}" for path in (self.path / folder).glob("*")]
        storage.write_manifest(self.path, sorted(names))

    def add_test(self, lines: str, scores: Table, data: Table) -> None:
        """Add the predictions for a test set to a finished run. At any instant the run is
        whole: with the test set or without it."""
        storage.write(self.path / PREDICTIONS / "test.jsonl", lines)
        table = {"data": data, "scores": scores}
        storage.write(self.path / TESTED, json.dumps(table, indent=1) + "\n")
        self.finish()

    def seal(self) -> None:
        """List a test that was added by a process which was killed before it could."""
        if self.tested and TESTED not in self._json(storage.MANIFEST)["files"]:
            self.finish()

    def start_clock(self) -> None:
        """From here on, each line of the log tells the seconds since the one before."""
        self._since = time.monotonic()

    def note_time(self, event: str, **facts: Any) -> None:
        """One line of the wall-clock log, which is kept apart from the results."""
        if self._since is not None:
            facts["seconds"] = round(time.monotonic() - self._since, 3)
            self.start_clock()
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **facts}
        with storage.explained(self.path), (self.path / TIMING).open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def seconds(self) -> float:
        """How long the run took, in all its sessions; of one that was killed, up to what it had
        saved."""
        try:
            lines = (self.path / TIMING).read_text("utf-8").splitlines()
        except FileNotFoundError:
            return 0.0
        return float(sum(json.loads(line).get("seconds", 0.0) for line in lines))

    def _json(self, name: str) -> Table:
        try:
            content = json.loads((self.path / name).read_text("utf-8"))
        except FileNotFoundError as error:
            raise StorageError("is missing", where=self.path / name) from error
        except ValueError as error:
            raise DataError(f"damaged ({error})", where=self.path / name) from error
        if not isinstance(content, dict):
            raise DataError("damaged (not a JSON object)", where=self.path / name)
        return content


def claim(path: Path, holds: str | None) -> None:
    """Make a new folder."""
    check_free(path, holds)
    with storage.explained(path):
        path.mkdir(parents=True, exist_ok=True)


def check_free(path: Path, holds: str | None) -> None:
    """Refuse a folder that ``holds`` something, or anything else: it is not touched."""
    if holds:
        raise UsageError(
            f"{holds} is already there",
            where=path,
            fix=f"go on with it (headswap resume {quoted(path)}) or give another --out",
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError("not an empty folder", where=path, fix="give another --out")


def shipped() -> list[str]:
    """The names of the bases that come with Headswap."""
    return sorted(path.parent.name for path in _bases().glob(f"*/{CONFIG}"))


def _bases() -> Path:
    return Path(str(resources.files("headswap") / "bases"))


def provenance(data: Table) -> Table:
    """Who made this run: versions, machine and command, beside the data's hashes."""
    return {
        "headswap": __version__,
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
        },
        "command": sys.argv,
        "data": data,
    }
