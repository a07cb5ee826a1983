"""All that is shown of one text, as one table: what the page, the pictures and the server read."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import numpy as np

from headswap.looking.attention import Heads, Seen, attention, rollout
from headswap.looking.attribution import attribute
from headswap.looking.candidates import candidates
from headswap.looking.context import meanings
from headswap.looking.masks import masks, passes, proof
from headswap.looking.positions import positions
from headswap.looking.reading import Read, read
from headswap.nn.visibility import Rule
from headswap.objectives import Classify
from headswap.types import Table
from headswap.use import Trained
from headswap.wording import counted

ROOM = 3_400_000
POSITIONS, WIDTH = 128, 128


def picture(
    trained: Trained,
    text: str,
    *,
    target: str | None = None,
    sees: Rule | None = None,
    label: str | None = None,
    word: str | None = None,
    sentences: Sequence[str] = (),
    heads: Heads | None = None,
) -> Table:
    """Everything that this run can show of a text."""
    objective = trained.settings.objective
    seen = read(trained, text, target, sees)
    held = proof(trained, seen)
    found: Table = {
        "run": trained.run.path.name,
        "objective": objective.name,
        "text": text,
        "target": seen.target,
        "pieces": seen.pieces,
        "causal": seen.inputs.visibility.rule == "causal",
        "attention": attentions(attention(trained, seen)),
        "masks": [
            {
                "name": mask.name,
                "queries": mask.queries,
                "keys": mask.keys,
                "allowed": packed_bits(mask.allowed_TS),
            }
            for mask in masks(trained, seen)
        ],
        "proof": {
            "changed": held.changed,
            "was": held.was,
            "became": held.became,
            "moved": held.moved,
            "allowed": held.allowed,
            "holds": held.holds,
        },
        "passes": None if (both := passes(trained, seen)) is None else vars(both),
        "positions": _positions(trained),
        "attribution": None,
        "candidates": None,
        "meanings": None,
        "heads": None,
    }
    if isinstance(objective, Classify):
        found["attribution"] = attributed(trained, seen, label)
    else:
        found["candidates"] = listed(trained, seen)
    if word is not None:
        told = meanings(trained, word, sentences)
        found["meanings"] = {
            "word": word,
            "sentences": told.sentences,
            "by_layer": told.by_layer,
            "last": told.distances_LNN[-1].round(4).tolist(),
        }
    if heads is not None:
        rows = [vars(row) for row in heads.rows]
        found["heads"] = {"figure": heads.figure, "whole": heads.whole, "rows": rows}
    return found


def attentions(seen: Sequence[Seen]) -> list[Table]:
    """Weights in a byte each (of their square root), within the page's room: where all would be
    too many, evenly chosen layers are kept, and each kind says which."""
    each = {one.name: sum(layer.size for layer in one.layers) * 4 / 3 for one in seen}
    share = min(1.0, ROOM / sum(each.values()))
    found = []
    for one in seen:
        count = len(one.layers)
        places = np.linspace(0, count - 1, max(1, int(count * share)))
        kept = sorted(set(places.round().astype(int).tolist()))
        some = [one.layers[index] for index in kept]
        room = ROOM * each[one.name] / sum(each.values())
        size = sum(layer[0].size for layer in some) * 4 / 3
        heads = max(1, min(some[0].shape[0], int(room / size)))
        row: Table = {
            "name": one.name,
            "causal": one.causal,
            "queries": one.queries,
            "keys": one.keys,
            "of": [count, one.layers[0].shape[0]],
            "layers": kept,
            "heads": heads,
            "weights": [[packed_weights(head) for head in layer[:heads]] for layer in some],
            "mean": [packed_weights(layer.mean(0)) for layer in some],
        }
        if one.name != "cross":
            row["rollout"] = packed_weights(rollout(one.layers))
        found.append(row)
    return found


def attributed(trained: Trained, seen: Read, label: str | None = None) -> Table:
    """A classifier's label with what each piece added to its score."""
    return vars(attribute(trained, seen, label))


