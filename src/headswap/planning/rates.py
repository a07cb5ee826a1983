"""How fast this machine trains, measured in a few seconds.

One layer is timed at two widths of a fixed list, a vocabulary's head too, an optimizer's step
once; any model's time is put together from these. The model that is planned is never run.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headswap import ledger
from headswap.nn.backbone import Backbone
from headswap.nn.heads import LanguageModelHead, LanguageModelSpec
from headswap.nn.spec import Stack
from headswap.nn.visibility import Inputs, Visibility
from headswap.planning.memory import sequence_length, sequences
from headswap.settings import Settings
from headswap.training.evaluate import autocast

WIDTHS = {"cpu": (64, 128, 256, 512, 1024), "cuda": (128, 256, 512, 1024, 2048)}
TOKENS = {"cpu": 1_024, "cuda": 16_384}
HEAD_ROWS = {"cpu": 2_048, "cuda": 16_384}
HEAD_WIDTHS, HEAD_VOCABULARY = (128, 512), 8_192
UPDATED = {"cpu": 4_000_000, "cuda": 40_000_000}
REPEATS, ENOUGH = 5, 0.8
# Embeddings, batches and what else is not timed apart; on a CPU, larger batches make up for it.
REST = {"cpu": 1.0, "cuda": 1.08}

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Rates:
    """Measured seconds. ``layer`` by width: of a token in one layer, there and back;
    ``floor``: of a layer however few its tokens (a GPU's launches); ``head`` by width: of a
    scored token and a token of the vocabulary; ``update``: of a parameter's step; ``fixed``: of
    a step however small."""

    device: str
    layer: Points
    floor: float
    head: Points
    update: float
    fixed: float


def measure(stack: Stack, length: int, device: torch.device, precision: torch.dtype) -> Rates:
    """Time the parts of a stack like this one, at widths of the calibration's own."""
    kind = device.type if device.type in WIDTHS else "cpu"
    layer = []
    widths = WIDTHS[kind]
    above = next((i for i, w in enumerate(widths) if i and w > stack.width), len(widths) - 1)
    for width in widths[above - 1 : above + 1]:  # the two around the stack's own
        batch = max(1, TOKENS[kind] // length)
        seconds = _layer(_like(stack, width), batch, length, device, precision)
        layer.append((float(width), seconds / (batch * length)))
    small = _layer(_like(stack, WIDTHS[kind][0]), 1, min(length, 32), device, precision)
    rows = HEAD_ROWS[kind]
    head = [(float(w), _head(w, rows, device, precision)) for w in HEAD_WIDTHS]
    update, fixed = _update(UPDATED[kind], device), _update(1_000, device)
    return Rates(
        kind,
        tuple(layer),
        small if kind == "cuda" else 0.0,
        tuple((w, seconds / rows / HEAD_VOCABULARY) for w, seconds in head),
        max(update - fixed, 0.0) / UPDATED[kind],
        fixed,
    )


def step_seconds(rates: Rates, settings: Settings, vocabulary: int, batch: int) -> float:
    """One optimizer step of ``train.batch`` sequences, ``batch`` of them at a time."""
    stack, plan, objective = settings.model, settings.train, settings.objective
    heads = objective.heads(stack, vocabulary)
    count = ledger.parameters(stack, vocabulary, heads)["total"]
    length = sequence_length(settings)
    parts = math.ceil(sequences(settings) / batch)
    tokens = batch * length
    layers = stack.layers + stack.decoder_layers * (4 / 3 if stack.decoder_layers else 1)
    one = max(tokens * _at(rates.layer, stack.width), rates.floor)
    passes = 2 if getattr(objective, "r_drop", 0.0) else 1
    scored = tokens * objective.scored * (2 if stack.decoder_layers else 1)
    head = scored * vocabulary * _at(rates.head, stack.width)
    share = 1 / 3 if plan.freeze == "backbone" else 1.0
    work = parts * passes * (layers * one * share + head)
    return float(REST[rates.device] * work + count * rates.update + rates.fixed)


def _at(points: Points, width: float) -> float:
    """Between measured widths along a straight line of logarithms, and beyond them too."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    place = next(
        (i for i, (x, _) in enumerate(logs[1:-1], 1) if math.log(width) < x), len(logs) - 1
    )
    (x0, y0), (x1, y1) = logs[place - 1], logs[place]
    return math.exp(y0 + (y1 - y0) * (math.log(width) - x0) / (x1 - x0))


def _like(stack: Stack, width: int) -> Stack:
    """One layer of the same kind and proportions."""
    head = max(2, 2 * round(stack.width / stack.heads / 2))
    heads = max(1, width // head)
    while width % heads or (width // heads) % 2:
        heads -= 1
    inner = max(8, 8 * round(width * stack.feedforward / stack.width / 8))
    return dataclasses.replace(
        stack, width=width, heads=heads, feedforward=inner, layers=1, decoder_layers=0
    )


def _layer(
    stack: Stack, batch: int, length: int, device: torch.device, precision: torch.dtype
) -> float:
    """Forward and backward of one layer: of three, less one."""

    def timed(layers: int) -> float:
        with torch.random.fork_rng(devices=[]):
            backbone = Backbone(dataclasses.replace(stack, layers=layers), 64).to(device).train()
        ids = torch.zeros((batch, length), dtype=torch.long, device=device)
        documents = torch.zeros_like(ids) if stack.mixer == "attention" else None
        inputs = Inputs(ids, Visibility("full", documents))

        def once() -> None:
            with autocast(device, precision):
                total = backbone(inputs).float().square().mean()
            total.backward()

        return _seconds(once, device)

    return max((timed(3) - timed(1)) / 2, 1e-9)


def _head(width: int, rows: int, device: torch.device, precision: torch.dtype) -> float:
    with torch.random.fork_rng(devices=[]):
        spec = LanguageModelSpec(width, HEAD_VOCABULARY, bias=False, tied=False)
        head = LanguageModelHead(spec, None).to(device)
        torch.nn.init.normal_(head.weight, std=0.02)
        x = torch.randn(rows, width, device=device, requires_grad=True)
        targets = torch.randint(0, HEAD_VOCABULARY, (rows,), device=device)
    weights = torch.full((rows,), 1 / rows, device=device)

    def once() -> None:
        with autocast(device, precision):
            total, _ = head.losses(x, targets, weights)
        total.backward()  # type: ignore[no-untyped-call]

    return _seconds(once, device)


def _update(count: int, device: torch.device) -> float:
    """Clipping, AdamW's step, and the gradient's zeros."""
    parameters = [torch.zeros(count // 4, device=device, requires_grad=True) for _ in range(4)]
    gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(parameters, lr=1e-9, fused=True, capturable=gpu)

    def once() -> None:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return _seconds(once, device)


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """The median of a few tries, the first of them not counted. On a GPU the work is recorded
    and replayed, as training does it."""
    times: list[float] = []
    if device.type == "cuda":
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
    while len(times) < REPEATS + 1 and (len(times) < 3 or sum(times) < ENOUGH):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])
