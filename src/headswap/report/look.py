"""The page that looks inside a model: attention, masks, what mattered, what could stand there."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence

import numpy as np

from headswap.report import charts
from headswap.report import page as pages
from headswap.types import Table

KINDS = {
    "text": "the text at itself",
    "source": "the source at itself",
    "target": "the target at itself",
    "cross": "the target at its source",
}
RULES = {
    "alone": "this text",
    "padded": "its first half beside a longer text",
    "packed": "two documents in one row",
    "prefix": "a prefix that all may look at",
    "cross": "the target and its source",
}
POSITIONS = {
    "sinusoidal": "sines and cosines, added to the embedding",
    "learned": "a learned vector for each place, added to the embedding",
    "rotary": "queries and keys turned by an angle that grows with the place",
    "none": "none: only the causal mask tells places apart",
}


def page(found: Table) -> str:
    """One page with its data inside; nothing is fetched."""
    return pages.fill(
        "look.html",
        found,
        {},
        script="look.js",
        kinds=KINDS,
        rules=RULES,
        places=POSITIONS,
        data=json.dumps(found, ensure_ascii=True).replace("<", "\\u003c"),
    )


MOST_DRAWN = 64


def pictures(found: Table) -> Iterator[tuple[str, str]]:
    """Every picture as SVG by its name: matrices of up to 64 pieces, and the charts."""
    for kind in found["attention"]:
        shape = len(kind["queries"]), len(kind["keys"])
        for layer, packed in zip(kind["layers"], kind["mean"], strict=True):
            weights = (_bytes(packed).reshape(shape) / 255.0) ** 2
            name = f"attention-{kind['name']}-layer-{layer + 1}"
            yield from _matrix(name, kind["queries"], kind["keys"], weights, "looks at")
    for mask in found["masks"]:
        shape = len(mask["queries"]), len(mask["keys"])
        bits = np.unpackbits(_bytes(mask["allowed"]))[: shape[0] * shape[1]].reshape(shape)
        name = f"mask-{mask['name']}"
        yield from _matrix(name, mask["queries"], mask["keys"], 0.75 * bits, "may look at")
    yield "proof", _bars(found["pieces"], found["proof"]["moved"], "how far each vector moved")
    if told := found["attribution"]:
        yield "attribution", _bars(told["pieces"], told["weights"], f"added to {told['label']}")
    if told := found["meanings"]:
        layers = ["embedding", *(f"layer {i + 1}" for i in range(len(told["by_layer"]) - 1))]
        yield "meanings", _bars(layers, told["by_layer"], "mean distance")
    if told := found["heads"]:
        yield "heads", worth(told)


def worth(told: Table) -> str:
    """What each head is worth, as bars."""
    names = [f"{row['kind']} {row['layer'] + 1}.{row['head'] + 1}" for row in told["rows"]]
    title = f"{told['figure']} lost without the head"
    return _bars(names, [row["lost"] for row in told["rows"]], title)


def _matrix(
    name: str, queries: Sequence[str], keys: Sequence[str], values: np.ndarray, verb: str
) -> Iterator[tuple[str, str]]:
    if max(len(queries), len(keys)) > MOST_DRAWN:
        return
    rows = [
        {
            "x": f"{j:03d} {key}",
            "y": f"{i:03d} {query}",
            "value": float(np.sqrt(values[i, j])),
            "hint": f"{query} {verb} {key}: {values[i, j]:.3f}",
        }
        for i, query in enumerate(queries)
        for j, key in enumerate(keys)
    ]
    yield name, charts.heat(rows, 18)


def _bars(names: Sequence[str], values: Sequence[float], title: str) -> str:
    rows = [
        {"x": f"{i:03d} {name}", "y": value, "hint": f"{name}: {value:.3g}"}
        for i, (name, value) in enumerate(zip(names, values, strict=True))
    ]
    return charts.bars(rows, title)


def _bytes(packed: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed), dtype=np.uint8)
