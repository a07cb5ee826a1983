"""What an experiment found, in words: the verdict, the lines of a terminal, the model card;
and the files that hold it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headswap import storage
from headswap.experiment import findings
from headswap.experiment.design import CARD, PAGE, REPORT
from headswap.report import page
from headswap.types import Table
from headswap.wording import counted


def write(path: Path) -> Table:
    """Compute report.json, report.html and card.md from an experiment's folder."""
    found = findings.compute(path)
    found["verdict"] = verdict(found)
    storage.write(path / REPORT, json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    storage.write(path / PAGE, page.render(found))
    storage.write(path / CARD, card(found))
    return found


def verdict(found: Table) -> str:
    """The answer in one sentence."""
    gain = difference(found, found["scratch"], found["winner"])
    before, after = (arm(found, name)["accuracy"] for name in (found["scratch"], found["winner"]))
    measured = f"{gain['gain']:+.3f} [{_intervals(gain)}]"
    with_labels = f"with {found['main']:,} labels"
    helped = arm(found, found["winner"])["other_labels"]
    means = "Pretraining and other labels" if helped else "Pretraining"
    if not clear(gain):
        start = (
            f"{means} made no measurable difference {with_labels}: accuracy {after:.3f} "
            f"against {before:.3f} from scratch, {measured}"
        )
    else:
        verb = "raised" if gain["gain"] > 0 else "lowered"
        change = f"{verb} accuracy from {before:.3f} to {after:.3f}"
        start = f"{means} {change} {with_labels}: {measured}"
    parts = [start]
    if helped and (alone := unaided(found)):
        parts.append(f"pretraining alone ({alone['name']}) gives {alone['accuracy']:.3f}")
    worth = worth_sentence(found)
    if worth and gain["gain"] > 0:
        parts.append(worth)
    linear = arm(found, "linear")["accuracy"]
    against = difference(found, "linear", found["winner"])
    better = "below that" if against["gain"] > 0 else "above it: use that"
    if not clear(against):
        better = "too near to tell apart"
        if clear({**against, "over_seeds": None}):
            side = "below" if against["gain"] > 0 else "above"
            better = f"{side} on these texts, but the seeds lie too far apart to be sure"
    parts.append(f"the linear baseline scores {linear:.3f}, {better}")
    return "; ".join(parts) + "."


def unaided(found: Table) -> Table | None:
    """The pretrained arm that validation prefers among those that saw no other labels."""
    rows = [
        row
        for row in found["arms"]
        if row["kind"] == "pretrained"
        and row["labels"] == found["main"]
        and not row["other_labels"]
    ]
    return max(rows, key=lambda row: row["valid_accuracy"]) if rows else None


def clear(row: Table) -> bool:
    """Whether every interval of a difference lies on one side of zero."""
    bounds = [row["over_texts"]] + ([row["over_seeds"]] if row["over_seeds"] else [])
    return all(b["low"] > 0 for b in bounds) or all(b["high"] < 0 for b in bounds)


def worth_sentence(found: Table) -> str:
    """The most telling of the sizes: what its labels do that more would be needed for."""
    rows = [row for row in found["worth"] if row["arm"] == found["winner"]]
    sure = [row for row in rows if row["low"] is None or row["low"] > row["labels"]]
    beyond = [row for row in sure if row["value"] is None and row["labels"] < row["most"]]
    if beyond:
        row = min(beyond, key=lambda row: row["labels"])
        least = "" if row["low"] is None else f" (at least {row['low']:,.0f}, 95% over texts)"
        return f"{row['labels']:,} labels with it do more than {row['most']:,} without{least}"
    inside = [row for row in sure if row["value"] is not None]
    if inside:
        row = max(inside, key=lambda row: row["value"] / row["labels"])
        return (
            f"{row['labels']:,} labels with it do the work of {row['value']:,.0f} without "
            f"[{_labels(row['low'], row)}, {_labels(row['high'], row)} over texts]"
        )
    return ""


def _labels(value: float | None, row: Table) -> str:
    return f"over {row['most']:,}" if value is None else f"{value:,.0f}"


def arm(found: Table, name: str, size: int | None = None) -> Table:
    wanted = (name, size or found["main"])
    return next(row for row in found["arms"] if (row["name"], row["labels"]) == wanted)


def difference(found: Table, one: str, two: str) -> Table:
    wanted = (one, two, found["main"])
    return next(r for r in found["differences"] if (r["from"], r["to"], r["labels"]) == wanted)


def _intervals(row: Table) -> str:
    seeds, texts = row["over_seeds"], row["over_texts"]
    shown = "no seed interval" if seeds is None else f"{_span(seeds)} over seeds"
    return f"{shown}; {_span(texts)} over texts"


def _span(interval: dict[str, Any]) -> str:
    return f"{interval['low']:.3f}, {interval['high']:.3f}"


def lines(found: Table) -> Iterator[str]:
    """The findings for a terminal."""
    yield ""
    yield f"accuracy on {counted(found['test_texts'], 'test text')}"
    sizes = found["sizes"] + found["reach"]
    yield "  " + f"{'labels':22}" + "".join(f"{size:>9,}" for size in sizes)
    names = list(dict.fromkeys(row["name"] for row in found["arms"]))
    for name in names:
        by_size = {row["labels"]: row["accuracy"] for row in found["arms"] if row["name"] == name}
        cells = [f"{by_size[size]:9.3f}" if size in by_size else " " * 9 for size in sizes]
        yield f"  {name:22}" + "".join(cells)
    yield ""
    yield verdict(found)


def card(found: Table) -> str:
    """A model card for the run that validation prefers, in Markdown."""
    best = found["best"]
    row = arm(found, best["arm"])
    texts = row["over_texts"]
    leaks, others = found["leaked_test_texts"], row["accuracy_without_leaks"]
    parts = [
        f"# {_plain(found['title'])}: {best['arm']}",
        f"A text classifier for the labels {', '.join(map(_plain, found['labels']))}, made by "
        f"Headswap {found['provenance']['headswap']} from {found['main']:,} labelled texts.",
        "## How good it is",
        f"- accuracy {row['accuracy']:.3f} [{texts[0]:.3f}, {texts[1]:.3f} over texts], macro-F1 "
        f"{row['macro_f1']:.3f}, the mean of {counted(found['seeds'], 'seed')} on "
        f"{counted(found['test_texts'], 'test text')}, scored once",
        f"- expected calibration error {row['calibration_error']:.3f}; "
        f"{row['calibration_error_tempered']:.3f} at a temperature of {row['temperature']:.2f}",
        f"- {counted(leaks, 'test text')} also in the training data"
        + (f"; accuracy on the others {others:.3f}" if leaks and others is not None else "")
        + ("; there are no others" if others is None else ""),
        "## Compared with",
        "| arm | accuracy | over texts | macro-F1 |\n|---|---|---|---|\n"
        + "\n".join(
            f"| {r['name']} | {r['accuracy']:.3f} | {r['over_texts'][0]:.3f} to "
            f"{r['over_texts'][1]:.3f} | {r['macro_f1']:.3f} |"
            for r in found["arms"]
            if r["labels"] == found["main"]
        ),
        "## The experiment",
        found["verdict"],
        "## Limits",
        "It was tested on texts like those it was trained on and on no others. It reads a "
        "limited number of tokens of each text and knows no labels but those above.",
        "## Use",
        "```sh\nheadswap predict best texts.txt\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """A name that cannot be taken for Markdown or HTML."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>()#+|!" else c for c in " ".join(text.split()))
