"""Which test texts tell most about what pretraining changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headswap.experiment.cells import Cell
from headswap.experiment.findings import Experiment
from headswap.types import Table

EXAMPLES_OF_A_KIND = 6
READABLE_WORDS = 120


def telling(path: Path) -> list[Table]:
    """The most telling test texts: those that only pretraining got right, those that it alone
    got wrong, and those that it got wrong with confidence."""
    found = Experiment(path)
    winner = found.winner
    assert winner.against is not None
    ours, theirs, plain = (found.main(name) for name in (winner.name, winner.against, "linear"))
    truth_N, labels = ours.test[0].truth_N, ours.test[0].labels
    places = np.arange(len(truth_N))
    sure, before, base = (
        np.mean([said.chances_NC[places, truth_N] for said in cell.test], axis=0)
        for cell in (ours, theirs, plain)
    )
    most = 1 / len(labels)
    hit, missed = ours.right_SN.mean(0) > 0.5, ours.right_SN.mean(0) < 0.5
    others_hit = (theirs.right_SN.mean(0) > 0.5) & (plain.right_SN.mean(0) > 0.5)
    others_missed = (theirs.right_SN.mean(0) < 0.5) & (plain.right_SN.mean(0) < 0.5)
    texts = list(found.texts("test"))
    readable = np.array([2 <= len(text.split()) <= READABLE_WORDS for text in texts])
    kinds = {
        "gained": (hit & others_missed, sure - np.maximum(before, base)),
        "lost": (missed & others_hit, np.minimum(before, base) - sure),
        "sure and wrong": (missed, most - sure),
    }
    chosen: list[Table] = []
    seen: set[int] = set()
    for kind, (which, score) in kinds.items():
        order = [int(i) for i in np.argsort(-score, kind="stable") if which[i] and readable[i]]
        for i in [i for i in order if i not in seen][:EXAMPLES_OF_A_KIND]:
            seen.add(i)
            said = {cell.arm.name: _said(cell, i) for cell in (ours, theirs, plain)}
            runs = {cell.arm.name: found.relative(cell.runs[0]) for cell in (ours, theirs)}
            chosen.append(
                {
                    "kind": kind,
                    "index": i,
                    "text": texts[i],
                    "label": labels[int(truth_N[i])],
                    "said": said,
                    "runs": runs,
                }
            )
    return chosen


def _said(cell: Cell, index: int) -> Table:
    chances = np.mean([said.chances_NC[index] for said in cell.test], axis=0)
    best = int(chances.argmax())
    return {"label": cell.test[0].labels[best], "probability": float(chances[best])}
