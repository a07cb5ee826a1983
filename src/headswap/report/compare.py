"""Runs compared with each other, on the same texts and seed by seed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headswap import metrics, predictions
from headswap.errors import UsageError
from headswap.predictions import Predictions
from headswap.report import stats
from headswap.run import EXPERIMENT, Run
from headswap.types import Table
from headswap.wording import counted

Split = Literal["test", "valid"]
LINEAR = "linear"
SAME = {
    "train.steps": "budget",
    "train.epochs": "budget",
    "train.tokens": "budget",
    "train.minutes": "budget",
    "train.keep": "selection rule",
    "train.select": "selection rule",
    "train.patience": "selection rule",
}


@dataclass(frozen=True)
class Scored:
    """One run and its predictions."""

    run: Path
    seed: int
    settings: Table
    said: Predictions


@dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but their seed."""

    name: str
    runs: list[Scored]

    @property
    def right_SN(self) -> np.ndarray:
        return np.stack([run.said.right_N for run in self.runs])


def compare(paths: Sequence[Path], split: Split = "test", why: str | None = None) -> Table:
    """Every arm's scores, and each later arm against the first.

    Runs that differ in test data are refused; so are runs that differ in budget or selection
    rule, unless ``why`` says why the comparison is fair all the same.
    """
    if len(paths) < 2:
        raise UsageError("one run cannot be compared", fix="name two or more")
    runs = [read(path, split) for path in paths]
    _check_comparable(runs, split, why)
    arms = list(_arms(runs))
    first = arms[0]
    against = [_difference(first, arm) for arm in arms[1:]]
    if len(against) > 1:
        adjusted = stats.holm([row["over_texts"]["p"] for row in against])
        for row, p in zip(against, adjusted, strict=True):
            row["over_texts"]["p_holm"] = p
    return {
        "split": split,
        "texts": len(first.runs[0].said.truth_N),
        "why": why,
        "arms": [_summary(arm) for arm in arms],
        "differences": against,
    }


def read(path: Path, split: Split) -> Scored:
    """A finished run's predictions for a split."""
    run = Run.open(path)
    run.check_finished()
    settings = {**run.settings(), "hashes": run.provenance()["data"]}
    return Scored(path, settings["train"]["seed"], settings, predictions.read(run, split))


def _check_comparable(runs: Sequence[Scored], split: Split, why: str | None) -> None:
    first = runs[0]
    for run in runs[1:]:
        if _source(first, split) != _source(run, split) or _truth(first) != _truth(run):
            raise UsageError(
                f"{first.run} and {run.run} were scored on different {split} data",
                fix=f"train both with the same --{split}",
            )
        check_fair((first.run, first.settings), (run.run, run.settings), why)


def check_fair(first: tuple[Path, Table], second: tuple[Path, Table], why: str | None) -> None:
    """Refuse two runs, each with its settings, that differ in budget or selection rule."""
    (path, settings), (other, others) = first, second
    if why is not None or LINEAR in (settings["objective"], others["objective"]):
        return  # a linear model has no training budget, and one rule of selection
    for key, what in SAME.items():
        section, name = key.split(".")
        one, two = (table[section].get(name) for table in (settings, others))
        if one != two:
            raise UsageError(
                f"{path} and {other} differ in {what} ({key}: {one} and {two})",
                fix='if the comparison is fair all the same, say why: --why "…"',
            )


def _arms(runs: Sequence[Scored]) -> Iterator[Arm]:
    groups: dict[str, list[Scored]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_without_seed(run), sort_keys=True), []).append(run)
    for group in groups.values():
        seeds = [run.seed for run in group]
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            same = [str(run.run) for run in group if run.seed == twice[0]]
            raise UsageError(
                f"{' and '.join(same[:2])} have the same settings and the same seed",
                fix="name each run once",
            )
        name = re.sub(r"([-_.]?seed)?[-_.]?\d+$", "", group[0].run.name) or group[0].run.name
        yield Arm(name if len(group) > 1 else group[0].run.name, sorted(group, key=_seed))


