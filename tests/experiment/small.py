"""An experiment that takes seconds."""

from __future__ import annotations

from pathlib import Path

from conftest import corpus_text, review_rows, write_jsonl
from headswap.experiment.design import Design

SHAPE = ("model.width=16", "model.heads=2", "model.layers=1", "model.feedforward=32")
SHAPE += ("model.length=32", "tokenizer.vocabulary=330", "train.steps=5")
QUICK = {
    "base_changes": tuple(change for change in SHAPE if "steps" not in change),
    "pretraining_minutes": 0.01,
    "changes": ("train.epochs=2",),
    "workers": 1,
    "device": "cpu",
    "seeds": 2,
    "minutes": 5.0,
}


def files(folder: Path) -> dict[str, Path]:
    text = folder / "corpus.txt"
    text.write_text(corpus_text(60), "utf-8")
    rows = review_rows(160)
    rows[5]["label"] = rows[6]["label"] = "good"
    return {
        "text": text,
        "table": write_jsonl(folder / "table.jsonl", rows),
        "test": write_jsonl(folder / "test.jsonl", [*review_rows(80, 9), rows[0]]),
    }


def design(paths: dict[str, Path], **given: object) -> Design:
    named = {name: (str(path),) for name, path in paths.items()}
    shaped = {} if given.get("objectives") or not given.get("bases") else {"base_changes": ()}
    return Design(**{**named, **QUICK, **shaped, **given})
