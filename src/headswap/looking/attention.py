"""The attention that a model used for a text, and what each of its heads is worth.

The weights are made by hooks from the very inputs that each layer was given, so training and
decoding know nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headswap.looking.reading import Read, stacks
from headswap.nn.attention import Attention, CrossAttention
from headswap.nn.backbone import Backbone
from headswap.objectives import Classify, Translate
from headswap.progress import Reporter
from headswap.text import corpus
from headswap.text.loader import Labelled, Pair, Window
from headswap.text.pairs import read_pairs
from headswap.training.evaluate import evaluate, scores
from headswap.use import Trained

BATCH, MOST_DOCUMENTS = 64, 2_000


@dataclass(frozen=True)
class Seen:
    """One kind of attention of a text: ``layers`` hold weights_HTS, each row a sum of one.

    ``name`` says what looks at what: text, source or target at itself, or the target at its
    source.
    """

    name: str
    causal: bool
    queries: list[str]
    keys: list[str]
    layers: list[np.ndarray]


@torch.no_grad()
def attention(trained: Trained, read: Read) -> list[Seen]:
    """All that looked at something while the model read a text."""
    model, caught = trained.model, []
    model.eval()
    kinds: dict[str, Backbone] = stacks(trained)
    places: list[tuple[str, nn.Module]] = []
    for name, stack in kinds.items():
        places += [(name, layer.attention) for layer in stack.layers]  # type: ignore[misc]
        if hasattr(stack.layers[0], "cross"):
            places += [("cross", layer.cross) for layer in stack.layers]  # type: ignore[misc]

    def catch(name: str, module: Any, given: tuple[Any, ...], result: Tensor) -> None:
        caught.append((name, module.weights(*given)[0].float().cpu().numpy()))

    handles = [module.register_forward_hook(partial(catch, name)) for name, module in places]
    try:
        model.backbone(read.inputs)
    finally:
        for handle in handles:
            handle.remove()
    sides = {"source": read.source or [], "target": read.pieces, "text": read.pieces}
    found = []
    for name in dict.fromkeys(name for name, _ in places):
        layers = [weights for other, weights in caught if other == name]
        if name == "cross":
            found.append(Seen("cross", False, read.pieces, read.source or [], layers))
        else:
            rule = "full" if name == "source" else read.inputs.visibility.rule
            found.append(Seen(name, rule == "causal", sides[name], sides[name], layers))
    return found


def rollout(layers: Sequence[np.ndarray]) -> np.ndarray:
    """How much of each input reaches each position through all layers: the heads' mean, half
    of it the shortcut, multiplied (Abnar and Zuidema 2020, section 3)."""
    size = layers[0].shape[-1]
    flow = np.eye(size)
    for weights_HTS in layers:
        flow = (0.5 * weights_HTS.mean(0) + 0.5 * np.eye(size)) @ flow
    return flow


@contextmanager
def without_head(module: Attention | CrossAttention, head: int) -> Iterator[None]:
    """Inside, one head adds nothing: its part of what the output matrix reads is zero."""

    def silence(linear: nn.Linear, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mixed = given[0].clone()
        width = mixed.shape[-1] // module.heads
        mixed[..., head * width : (head + 1) * width] = 0
        return (mixed, *given[1:])

    handle = module.out.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class Worth:
    """What was lost when a head was switched off: accuracy, or what the loss rose by."""

    kind: str
    layer: int
    head: int
    lost: float


@dataclass(frozen=True)
class Heads:
    """A figure of the whole model, and what each head is worth in it."""

    figure: str
    whole: float
    rows: list[Worth]


def heads_worth(trained: Trained, paths: Sequence[Path], report: Reporter) -> Heads:
    """Score a run on data with each of its heads switched off in turn: a classifier by its
    accuracy, any other by its loss."""
    examples, truth = _examples(trained, paths)
    figure, sign = ("loss", -1.0) if truth is None else ("accuracy", 1.0)

    def score() -> float:
        objective, precision = trained.settings.objective, torch.float32
        found = evaluate(trained.model, objective, examples, trained.tokens, BATCH, precision)
        return scores(found, truth)[figure]

    places: list[tuple[str, int, Any]] = []
    for name, stack in stacks(trained).items():
        for index, layer in enumerate(stack.layers):
            places.append((name, index, layer.attention))
            if hasattr(layer, "cross"):
                places.append(("cross", index, layer.cross))
    total = sum(module.heads for _, _, module in places)
    whole, found = score(), []
    report.begin("heads")
    try:
        for kind, index, module in places:
            for head in range(module.heads):
                with without_head(module, head):
                    lost = sign * (whole - score())
                found.append(Worth(kind, index, head, lost))
                report.update(len(found) / total, f"{len(found)} of {total}")
    finally:
        report.end()
    return Heads(figure, whole, found)


def _examples(trained: Trained, paths: Sequence[Path]) -> tuple[list[Any], list[int] | None]:
    """The examples that a run's objective reads, from files like those it was trained on."""
    objective, tokens = trained.settings.objective, trained.tokens
    reading = trained.settings.data.reading
    if isinstance(objective, Classify):
        rows, truth = corpus.labelled_as(paths, reading, objective.labels)
        encoded = tokens.encode([row.text for row in rows])
        return [Labelled(ids, label) for ids, label in zip(encoded, truth, strict=True)], truth
    if isinstance(objective, Translate):
        pairs = list(read_pairs(paths, reading))
        sides = [tokens.encode([getattr(p, side) for p in pairs]) for side in ("source", "target")]
        if objective.reverse:
            sides.reverse()
        room = trained.settings.model.length - 2  # as in its training
        return [Pair(one[:room], other[:room]) for one, other in zip(*sides, strict=True)], None
    length = trained.settings.model.length
    texts = list(islice(corpus.documents(paths, reading), MOST_DOCUMENTS))
    whole = (np.concatenate([[tokens.bos], ids, [tokens.eos]]) for ids in tokens.encode(texts))
    return [
        Window(ids[start : start + length + 1])
        for ids in whole
        for start in range(0, len(ids) - 1, length)
    ], None
