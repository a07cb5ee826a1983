"""What pretraining bought a translator: arms with and without a base, by the number of pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headswap.errors import DataError, UsageError
from headswap.report import bleu, charts, stats, translations
from headswap.report import page as pages
from headswap.report.compare import check_fair
from headswap.run import METRICS, SCORES, Run
from headswap.types import Table
from headswap.wording import counted

SHAPE = ("width", "layers", "decoder_layers", "heads", "feedforward")
SCRATCH = "scratch"
EXAMPLES = 3


@dataclass(frozen=True)
class _Trained:
    """One run: its arm, base, pairs, rate and seed, and what it said."""

    arm: str
    base: str | None
    pairs: int
    rate: float
    seed: int
    valid: float
    said: list[str]
    right: list[str]
    history: list[tuple[int, float]]
    training: Table
    path: Path
    settings: Table


Cells = dict[tuple[str, int], list[_Trained]]
"""The runs that count, by arm and number of pairs."""


def compare(paths: Sequence[Path], split: str = "test", why: str | None = None) -> Table:
    """Every arm at every number of pairs, at the rate that validation prefers. Runs with as many
    pairs that differ in shape, budget or selection rule are refused, unless ``why`` says why they
    may."""
    runs = _told_apart([_read(path, split) for path in paths])
    right = runs[0].right
    if strange := next((run for run in runs if run.right != right), None):
        raise UsageError(f"{paths[0]} and {strange.path} translated different {split} sentences")
    names = list(dict.fromkeys(run.arm for run in sorted(runs, key=lambda r: r.arm != SCRATCH)))
    if SCRATCH not in names or len(names) < 2:
        raise UsageError(
            "a page about pretraining needs runs with --from and runs without",
            fix="name both kinds",
        )
    sizes = sorted({run.pairs for run in runs})
    for size in sizes:
        _check_fair([run for run in runs if run.pairs == size], why)
    cells: Cells = {
        (arm, size): some
        for arm in names
        for size in sizes
        if (some := _at_best_rate([r for r in runs if (r.arm, r.pairs) == (arm, size)]))
    }
    drawn = {key: bleu.resampled([run.said for run in cell], right) for key, cell in cells.items()}
    found: Table = {
        "split": split,
        "why": why,
        "sentences": len(right),
        "sizes": sizes,
        "main": sizes[-1],
        "signature": bleu.scores(next(iter(cells.values()))[0].said, right)["signature"],
        "arms": [_arm(key, cell, drawn[key], right) for key, cell in cells.items()],
        "differences": [
            _difference(cells[SCRATCH, size], cells[arm, size], drawn[SCRATCH, size], drawn[key])
            for key in cells
            for arm, size in [key]
            if arm != SCRATCH and (SCRATCH, size) in cells
        ],
        "trials": _trials(runs),
        "curves": [{"arm": arm, "pairs": size, **_curve(c)} for (arm, size), c in cells.items()],
        "examples": list(_examples(cells, names, sizes)),
    }
    return found | {"verdict": verdict(found)}


def _check_fair(runs: Sequence[_Trained], why: str | None) -> None:
    first, *others = runs
    for run in others:
        check_fair((first.path, first.settings), (run.path, run.settings), why)
        ours, its = first.settings["model"], run.settings["model"]
        other = next((key for key in SHAPE if ours[key] != its[key]), None)
        if why is None and other:
            raise UsageError(
                f"{first.path} and {run.path} differ in shape (model.{other}: {ours[other]} and "
                f"{its[other]})",
                fix='if the comparison is fair all the same, say why: --why "…"',
            )


def _read(path: Path, split: str) -> _Trained:
    said, right = translations.texts(path, split)
    run = Run.open(path)
    settings, scores = run.settings(), run.scores()
    base = settings["data"].get("base")
    history = []
    for line in (path / METRICS).read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["split"] == "valid" and "bleu" in entry:
            history.append((int(entry["step"]), float(entry["bleu"])))
    try:
        training, valid = scores["training"], scores["valid"]["bleu"]
        pairs = training["examples"]
    except KeyError as error:
        raise DataError(f"no {error} in it", where=path / SCORES, fix="train it again") from error
    plan = settings["train"]
    facts = (pairs, plan["lr"], plan["seed"], valid, said, right, history, training, path)
    return _Trained(SCRATCH, base, *facts, settings)


def _told_apart(runs: list[_Trained]) -> list[_Trained]:
    """The runs with arms of one name each; two bases that end alike keep their whole paths."""
    last = {run.base: Path(run.base).name for run in runs if run.base}
    names = {
        base: f"from {name if list(last.values()).count(name) == 1 else base}"
        for base, name in last.items()
    }
    return [replace(run, arm=names[run.base]) if run.base else run for run in runs]


def _at_best_rate(runs: Sequence[_Trained]) -> list[_Trained]:
    """The runs, by seed, of the rate whose mean BLEU on validation is highest."""
    if not runs:
        return []
    rates = sorted({run.rate for run in runs})
    best = max(rates, key=lambda rate: np.mean([r.valid for r in runs if r.rate == rate]))
    chosen = sorted((run for run in runs if run.rate == best), key=lambda run: run.seed)
    for one, other in pairwise(chosen):
        if one.seed == other.seed:
            raise UsageError(
                f"{one.path} and {other.path} are of one arm, rate and seed",
                fix="name one of them: what else they differ in is not compared here",
            )
    return chosen


def _arm(key: tuple[str, int], cell: list[_Trained], drawn: np.ndarray, right: list[str]) -> Table:
    by_seed = [bleu.quick(run.said, right) for run in cell]
    language = translations.language(cell[0].path)
    old = [bleu.tokenized_bleu(run.said, right, language) for run in cell]
    seeds = stats.over_seeds(by_seed)
    low, high = np.quantile(drawn[1:], [0.025, 0.975])
    return {
        "name": key[0],
        "pairs": key[1],
        "rate": cell[0].rate,
        "bleu": float(np.mean(by_seed)),
        "bleu_by_seed": by_seed,
        "over_seeds": None if seeds is None else [seeds.low, seeds.high],
        "over_sentences": [float(low), float(high)],
        "valid_bleu": float(np.mean([run.valid for run in cell])),
        bleu.OLD: float(np.mean(old)) if None not in old else None,  # type: ignore[arg-type]
        "runs": [run.path.name for run in cell],
        "flops": sum(run.training["flops"] for run in cell),
    }


def _difference(
    one: list[_Trained], two: list[_Trained], drawn_one: np.ndarray, drawn_two: np.ndarray
) -> Table:
    """The second's BLEU minus the first's: over the seeds that both have, over sentences."""
    right = one[0].right
    seeds = sorted({run.seed for run in one} & {run.seed for run in two})
    shared = [[run for run in cell if run.seed in seeds] for cell in (one, two)]
    scores = [{run.seed: bleu.quick(run.said, right) for run in cell} for cell in shared]
    if seeds and len(seeds) < max(len(one), len(two)):
        drawn_one, drawn_two = (
            bleu.resampled([run.said for run in cell], right) for cell in shared
        )
    over_seeds = stats.over_seeds([scores[1][seed] - scores[0][seed] for seed in seeds])
    return {
        "from": one[0].arm,
        "to": two[0].arm,
        "pairs": one[0].pairs,
        "seeds": len(seeds),
        "gain": float(drawn_two[0] - drawn_one[0]),
        "over_seeds": None if over_seeds is None else asdict(over_seeds),
        "over_sentences": bleu.difference(drawn_one, drawn_two),
    }


def _trials(runs: Sequence[_Trained]) -> list[Table]:
    keys = sorted({(run.pairs, run.arm, run.rate) for run in runs})
    rows = []
    for pairs, arm, rate in keys:
        some = [r.valid for r in runs if (r.pairs, r.arm, r.rate) == (pairs, arm, rate)]
        rows.append({"arm": arm, "pairs": pairs, "rate": rate, "valid_bleu": float(np.mean(some))})
    return rows


def _curve(cell: Sequence[_Trained]) -> Table:
    """Validation BLEU by step: the mean, lowest and highest seed."""
    steps = sorted(set.intersection(*({step for step, _ in run.history} for run in cell)))
    table = [[dict(run.history)[step] for run in cell] for step in steps]
    return {
        "steps": steps,
        "mean": [float(np.mean(row)) for row in table],
        "low": [min(row) for row in table],
        "high": [max(row) for row in table],
    }


def _examples(cells: Cells, names: Sequence[str], sizes: Sequence[int]) -> Iterator[Table]:
    """Sentences of the smallest set that gained and lost most, by chrF."""
    one, two = (cells.get((name, sizes[0])) for name in (SCRATCH, names[1]))
    if not one or not two:
        return
    right = one[0].right
    before, after = (bleu.sentence_scores(cell[0].said, right) for cell in (one, two))
    order = np.argsort(after - before, kind="stable")
    for kind, places in (("gained", order[::-1][:EXAMPLES]), ("lost", order[:EXAMPLES])):
        for place in map(int, places):
            yield {
                "kind": kind,
                "right": right[place],
                SCRATCH: one[0].said[place],
                "pretrained": two[0].said[place],
            }


def verdict(found: Table) -> str:
    """The answer in one sentence for each number of pairs."""
    parts = []
    for row in sorted(found["differences"], key=lambda row: row["pairs"]):
        by_name = {r["name"]: r["bleu"] for r in found["arms"] if r["pairs"] == row["pairs"]}
        seeds, texts = row["over_seeds"], row["over_sentences"]
        bounds = [texts] + ([seeds] if seeds else [])
        told = "no seed interval"
        if seeds:
            told = f"{seeds['low']:.2f}, {seeds['high']:.2f} over {counted(row['seeds'], 'seed')}"
        measured = (
            f"{row['gain']:+.2f} [{told}; {texts['low']:.2f}, {texts['high']:.2f} over sentences]"
        )
        with_pairs = f"with {row['pairs']:,} pairs"
        change = f"BLEU {by_name[row['from']]:.2f} to {by_name[row['to']]:.2f}"
        if all(b["low"] > 0 for b in bounds):
            parts.append(f"{with_pairs} pretraining helped, {change}: {measured}")
        elif all(b["high"] < 0 for b in bounds):
            parts.append(f"{with_pairs} pretraining did harm, {change}: {measured}")
        else:
            parts.append(f"{with_pairs} it made no measurable difference, {change}: {measured}")
    if not parts:
        return "No number of pairs has runs both with and without a base: nothing to compare."
    told = "; ".join(parts)
    return told[:1].upper() + told[1:] + "."


def lines(found: Table) -> Iterator[str]:
    yield f"BLEU on {counted(found['sentences'], found['split'] + ' sentence')}; sacreBLEU " + str(
        found["signature"]
    )
    for row in found["arms"]:
        low, high = row["over_sentences"]
        yield (
            f"  {row['name']:20} {row['pairs']:>8,} pairs  {row['bleu']:6.2f} "
            f"[{low:.2f}, {high:.2f} over sentences]  rate {row['rate']:g}"
        )
    yield found["verdict"]


def page(found: Table) -> str:
    """The findings as a page like the transfer report's."""
    names = list(dict.fromkeys(row["name"] for row in found["arms"]))
    arms = {name: number for number, name in enumerate(names)}
    main = [row for row in found["arms"] if row["pairs"] == found["main"]]
    drawn = {
        "arms": charts.intervals([_dot(row) for row in main], arms, "test BLEU"),
        "gains": _gains(found),
    }
    if len(found["sizes"]) > 1:
        points = [{**_dot(row), "x": row["pairs"]} for row in found["arms"]]
        pages.tell_alone(points, "pairs", 2)
        drawn["pairs"] = charts.lines(points, arms, _pairs_axis(found["sizes"]), BLEU)
    for size in found["sizes"]:
        points = [p for row in found["curves"] if row["pairs"] == size for p in _by_step(row)]
        drawn[f"steps {size}"] = charts.lines(points, arms, STEP, BLEU)
    return pages.fill("translators.html", found, drawn, main=main, names=names)


