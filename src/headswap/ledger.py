"""The ledger: every parameter, FLOP and byte of a model, counted from its structure.

Nothing is built to count it, so it works for models that would not fit in memory. FLOPs are
those of the matrix products, two for a multiplication and its addition; a training step costs
three times its forward pass, once more for the gradients of the inputs and once for those of
the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headswap.nn.mixers import MIXERS, linear
from headswap.nn.spec import Cost, Dim, Dims, HeadSpec, Stack
from headswap.types import Table

TRAINING = 3
WEIGHT_BYTES = 4
ADAMW_BYTES, MUON_BYTES = 8, 4
"""Of an optimizer's state for a weight; what is no matrix of a layer always learns by AdamW."""
SYMBOLS = {
    "V": "tokens of the vocabulary",
    "d": "width",
    "f": "width of the feed-forward",
    "h": "heads",
    "n": "tokens of a sequence",
    "m": "tokens of its translation",
    "k": "kernel",
    "C": "classes",
    "P": "positions",
}


@dataclass(frozen=True)
class Entry:
    """One tensor: its dotted name and its dimensions."""

    name: str
    dims: Dims

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.dims)

    @property
    def count(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def formula(self) -> str:
        return "·".join(dim.symbol for dim in self.dims)

    @property
    def numbers(self) -> str:
        return " × ".join(f"{size:,}" for size in self.shape)


def entries(stack: Stack, vocabulary: int, heads: Mapping[str, HeadSpec]) -> list[Entry]:
    """Every parameter tensor of a model, tied weights once."""
    table = (Dim("V", vocabulary), Dim("d", stack.width))
    found = [Entry("backbone.embedding.weight", table)]
    if not stack.decoder_layers:
        found += _stack("backbone", stack, stack.layers)
    else:
        if not stack.shared_embedding:
            found.append(Entry("backbone.encoder.embedding.weight", table))
        found += _stack("backbone.encoder", stack, stack.layers)
        found += _stack("backbone.decoder", stack, stack.decoder_layers, cross=True)
    for name, spec in heads.items():
        found += _named(f"heads.{name}", spec.tensors())
    return found


def parameters(stack: Stack, vocabulary: int, heads: Mapping[str, HeadSpec]) -> Table:
    """Totals by part."""
    listed = entries(stack, vocabulary, heads)

    def total(*parts: str) -> int:
        """The parameters whose name has all of these parts."""
        return sum(entry.count for entry in listed if all(part in entry.name for part in parts))

    counts: Table = {
        "total": total(),
        "backbone": total("backbone."),
        "embedding": total("embedding.weight"),
        "layers": total(".layers."),
        "other_norms": total("embedding_norm.") + total("final_norm."),
        "heads": {name: total(f"heads.{name}.") for name in heads},
    }
    kinds = {"layer": "backbone.layers.0."}
    if stack.decoder_layers:
        kinds = {"encoder layer": "encoder.layers.0.", "decoder layer": "decoder.layers.0."}
    counts["each"] = {}
    mixer = MIXERS[stack.mixer].module
    for kind, layer in kinds.items():
        parts = {
            mixer: total(f"{layer}{mixer}."),
            "cross-attention": total(f"{layer}cross."),
            "feedforward": total(f"{layer}feedforward."),
        }
        parts = {part: count for part, count in parts.items() if count}
        whole = total(layer)
        norms = whole - sum(parts.values())
        counts["each"][kind] = {"total": whole, **parts, "norms": norms}
    return counts


def tree(listed: list[Entry], frozen: str = "none", freeze_layers: int = 0) -> list[Table]:
    """The tensors as rows of a tree, equal layers as one row that says how many there are.
    A row has depth, name, times, count (of all of them) and, for a tensor, its formula."""
    total = sum(entry.count for entry in listed)
    groups: dict[str, list[Entry]] = {}
    for entry in listed:
        groups.setdefault(re.sub(r"layers\.\d+\.", "layers.*.", entry.name), []).append(entry)
    rows: list[Table] = []
    opened: list[str] = []
    for pattern, same in groups.items():
        *path, leaf = _parts(pattern)
        while opened != path[: len(opened)]:
            opened.pop()
        for part in path[len(opened) :]:
            opened.append(part)
            inside = [
                entry
                for other, some in groups.items()
                if _parts(other)[: len(opened)] == opened
                for entry in some
            ]
            rows.append(_row(opened, part, inside, total))
        count = sum(entry.count for entry in same)
        rows.append(
            {
                "depth": len(path),
                "name": leaf,
                "path": pattern,
                "times": len(same),
                "shape": list(same[0].shape),
                "formula": same[0].formula,
                "numbers": same[0].numbers,
                "count": count,
                "share": count / total,
                "trainable": any(_learns(e.name, frozen, freeze_layers) for e in same),
                "frozen": sum(not _learns(e.name, frozen, freeze_layers) for e in same),
            }
        )
    return rows


def forward(
    stack: Stack,
    heads: Mapping[str, HeadSpec],
    length: float,
    scored: float = 1.0,
    target: float | None = None,
) -> list[Table]:
    """The FLOPs of one token's forward pass, part by part.

    A head of the vocabulary is reached by a ``scored`` share of the tokens, a classifier's by
    one token of a text. Of a translator, the encoder's lines are a source token's and the
    decoder's a target token's, for a source of ``length`` and a target of ``target`` tokens.
    """
    inner = Cost("feed-forward", *_feedforward(stack))
    mixer = MIXERS[stack.mixer].costs
    lines: list[Table] = []
    if not stack.decoder_layers:
        lines += _lines("layer", [*mixer(stack, length), inner], stack.layers)
    else:
        size = length if target is None else target
        lines += _lines("encoder layer", [*mixer(stack, length), inner], stack.layers)
        own = [cost._replace(formula=cost.formula.replace("n", "m")) for cost in mixer(stack, size)]
        d = stack.width
        cross = [
            Cost("queries and output of cross-attention", "2·2d²", 4 * d * d),
            Cost("scores and mixing of cross-attention", "4·n·d", 4 * length * d),
            Cost("keys and values of the source", "2·2d²·n/m", 4 * d * d * length / size),
        ]
        lines += _lines("decoder layer", [*own, *cross, inner], stack.decoder_layers)
    for name, spec in heads.items():
        share = scored if _scores_vocabulary(spec) else 1 / max(length, 1)
        lines += _lines(f"head {name}", spec.costs(share), 1)
    return lines


def flops_a_token(
    stack: Stack,
    heads: Mapping[str, HeadSpec],
    length: float,
    scored: float,
    causal: bool = False,
) -> float:
    """Training FLOPs for each token that is read; a translator reads source and target. With
    ``causal`` the half of attention that fused kernels leave out is not counted."""
    sides = 2 if stack.decoder_layers else 1  # of equal length
    total = 0.0
    for line in forward(stack, heads, length, sides * scored):
        share = 0.5 if causal and line["part"] == "scores and mixing" else 1.0
        total += line["flops"] * line["times"] * share
    return TRAINING * total / sides


def memory(
    stack: Stack, listed: Sequence[Entry], optimizer: str = "adamw", average: bool = False
) -> Table:
    """Bytes that do not depend on the batch: weights, gradients, the optimizer's state, and
    what a decoded token adds to the key-value cache."""
    count = sum(entry.count for entry in listed)
    matrices = sum(e.count for e in listed if ".layers." in e.name and len(e.dims) == 2)
    by_muon = matrices if optimizer == "muon" else 0
    state = ADAMW_BYTES * (count - by_muon) + MUON_BYTES * by_muon
    layers = stack.decoder_layers or stack.layers
    cached = 2 * layers * stack.width if stack.mixer == "attention" else 0
    return {
        "weights": WEIGHT_BYTES * count * (2 if average else 1),
        "gradients": WEIGHT_BYTES * count,
        "optimizer": state,
        "cache_a_token": WEIGHT_BYTES * cached,
        "formulas": {
            "weights": "4 bytes each" + (", and their average" if average else ""),
            "gradients": "4 bytes each",
            "optimizer": f"{ADAMW_BYTES} bytes each"
            + (f", {MUON_BYTES} in the layers' matrices" if by_muon else ""),
            "cache_a_token": "2·layers·d·4 bytes" if cached else "none",
        },
    }


def _scores_vocabulary(spec: HeadSpec) -> bool:
    return hasattr(spec, "vocabulary")


def _feedforward(stack: Stack) -> tuple[str, float]:
    matrices = 3 if stack.gated else 2
    return f"2·{matrices}·d·f", 2 * matrices * stack.width * stack.feedforward


def _lines(of: str, costs: list[Cost], times: int) -> list[Table]:
    return [{"of": of, "times": times, **cost._asdict()} for cost in costs]


def _row(path: list[str], name: str, inside: list[Entry], total: int) -> Table:
    count = sum(entry.count for entry in inside)
    times = len({m[0] for e in inside if (m := re.search(r"layers\.\d+", e.name))})
    shown = f"layers × {times}" if name == "layers.*" else name
    return {
        "depth": len(path) - 1,
        "name": shown,
        "path": ".".join(path),
        "times": 1,
        "count": count,
        "share": count / total,
    }


def _parts(pattern: str) -> list[str]:
    return pattern.replace("layers.*", "layers:*").replace(".", "/").replace(":", ".").split("/")


def _learns(name: str, frozen: str, freeze_layers: int) -> bool:
    if frozen == "backbone":
        return not name.startswith("backbone.")
    layer = re.match(r"backbone\.(?:encoder\.)?layers\.(\d+)\.", name)  # a decoder's all learn
    if layer is not None:
        return int(layer[1]) >= freeze_layers
    return not ((frozen == "embedding" or freeze_layers) and "embedding.weight" in name)


def _stack(name: str, stack: Stack, layers: int, cross: bool = False) -> list[Entry]:
    """One stack without its embedding."""
    found = []
    if stack.positions == "learned":
        dims = (Dim("P", stack.length), Dim("d", stack.width))
        found.append(Entry(f"{name}.position_embedding.weight", dims))
    if stack.embedding_norm:
        found += _norm(f"{name}.embedding_norm", stack)
    for index in range(layers):
        layer = f"{name}.layers.{index}"
        mixer = MIXERS[stack.mixer]
        found += _named(f"{layer}.{mixer.module}", mixer.tensors(stack))
        found += list(_feedforward_tensors(layer, stack))
        found += _norm(f"{layer}.attention_norm", stack) + _norm(f"{layer}.feedforward_norm", stack)
        if cross:
            found += _cross(layer, stack)
    if stack.final_norm:
        found += _norm(f"{name}.final_norm", stack)
    return found


def _cross(name: str, stack: Stack) -> list[Entry]:
    width = Dim("d", stack.width)
    both = Dim("2d", 2 * stack.width)
    found = _named(f"{name}.cross", linear("q", width, width, stack.bias))
    found += _named(f"{name}.cross", linear("kv", width, both, stack.bias))
    found += _named(f"{name}.cross", linear("out", width, width, stack.bias))
    return found + _norm(f"{name}.cross_norm", stack)


def _feedforward_tensors(name: str, stack: Stack) -> Iterator[Entry]:
    width, inner = Dim("d", stack.width), Dim("f", stack.feedforward)
    up = Dim("2f", 2 * stack.feedforward) if stack.gated else inner
    yield from _named(f"{name}.feedforward", linear("up", width, up, stack.bias))
    yield from _named(f"{name}.feedforward", linear("down", inner, width, stack.bias))


def _norm(name: str, stack: Stack) -> list[Entry]:
    width = (Dim("d", stack.width),)
    found = [Entry(f"{name}.weight", width)]
    return [*found, Entry(f"{name}.bias", width)] if stack.norm == "layer" else found


def _named(prefix: str, tensors: Mapping[str, Any]) -> list[Entry]:
    return [Entry(f"{prefix}.{name}", dims) for name, dims in tensors.items()]
