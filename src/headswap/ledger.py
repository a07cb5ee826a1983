"""The ledger: how many parameters a model has and where, counted from its structure.

Nothing is built to count it, so it works for models that would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headswap.nn.spec import HeadSpec, Stack
from headswap.types import Table


@dataclass(frozen=True)
class Entry:
    """One tensor: its dotted name and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


def entries(stack: Stack, vocabulary: int, heads: Mapping[str, HeadSpec]) -> list[Entry]:
    """Every parameter tensor of a model, tied weights once."""
    found = [Entry("backbone.embedding.weight", (vocabulary, stack.width))]
    if not stack.decoder_layers:
        found += _stack("backbone", stack, stack.layers)
    else:
        if not stack.shared_embedding:
            found.append(Entry("backbone.encoder.embedding.weight", (vocabulary, stack.width)))
        found += _stack("backbone.encoder", stack, stack.layers)
        found += _stack("backbone.decoder", stack, stack.decoder_layers, cross=True)
    for name, spec in heads.items():
        found += [Entry(f"heads.{name}.{part}", shape) for part, shape in spec.tensors().items()]
    return found


def parameters(stack: Stack, vocabulary: int, heads: Mapping[str, HeadSpec]) -> Table:
    """Totals by part: what ``headswap inspect`` prints."""
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
    for kind, layer in kinds.items():
        parts = {
            "attention": total(f"{layer}attention."),
            "cross-attention": total(f"{layer}cross."),
            "feedforward": total(f"{layer}feedforward."),
        }
        parts = {part: count for part, count in parts.items() if count}
        whole = total(layer)
        norms = whole - sum(parts.values())
        counts["each"][kind] = {"total": whole, **parts, "norms": norms}
    return counts


def flops_a_token(
    stack: Stack, vocabulary: int, length: float, scored: float, causal: bool = False
) -> float:
    """Training FLOPs for each token that is read: 6 a weight of the layers, 6 a weight of a
    vocabulary's head at the scored share of positions, and the attention's own products at
    this length (half under the causal rule)."""
    d, f = stack.width, stack.feedforward
    matrices = 4 * d * d + (3 if stack.gated else 2) * d * f
    attention = 12 * stack.layers * d * length * (0.5 if causal else 1.0)
    return 6 * (stack.layers * matrices + vocabulary * d * scored) + attention


def _stack(name: str, stack: Stack, layers: int, cross: bool = False) -> list[Entry]:
    """One stack without its embedding."""
    found = []
    if stack.positions == "learned":
        shape = (stack.length, stack.width)
        found.append(Entry(f"{name}.position_embedding.weight", shape))
    if stack.embedding_norm:
        found += _norm(f"{name}.embedding_norm", stack)
    for index in range(layers):
        found += _layer(f"{name}.layers.{index}", stack)
        if cross:
            found += _cross(f"{name}.layers.{index}", stack)
    if stack.final_norm:
        found += _norm(f"{name}.final_norm", stack)
    return found


def _cross(name: str, stack: Stack) -> list[Entry]:
    d = stack.width
    found = _linear(f"{name}.cross.q", d, d, stack.bias)
    found += _linear(f"{name}.cross.kv", d, 2 * d, stack.bias)
    found += _linear(f"{name}.cross.out", d, d, stack.bias)
    return found + _norm(f"{name}.cross_norm", stack)


def _layer(name: str, stack: Stack) -> list[Entry]:
    d, f = stack.width, stack.feedforward
    inner = 2 * f if stack.gated else f
    found = _linear(f"{name}.attention.qkv", d, 3 * d, stack.bias)
    found += _linear(f"{name}.attention.out", d, d, stack.bias)
    if stack.qk_norm:
        found += [
            Entry(f"{name}.attention.{which}_norm.weight", (d // stack.heads,)) for which in "qk"
        ]
    found += _linear(f"{name}.feedforward.up", d, inner, stack.bias)
    found += _linear(f"{name}.feedforward.down", f, d, stack.bias)
    found += _norm(f"{name}.attention_norm", stack)
    return found + _norm(f"{name}.feedforward_norm", stack)


def _norm(name: str, stack: Stack) -> list[Entry]:
    found = [Entry(f"{name}.weight", (stack.width,))]
    if stack.norm == "layer":
        found.append(Entry(f"{name}.bias", (stack.width,)))
    return found


def _linear(name: str, inputs: int, outputs: int, bias: bool) -> list[Entry]:
    found = [Entry(f"{name}.weight", (outputs, inputs))]
    return [*found, Entry(f"{name}.bias", (outputs,))] if bias else found