BLEU = {"type": "quantitative", "scale": {"zero": False}, "axis": {"title": "BLEU"}}
STEP = {"type": "quantitative", "axis": {"title": "step", "format": ",d"}}


def _pairs_axis(sizes: Sequence[int]) -> Table:
    return {
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 24},
        "axis": {"title": "training pairs", "values": list(sizes), "format": ",d"},
    }


def _dot(row: Table) -> Table:
    low, high = row["over_sentences"]
    seeds = row["over_seeds"] or (None, None)
    return {
        "series": row["name"],
        "y": row["bleu"],
        "low": low,
        "high": high,
        "low_seeds": seeds[0],
        "high_seeds": seeds[1],
        "hint": f"{row['name']}, {row['pairs']:,} pairs: {row['bleu']:.2f} "
        f"[{low:.2f}, {high:.2f} over sentences]",
    }


def _gains(found: Table) -> str:
    rows = []
    for number, row in enumerate(found["differences"]):
        series = f"{row['to']} − {row['from']}, {row['pairs']:,} pairs"
        texts, seeds = row["over_sentences"], row["over_seeds"] or {"low": None, "high": None}
        gain: dict[str, Any] = {
            "series": series,
            "y": row["gain"],
            "low": texts["low"],
            "high": texts["high"],
            "low_seeds": seeds["low"],
            "high_seeds": seeds["high"],
            "number": number,
            "hint": f"{series}: {row['gain']:+.2f} "
            f"[{texts['low']:.2f}, {texts['high']:.2f} over sentences]",
        }
        rows.append(gain)
    colours = {row["series"]: row["number"] + 1 for row in rows}
    return charts.intervals(rows, colours, "difference in BLEU", zero=True)


def _by_step(row: Table) -> Iterator[Table]:
    for step, mean, low, high in zip(
        row["steps"], row["mean"], row["low"], row["high"], strict=True
    ):
        yield {
            "x": step,
            "y": mean,
            "low": low,
            "high": high,
            "series": row["arm"],
            "hint": f"{row['arm']}, step {step:,}: {mean:.2f} ({low:.2f} to {high:.2f} over seeds)",
        }
