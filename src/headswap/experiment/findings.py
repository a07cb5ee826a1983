"""What an experiment found: a pure function of its folder that needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headswap import config, metrics
from headswap.experiment import voting
from headswap.experiment.cells import Cell, whole
from headswap.experiment.design import CHECK, EXAMPLES, PLAN, PROVENANCE, Folder
from headswap.experiment.plan import Arm, Job, Plan
from headswap.predictions import Predictions
from headswap.report import stats
from headswap.run import Run, shipped
from headswap.text import corpus
from headswap.text.likeness import fingerprint
from headswap.types import Table

BINS = 10


class Experiment:
    """An experiment whose runs are all there, read from its folder."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder.open(path)
        self.design = self.folder.design()
        source = path / PLAN
        if not source.exists():
            raise self.folder.unfinished()
        self.plan = Plan.loads(source.read_text("utf-8"), str(source))
        self._check_made(self.plan.trials())
        self.rates = chosen_rates(self.folder, self.plan)
        self._check_made(self.plan.final(self.rates), tested=True)
        self.cells: dict[tuple[str, int], Cell] = {}
        for arm in self.plan.arms:
            for size in self.plan.sizes_of(arm):
                paths = [
                    self.folder.run(arm.name, size, seed, self.rates.get(arm.name))
                    for seed in range(self.plan.seeds)
                ]
                self.cells[arm.name, size] = Cell(arm, size, [whole(p) for p in paths])

    def _check_made(self, jobs: Sequence[Job], tested: bool = False) -> None:
        for job in jobs:
            run = Run(self.folder.run(job.arm.name, job.size, job.seed, job.rate))
            if not run.finished or (tested and not run.tested):
                raise self.folder.unfinished()

    @cached_property
    def labelled(self) -> set[str]:
        """The arms whose bases have learnt from other labels than the experiment's."""
        bases = {base.name for base in self.plan.bases if base.labelled}
        arms = [arm for arm in self.plan.arms if arm.kind in ("pretrained", "probe")]
        return {arm.name for arm in arms if arm.base in bases}

    def main(self, name: str) -> Cell:
        return self.cells[name, self.plan.main]

    @cached_property
    def winner(self) -> Arm:
        """The pretrained arm that validation prefers: the one the verdict is about."""
        arms = [arm for arm in self.plan.arms if arm.kind == "pretrained"]
        return max(arms, key=lambda arm: self.main(arm.name).valid_accuracy)

    @cached_property
    def leaked_N(self) -> np.ndarray:
        """Which test texts also stand in train, valid or what the bases read."""
        clean = self.design.reading.cleaned
        known = {fingerprint(clean(t)) for role in ("train", "valid") for t in self.texts(role)}
        leaked = np.array([fingerprint(clean(text)) in known for text in self.texts("test")])
        leaked[self.check["leaked_from_text"]] = True
        return leaked

    @cached_property
    def check(self) -> Table:
        found: Table = json.loads((self.folder.path / CHECK).read_text("utf-8"))
        return found

    def texts(self, role: str) -> Iterable[str]:
        return (row.text for row in corpus.labelled(self.folder.data(role)))

    def relative(self, run: Run) -> str:
        return str(run.path.relative_to(self.folder.path))


def chosen_rates(folder: Folder, plan: Plan) -> dict[str, float]:
    """Each neural arm's rate: the best on validation, the lower loss where two are equal."""
    return {arm.name: chosen_rate(folder, plan, arm) for arm in plan.arms if arm.neural}


def chosen_rate(folder: Folder, plan: Plan, arm: Arm) -> float:
    tried = {rate: _valid(folder, plan, arm, rate) for rate in plan.rates(arm)}
    return max(tried, key=lambda rate: (tried[rate][0], -tried[rate][1]))


def _valid(folder: Folder, plan: Plan, arm: Arm, rate: float) -> tuple[float, float]:
    scores = Run.open(folder.run(arm.name, plan.tuned_at, 0, rate)).scores()["valid"]
    return scores["accuracy"], scores["loss"]


