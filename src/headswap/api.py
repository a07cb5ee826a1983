"""The Python interface: what the commands do, in a few lines of your own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from headswap import config, pipeline, use
from headswap import settings as settings_module
from headswap.errors import UsageError
from headswap.experiment import conduct
from headswap.experiment.design import REPORT, Design, Folder
from headswap.experiment.voters import Voters
from headswap.importing.base import open_base
from headswap.progress import Reporter, Silent
from headswap.run import Run
from headswap.settings import Settings
from headswap.text import files, remote
from headswap.text.corpus import Cleaning
from headswap.text.files import Paths
from headswap.types import Table
from headswap.use import Loaded, Trained

Usable = Loaded | Voters


def train(
    objective: str,
    data: Paths,
    *,
    out: str | Path,
    recipe: str | None = None,
    base: str | Path | None = None,
    valid: Paths = (),
    test: Paths = (),
    changes: Sequence[str | Table] = (),
    device: str | None = None,
    report: Reporter | None = None,
) -> Trained:
    """Train a new run and load it. ``base`` is a run, a base that comes with Headswap, or
    ``"hf:FOLDER"``, a local Hugging Face model; ``changes`` are settings such as
    ``"train.lr=1e-3"``."""
    given = [changes] if isinstance(changes, str) else changes
    chosen = [*([{"train": {"device": device}}] if device else []), *given]
    told = report or Silent()
    settings = plan(objective, data, recipe, base, valid, test, chosen, told)
    return Trained(pipeline.start(settings, Path(out), told), device or "auto")


def resume(
    run: str | Path,
    *,
    device: str | None = None,
    data: str | Path | None = None,
    report: Reporter | None = None,
) -> Trained:
    """Bring an interrupted run to its end and load it; where it ran before, unless told."""
    folder = None if data is None else Path(data)
    done = pipeline.execute(Run.open(Path(run)), report or Silent(), device, folder)
    return Trained(done, device or "auto")


def load(run: str | Path, *, device: str = "auto") -> Usable:
    """A finished run, ready to predict and evaluate; a neural one also to generate, fill and
    embed. A folder that holds a classifier exported to ONNX will do too, and that of a finished
    experiment: the seeds of its best arm vote."""
    if Folder(Path(run)).exists():
        return Voters(Path(run), device)
    return use.load(Path(run), device)


def transfer(
    table: Paths,
    *,
    out: str | Path,
    text: Paths = (),
    valid: Paths = (),
    test: Paths = (),
    bases: Paths = (),
    objectives: str | Sequence[str] = (),
    via: Paths = (),
    labels: int | Sequence[int] = (),
    reach: int | Sequence[int] = (),
    seeds: int = 5,
    minutes: float = 60.0,
    pretraining_minutes: float | None = None,
    recipe: str | None = None,
    changes: str | Sequence[str] = (),
    base_changes: str | Sequence[str] = (),
    documents: Literal["auto", "blank", "line"] = "auto",
    text_column: str | None = None,
    label_column: str | None = None,
    clean: Cleaning | Sequence[Cleaning] = (),
    probe: bool = True,
    device: str = "auto",
    workers: int | None = None,
    on: Literal["here", "ray"] = "here",
    cpus: int = 1,
    gpus: float = 0.0,
    report: Reporter | None = None,
) -> Table:
    """Run the whole transfer experiment; return what ``report.json`` holds. The arguments are
    those of ``headswap transfer``."""
    design = Design(
        table=_names(table),
        valid=_names(valid),
        test=_names(test),
        text=_names(text),
        via=_names(via),
        bases=_names(bases),
        objectives=_names(objectives),
        labels=(labels,) if isinstance(labels, int) else tuple(labels),
        reach=(reach,) if isinstance(reach, int) else tuple(reach),
        seeds=seeds,
        minutes=minutes,
        pretraining_minutes=pretraining_minutes,
        recipe=recipe,
        changes=_names(changes),
        base_changes=_names(base_changes),
        documents=documents,
        text_column=text_column,
        label_column=label_column,
        clean=(clean,) if isinstance(clean, str) else tuple(clean),
        probe=probe,
        device=device,
        workers=workers,
        on=on,
        cpus=cpus,
        gpus=gpus,
    )
    folder = conduct.start(design, Path(out), report or Silent())
    return read_report(folder.path)


def read_report(experiment: str | Path) -> Table:
    """What a finished experiment found."""
    found: Table = json.loads((Path(experiment) / REPORT).read_text("utf-8"))
    return found


def plan(
    objective: str,
    data: Paths = (),
    recipe: str | None = None,
    base: str | Path | None = None,
    valid: Paths = (),
    test: Paths = (),
    changes: Sequence[str | Table] = (),
    report: Reporter | None = None,
) -> Settings:
    """The settings that ``train`` would run with."""
    base_settings = None
    sources: Table = {"train": _paths(data), "valid": _paths(valid), "test": _paths(test)}
    if base is not None:
        base_run = open_base(base, report or Silent())
        base_run.check_finished()
        base_settings = settings_module.from_table(base_run.settings())
        sources["base"] = base_run.reference
    given = [changes] if isinstance(changes, str) else changes
    tables = [
        config.parse_assignment(change) if isinstance(change, str) else change for change in given
    ]
    sharded = [name for name in sources["train"] if files.is_sharded(Path(name))]
    own = {key for table in tables for key in table.get("tokenizer", {})} - {"model", "pieces"}
    if own and (sharded or any(map(remote.is_url, sources["train"]))):
        raise UsageError(
            f"tokenizer.{min(own)} cannot be set beside shards, which bring their own",
            fix="leave it out",
        )
    made = settings_module.resolve(
        objective, recipe, [{"data": sources}, *tables], base=base_settings
    )
    for line in settings_module.doubts(made, recipe, base_settings):
        (report or Silent()).warn(line)
    return made


def _names(paths: Paths) -> tuple[str, ...]:
    given = [paths] if isinstance(paths, str | Path) else paths
    return tuple(str(path) for path in given)


def _paths(paths: Paths) -> list[str]:
    found: list[str] = []
    for name in _names(paths):
        found += [name] if remote.is_url(name) else map(str, files.expand([name]))
    return found
