"""Which words mattered: what each one's absence does to a prediction."""

from __future__ import annotations

import json

import numpy as np

from headswap import storage, use
from headswap.experiment.design import EXAMPLES, Folder
from headswap.experiment.telling import telling
from headswap.labelling import Labeller
from headswap.predictions import softmax
from headswap.run import Run
from headswap.types import Table

MOST_SPANS = 48


def examples(folder: Folder) -> None:
    """Store the telling examples with their words' weights, so that the report needs no torch."""
    path = folder.path / EXAMPLES
    if path.exists():
        return
    chosen = telling(folder.path)
    loaded: dict[str, use.Loaded] = {}
    for entry in chosen:
        entry["words"] = {}
        for arm, run in entry["runs"].items():
            if run not in loaded:
                loaded[run] = use.load(Run.open(folder.path / run), "cpu")
            entry["words"][arm] = words(loaded[run], entry["text"])
    storage.write(path, json.dumps(chosen, ensure_ascii=False, indent=1) + "\n")


def words(model: use.Trained | Labeller, text: str) -> list[Table]:
    """The parts of a text, each with what leaving it out takes from the log-probability of
    the predicted label (occlusion, Zeiler and Fergus 2014, section 2). A long text is taken
    in parts of several words."""
    pieces = text.split()
    stride = -(-len(pieces) // MOST_SPANS) if pieces else 1
    spans = [pieces[start : start + stride] for start in range(0, len(pieces), stride)]
    if not spans:
        return [{"text": text, "weight": 0.0}]
    without = [
        " ".join(word for j, span in enumerate(spans) if j != i for word in span)
        for i in range(len(spans))
    ]
    chances = np.log(np.maximum(softmax(model.logits([text, *without])), 1e-9))
    label = int(chances[0].argmax())
    weights = chances[0, label] - chances[1:, label]
    return [
        {"text": " ".join(span), "weight": round(float(weight), 4)}
        for span, weight in zip(spans, weights, strict=True)
    ]