def compute(path: Path) -> Table:
    """Every number of the report."""
    found = Experiment(path)
    plan, winner = found.plan, found.winner
    assert winner.against is not None
    return {
        "title": found.design.title,
        "labels": list(plan.labels),
        "main": plan.main,
        "sizes": list(plan.sizes),
        "reach": list(plan.reach),
        "seeds": plan.seeds,
        "winner": winner.name,
        "scratch": winner.against,
        "test_texts": len(found.leaked_N),
        "leaked_test_texts": int(found.leaked_N.sum()),
        "arms": [_arm(found, cell) for cell in found.cells.values()],
        "differences": _differences(found),
        "votes": _votes(found),
        "worth": _worth(found),
        "epochs": [_epochs(found, arm) for arm in plan.arms if arm.neural],
        "trials": _trials(found),
        "examples": _examples(found),
        "check": found.check,
        "cost": _cost(found),
        "best": _best(found),
        "told": list(plan.told),
        "design": config.to_table(found.design),
        "provenance": json.loads((path / PROVENANCE).read_text("utf-8")),
    }


def _arm(found: Experiment, cell: Cell) -> Table:
    right_SN, kept = cell.right_SN, ~found.leaked_N
    by_seed = right_SN.mean(1)
    over_seeds = stats.over_seeds(by_seed.tolist())
    confusion = np.sum([said.confusion() for said in cell.test], axis=0)
    temperatures = [stats.temperature(said.chances_NC, said.truth_N) for said in cell.valid]
    scaled = [stats.tempered(s.chances_NC, t) for s, t in zip(cell.test, temperatures, strict=True)]
    return {
        "name": cell.arm.name,
        "kind": cell.arm.kind,
        "base": cell.arm.base,
        "other_labels": cell.arm.name in found.labelled,
        "labels": cell.size,
        "rate": found.rates.get(cell.arm.name),
        "runs": [found.relative(run) for run in cell.runs],
        "accuracy": float(by_seed.mean()),
        "accuracy_by_seed": by_seed.tolist(),
        "over_seeds": None if over_seeds is None else [over_seeds.low, over_seeds.high],
        "over_texts": _bounds(stats.mean_over_texts(right_SN)),
        "valid_accuracy": cell.valid_accuracy,
        "macro_f1": float(np.mean([metrics.macro_f1(said.confusion()) for said in cell.test])),
        "accuracy_without_leaks": float(right_SN[:, kept].mean()) if kept.any() else None,
        "calibration_error": _mean_error(cell.test, [s.chances_NC for s in cell.test]),
        "temperature": float(np.mean(temperatures)),
        "calibration_error_tempered": _mean_error(cell.test, scaled),
        "reliability": _reliability(cell) if cell.size == found.plan.main else None,
        "confusion": confusion.tolist(),
    }


def _bounds(interval: stats.Interval) -> list[float]:
    return [interval.low, interval.high]


def _mean_error(said: Sequence[Predictions], chances: Sequence[np.ndarray]) -> float:
    return float(
        np.mean(
            [
                stats.calibration_error(c.max(1), s.right_N)
                for s, c in zip(said, chances, strict=True)
            ]
        )
    )


def _reliability(cell: Cell) -> list[Table]:
    """How often the model was right among predictions of similar confidence."""
    confidence = np.concatenate([said.confidence_N for said in cell.test])
    right = np.concatenate([said.right_N for said in cell.test])
    order = np.argsort(confidence, kind="stable")
    return [
        {
            "confidence": float(confidence[part].mean()),
            "accuracy": float(right[part].mean()),
            "texts": len(part),
        }
        for part in np.array_split(order, BINS)
        if len(part)
    ]


def _differences(found: Experiment) -> list[Table]:
    """Each pretrained and probed arm against its scratch arm and against linear, at every
    size; p-values are Holm's over the comparisons of one size."""
    rows: list[Table] = []
    for size in found.plan.sizes:
        some: list[Table] = []
        for arm in found.plan.arms:
            if arm.against is None:
                continue
            for other in (arm.against, "linear"):
                some.append(_difference(found.cells[other, size], found.cells[arm.name, size]))
        adjusted = stats.holm([row["over_texts"]["p"] for row in some])
        for row, p in zip(some, adjusted, strict=True):
            row["over_texts"]["p_holm"] = p
        rows += some
    return rows


def _difference(one: Cell, two: Cell) -> Table:
    gains = (two.right_SN.mean(1) - one.right_SN.mean(1)).tolist()
    over_seeds = stats.over_seeds(gains)
    return {
        "from": one.arm.name,
        "to": two.arm.name,
        "labels": two.size,
        "gain": float(np.mean(gains)),
        "over_seeds": None if over_seeds is None else asdict(over_seeds),
        "over_texts": asdict(stats.over_texts(one.right_SN, two.right_SN)),
    }


def _votes(found: Experiment) -> list[Table]:
    """What the seeds say together at the main size; nothing where there is one seed."""
    if found.plan.seeds < 2:
        return []
    cells = [found.main(arm.name) for arm in found.plan.arms if arm.neural]
    return voting.votes(cells, found.main("linear"), found.leaked_N)