def listed(trained: Trained, seen: Read) -> list[Table]:
    """What could stand at each place."""
    return [
        {
            "piece": place.piece,
            "chance": place.chance,
            "likeliest": [[c.token, c.probability] for c in place.likeliest],
        }
        for place in candidates(trained, seen)
    ]


def lines(found: Table) -> Iterator[str]:
    """What a terminal shows of it."""
    if found["target"] is not None:
        yield f"translation: {found['target']}"
    for kind in found["attention"]:
        layers, heads = kind["of"]
        what = "its source" if kind["name"] == "cross" else "itself"
        yield (
            f"{'target' if kind['name'] == 'cross' else kind['name']} looks at {what}: "
            f"{counted(layers, 'layer')} of {counted(heads, 'head')}"
        )
    held = found["proof"]
    blind = sum(not may for may in held["allowed"])
    low, high = min(held["moved"]), max(held["moved"])
    outcome = f"every position may look at it; they moved by {low:.3f} to {high:.3f}"
    if blind:
        moved = "none moved" if held["holds"] else "SOME MOVED"
        outcome = f"of {counted(blind, 'position')} that may not look at it, {moved}"
    yield f"{held['was']} became {held['became']} at place {held['changed']}: {outcome}"
    if told := found["passes"]:
        yield (
            f"{counted(told['positions'], 'next token')} in one masked pass: loss "
            f"{told['loss_at_once']:.4f} in {1e3 * told['seconds_at_once']:.1f} ms; position by "
            f"position: "
            f"{told['loss_one_by_one']:.4f} in {1e3 * told['seconds_one_by_one']:.1f} ms"
        )
    if found["attribution"]:
        told = found["attribution"]
        pairs = sorted(zip(told["weights"], told["pieces"], strict=True), key=lambda p: -abs(p[0]))
        best = ", ".join(f"{piece} {weight:+.3f}" for weight, piece in pairs[:6])
        apart = told["score"] - told["baseline"]
        yield f"{told['label']}: {best}"
        yield f"the weights add up to {sum(told['weights']):.3f}; the words made {apart:.3f}"
    for place in (found["candidates"] or [])[-1:]:
        likely = ", ".join(f"{token} {chance:.2f}" for token, chance in place["likeliest"])
        yield f"in the place of {place['piece']} ({place['chance']:.3f}): {likely}"
    if told := found["heads"]:
        rows = sorted(told["rows"], key=lambda row: -row["lost"])[:4]
        names = [f"{r['kind']} {r['layer'] + 1}.{r['head'] + 1} {r['lost']:+.4f}" for r in rows]
        yield f"{told['figure']} {told['whole']:.4f}; worth most (layer.head): {', '.join(names)}"
    if found["meanings"]:
        told = found["meanings"]
        steps = " ".join(f"{value:.3f}" for value in told["by_layer"])
        yield f"mean distance of {told['word']!r} between its sentences, layer by layer: {steps}"


def packed_weights(weights_TS: np.ndarray) -> str:
    """A byte for the square root of each weight: small ones keep their differences."""
    values = np.sqrt(np.clip(weights_TS, 0, 1)) * 255
    return base64.b64encode(values.round().astype(np.uint8).tobytes()).decode("ascii")


def packed_bits(allowed_TS: np.ndarray) -> str:
    return base64.b64encode(np.packbits(allowed_TS.ravel()).tobytes()).decode("ascii")


def _positions(trained: Trained) -> Table:
    found = positions(trained, POSITIONS)
    table = found.table_TD[:, :WIDTH]
    scale = max(float(np.abs(table).max()), 1e-9) if table.size else 1.0
    values = ((table / scale + 1) * 127.5).round().astype(np.uint8)
    return {
        "kind": found.kind,
        "rows": table.shape[0],
        "columns": table.shape[1],
        "table": base64.b64encode(values.tobytes()).decode("ascii"),
        "alike": [round(value, 5) for value in found.alike],
    }
