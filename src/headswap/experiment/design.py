"""What an experiment was asked to do, and where its parts lie."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headswap import config, storage
from headswap import run as runs
from headswap.errors import StorageError, UsageError
from headswap.text.corpus import Cleaning, Reading
from headswap.training.plan import BUDGETS
from headswap.wording import counted, quoted

DESIGN, PROVENANCE, PLAN, CHECK, EXAMPLES = (
    runs.EXPERIMENT,
    "provenance.json",
    "plan.json",
    "check.json",
    "examples.json",
)
REPORT, PAGE, CARD = "report.json", "report.html", "card.md"
SETTLED = {  # and by which option
    "data.clean": "--clean",
    "data.text_column": "--text-column",
    "data.label_column": "--label-column",
    "classify.labels": "",
    "train.seed": "--seeds",
    "train.device": "--device",
    "train.threads": "--workers",
    "train.keep": "",
    "train.steps": "train.epochs",
    "train.tokens": "train.epochs",
    "train.minutes": "--minutes",
}
BASES_SETTLED = {
    "data.clean": "--clean",
    "data.documents": "--documents",
    "train.device": "--device",
    **{f"train.{name}": "--pretraining-minutes" for name in BUDGETS},
}
ROLES = ("table", "valid", "test", "text", "via")


@dataclass(frozen=True)
class Design:
    """``table`` holds labelled texts, ``text`` unlabelled ones (the table's own when empty).

    Bases are finished runs (``bases``), or are pretrained here, one for each of
    ``objectives``. ``via`` are related labelled texts, on which each base is fine-tuned
    first. ``labels`` are the sizes of the label curve; ``reach`` are larger ones at which
    only the scratch and linear arms are trained, to find out what pretraining is worth.
    ``minutes`` and ``pretraining_minutes`` are what the plan is fitted to; ``changes`` are
    settings of the classifiers, ``base_changes`` of the bases pretrained here. ``on`` says where
    runs are made; on a Ray cluster each has ``cpus`` and ``gpus``.
    """

    table: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    reach: tuple[int, ...] = ()
    seeds: int = 5
    minutes: float = 60.0
    pretraining_minutes: float | None = None
    probe: bool = True
    recipe: str | None = None
    changes: tuple[str, ...] = ()
    base_changes: tuple[str, ...] = ()
    documents: Literal["auto", "blank", "line"] = "auto"
    text_column: str | None = None
    label_column: str | None = None
    clean: tuple[Cleaning, ...] = ()
    device: str = "auto"
    workers: int | None = None
    on: Literal["here", "ray"] = "here"
    cpus: int = 1
    gpus: float = 0.0
    title: str = ""

    def __post_init__(self) -> None:
        if not self.table:
            raise UsageError("no labelled table", fix="name at least one")
        if self.seeds < 1:
            raise UsageError(f"{self.seeds} seeds", fix="give --seeds 1 or more")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"{self.workers} workers", fix="give --workers 1 or more")
        if self.cpus < 1:
            raise UsageError(f"{self.cpus} CPUs a run", fix="give --cpus 1 or more")
        if self.gpus < 0:
            raise UsageError(f"{self.gpus:g} GPUs a run", fix="give --gpus 0 or more")
        if self.on == "ray" and self.device.startswith("cuda") and not self.gpus:
            raise UsageError(
                "a cluster shows a run no more GPUs than it asks for",
                fix="give --gpus 1, or --gpus 0.25 for four runs a GPU",
            )
        for name in ("labels", "reach"):
            for value in getattr(self, name):
                if not isinstance(value, int):
                    raise UsageError(
                        f"{name} are whole numbers, not {value!r}", fix=f"give {name}=[40, 100]"
                    )
        for name in ("minutes", "pretraining_minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{value:g} minutes", fix=f"give {option} above 0")
        for size in (*self.labels, *self.reach):
            if size < 2:
                raise UsageError(
                    f"{counted(size, 'label')} cannot be learnt from", fix="give 2 or more"
                )
        for change in self.changes:
            _refuse_settled(change, SETTLED)
        for change in self.base_changes:
            _refuse_settled(change, BASES_SETTLED)
        if len(set(self.objectives)) < len(self.objectives):
            raise UsageError("an objective is named twice")

    @property
    def reading(self) -> Reading:
        return Reading(self.documents, self.text_column, self.label_column, self.clean)


def _refuse_settled(change: str, settled: Mapping[str, str]) -> None:
    name = change.partition("=")[0].strip()
    if settled is SETTLED and name.startswith("tokenizer."):
        raise UsageError(
            "classifiers read with their base's tokenizer",
            fix=f"shape that of bases pretrained here: --set-base {change}",
        )
    if name.startswith("data.") or name in settled:
        option = settled.get(name)
        raise UsageError(
            f"an experiment settles {name} itself",
            fix=f"use {option}" if option else "see the options of headswap transfer",
        )


@dataclass(frozen=True)
class Folder:
    """An experiment's folder."""

    path: Path

    def unfinished(self) -> StorageError:
        """For whoever wants results that are not there yet."""
        fix = f"headswap resume {quoted(self.path)}"
        return StorageError("the experiment is not finished", where=self.path, fix=fix)

    @staticmethod
    def create(path: Path, design: Design) -> Folder:
        folder = Folder(path)
        runs.claim(path, "an experiment" if folder.exists() else None)
        provenance = json.dumps(runs.provenance({}), indent=1)
        storage.write(path / PROVENANCE, provenance + "\n")
        storage.write(path / DESIGN, config.dumps(config.to_table(design)))
        return folder

    @staticmethod
    def open(path: Path) -> Folder:
        folder = Folder(path)
        if not folder.exists():
            if not path.exists():
                raise StorageError("no such experiment", where=path, fix="check the path")
            raise UsageError(
                f"not an experiment (no {DESIGN})",
                where=path,
                fix="name a folder that headswap transfer made",
            )
        return folder

    def exists(self) -> bool:
        return (self.path / DESIGN).is_file()

    def design(self) -> Design:
        return config.build(Design, config.read(self.path / DESIGN))

    def data(self, role: str) -> Path:
        """The rows of a split: train, valid or test."""
        return self.path / "data" / f"{role}.jsonl"

    def subset(self, size: int, seed: int) -> Path:
        """The labels that one seed is given at one size."""
        return self.path / "data" / f"seed-{seed}" / f"{size}.jsonl"

    def base(self, name: str) -> Path:
        return self.path / "bases" / name

    def run(self, arm: str, size: int, seed: int, rate: float | None) -> Path:
        named = "" if rate is None else f"-rate-{rate:g}"
        return self.path / "runs" / f"{arm}-{size}{named}-seed-{seed}"