def _without_seed(run: Scored) -> Table:
    """What the runs of an arm have in common. The seeds of an experiment have their own files
    of labels, named by how many they are."""
    settings = {**run.settings, "train": {**run.settings["train"], "seed": None}}
    if (run.run.resolve().parent.parent / EXPERIMENT).is_file():
        sizes = [Path(path).name for path in settings["data"]["train"]]
        settings["data"] = {**settings["data"], "train": sizes}
        settings["hashes"] = {**settings["hashes"], "train": None}
    return settings


def _source(run: Scored, split: Split) -> object:
    """What decides the texts of a split: its files, or those that it was held out of, and how."""
    hashes = run.settings["hashes"]
    return hashes.get(split) or (hashes["train"], run.seed, run.settings["data"].get("hold_out"))


def _truth(run: Scored) -> list[str]:
    return [run.said.labels[number] for number in run.said.truth_N]


def _seed(run: Scored) -> int:
    return run.seed


def _summary(arm: Arm) -> Table:
    right_SN = arm.right_SN
    by_seed = right_SN.mean(1)
    return {
        "name": arm.name,
        "seeds": [run.seed for run in arm.runs],
        "accuracy": float(by_seed.mean()),
        "accuracy_by_seed": by_seed.tolist(),
        "accuracy_over_seeds": _bounds(stats.over_seeds(by_seed.tolist())),
        "accuracy_over_texts": _bounds(stats.mean_over_texts(right_SN)),
        "macro_f1": float(np.mean([metrics.macro_f1(run.said.confusion()) for run in arm.runs])),
        "calibration_error": float(
            np.mean(
                [
                    stats.calibration_error(run.said.confidence_N, run.said.right_N)
                    for run in arm.runs
                ]
            )
        ),
    }


def _difference(one: Arm, two: Arm) -> Table:
    """Two minus one: of the seeds that both have, where they share any."""
    ours = {run.seed: run for run in one.runs}
    theirs = {run.seed: run for run in two.runs}
    shared = sorted(ours.keys() & theirs.keys())
    gains = [float(theirs[s].said.right_N.mean() - ours[s].said.right_N.mean()) for s in shared]
    over_seeds = stats.over_seeds(gains)
    one_SN, two_SN = one.right_SN, two.right_SN
    if shared:
        one_SN, two_SN = (
            np.stack([runs[seed].said.right_N for seed in shared]) for runs in (ours, theirs)
        )
    return {
        "from": one.name,
        "to": two.name,
        "gain": float(two_SN.mean() - one_SN.mean()),
        "paired_seeds": shared,
        "over_seeds": None if over_seeds is None else asdict(over_seeds),
        "over_texts": asdict(stats.over_texts(one_SN, two_SN)),
    }


def _bounds(interval: stats.Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def lines(found: Table) -> Iterator[str]:
    """The comparison for a terminal."""
    yield f"accuracy on {counted(found['texts'], found['split'] + ' text')}, 95% intervals"
    for arm in found["arms"]:
        seeds = arm["accuracy_over_seeds"]
        shown = "no seed interval (one seed)" if seeds is None else f"over seeds {_show(seeds)}"
        yield (
            f"  {arm['name']:16} {arm['accuracy']:.4f}  "
            f"over texts {_show(arm['accuracy_over_texts'])}  {shown}  "
            f"macro-F1 {arm['macro_f1']:.4f}"
        )
    for row in found["differences"]:
        seeds, texts = row["over_seeds"], row["over_texts"]
        shown = "no seed interval" if seeds is None else f"over {_paired(row)} {_pair(seeds)}"
        holm = f", Holm p {texts['p_holm']:.3g}" if "p_holm" in texts else ""
        yield (
            f"  {row['to']} - {row['from']}: {row['gain']:+.4f}  over texts {_pair(texts)} "
            f"(p {texts['p']:.3g}{holm})  {shown}"
        )
    if found["why"]:
        yield f"  compared although budgets or selection differ: {found['why']}"


def _paired(row: Table) -> str:
    return counted(len(row["paired_seeds"]), "paired seed")


def _pair(interval: dict[str, Any]) -> str:
    return _show([interval["low"], interval["high"]])


def _show(bounds: Sequence[float]) -> str:
    return f"[{bounds[0]:.4f}, {bounds[1]:.4f}]"
