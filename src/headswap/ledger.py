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
    d = stack.width
    found = [Entry("backbone.embedding.weight", (vocabulary, d))]
    if stack.positions == "learned":
        found.append(Entry("backbone.position_embedding.weight", (stack.length, d)))
    if stack.embedding_norm:
        found += _norm("backbone.embedding_norm", stack)
    for index in range(stack.layers):
        found += _layer(f"backbone.layers.{index}", stack)
    if stack.final_norm:
        found += _norm("backbone.final_norm", stack)
    for name, spec in heads.items():
        found += [Entry(f"heads.{name}.{part}", shape) for part, shape in spec.tensors().items()]
    return found


def parameters(stack: Stack, vocabulary: int, heads: Mapping[str, HeadSpec]) -> Table:
    """Totals by part: what ``headswap inspect`` prints."""
    listed = entries(stack, vocabulary, heads)

    def total(prefix: str) -> int:
        return sum(entry.count for entry in listed if entry.name.startswith(prefix))

    layer = "backbone.layers.0"
    return {
        "total": total(""),
        "backbone": total("backbone."),
        "embedding": total("backbone.embedding.") + total("backbone.position_embedding."),
        "layers": total("backbone.layers."),
        "each_layer": {
            "total": total(f"{layer}."),
            "attention": total(f"{layer}.attention."),
            "feedforward": total(f"{layer}.feedforward."),
            "norms": total(f"{layer}.attention_norm.") + total(f"{layer}.feedforward_norm."),
        },
        "other_norms": total("backbone.embedding_norm.") + total("backbone.final_norm."),
        "heads": {name: total(f"heads.{name}.") for name in heads},
    }


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