def _worth(found: Experiment) -> list[Table]:
    """How many labels the scratch arm would need to match each pretrained arm."""
    rows = []
    for arm in found.plan.arms:
        if arm.kind != "pretrained" or arm.against is None:
            continue
        sizes = [size for name, size in found.cells if name == arm.against]
        curve_KN = np.stack([found.cells[arm.against, size].right_SN.mean(0) for size in sizes])
        for size in found.plan.sizes:
            target_N = found.cells[arm.name, size].right_SN.mean(0)
            worth = stats.worth_in_labels(sizes, curve_KN, target_N)
            rows.append({"arm": arm.name, "labels": size, "most": sizes[-1], **asdict(worth)})
    return rows


def _epochs(found: Experiment, arm: Arm) -> Table:
    """Accuracy by epoch at the main size, and the epochs that the scratch arm's best takes."""
    cell = found.main(arm.name)
    scratch = arm.name if arm.kind == "scratch" else arm.against
    assert scratch is not None
    rival = found.main(scratch)
    goal = max(map(np.mean, rival.curve("valid", rival.epochs)))
    valid, train = _bands(cell, "valid", cell.epochs), _bands(cell, "train", cell.epochs[1:])
    reached = [band["epoch"] for band in valid if band["mean"] >= goal]
    return {
        "arm": arm.name,
        "valid": valid,
        "train": train,
        "goal": float(goal),
        "epochs_to_goal": reached[0] if reached else None,
    }


def _bands(cell: Cell, split: str, epochs: Sequence[float]) -> list[Table]:
    return [
        {
            "epoch": round(epoch) if epoch % 1 == 0 else round(epoch, 2),
            "mean": float(np.mean(values)),
            "low": min(values),
            "high": max(values),
        }
        for epoch, values in zip(epochs, cell.curve(split, epochs), strict=True)
    ]


def _trials(found: Experiment) -> list[Table]:
    rows = []
    for arm in found.plan.arms:
        for rate in found.plan.rates(arm) if arm.neural else ():
            accuracy, loss = _valid(found.folder, found.plan, arm, rate)
            rows.append(
                {"arm": arm.name, "rate": rate, "valid_accuracy": accuracy, "valid_loss": loss}
            )
    return rows


def _examples(found: Experiment) -> list[Any]:
    path = found.folder.path / EXAMPLES
    return list(json.loads(path.read_text("utf-8"))) if path.exists() else []


def _cost(found: Experiment) -> Table:
    """Training FLOPs, parameters and seconds, of the bases and of all runs of each arm."""
    bases = []
    for base in found.plan.bases:
        if base.run and base.run not in shipped() and not Run(Path(base.run)).exists():
            continue  # moved, or imported into a cache that was emptied since
        run = Run.open(found.folder.base(base.name) if not base.run else Path(base.run))
        imported = run.provenance().get("imported")
        origin = imported and {name: imported[name] for name in ("family", "licence")}
        known = {"name": base.name, "made_here": not base.run, "imported": origin}
        bases.append({**known, **_training(run)})
    arms = []
    for arm in found.plan.arms:
        cells = [found.cells[arm.name, size] for size in found.plan.sizes_of(arm)]
        runs = [run for cell in cells for run in cell.runs]
        facts = [_training(run) for run in runs]
        arms.append(
            {
                "name": arm.name,
                "runs": len(runs),
                "parameters": facts[0]["parameters"],
                "flops": sum(fact["flops"] for fact in facts),
                "seconds": sum(fact["seconds"] for fact in facts),
            }
        )
    return {"bases": bases, "arms": arms, "planned_minutes": found.plan.minutes}


def _training(run: Run) -> Table:
    facts = run.scores()["training"]
    return {
        "parameters": facts.get("parameters", facts.get("features", 0)),
        "tokens": facts.get("tokens", 0),
        "flops": facts.get("flops", 0.0),
        "seconds": run.seconds(),
    }


def _best(found: Experiment) -> Table:
    """The run to use: of the arm that validation prefers, the seed that it prefers."""
    cells = [found.main(arm.name) for arm in found.plan.arms]
    cell = max(cells, key=lambda cell: cell.valid_accuracy)
    values = [said.right_N.mean() for said in cell.valid]
    run = cell.runs[int(np.argmax(values))]
    return {"arm": cell.arm.name, "run": found.relative(run), "valid_accuracy": float(max(values))}
