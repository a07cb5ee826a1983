"""How much memory a training takes, and the largest batch that fits.

The activations are those that autograd keeps in a few tiny forward passes, from which those of
any batch follow: nothing large is ever allocated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from headswap import ledger
from headswap.nn.backbone import Backbone, EncoderDecoder
from headswap.nn.cross_entropy import CHUNK_ROWS
from headswap.nn.spec import Stack
from headswap.nn.visibility import Inputs, Rule, Visibility
from headswap.settings import Settings

SENTENCE = 64
FEW, LENGTHS = (1, 2), (2, 4, 6)  # layers and rows, and tokens, of the passes that are made
WIDE = 512
ROOM = 0.92  # of what is free: the rest is left to others
# What a logit costs while it is looked at, and a weight of the head: itself, its gradient.
LOGIT_BYTES = {("cpu", torch.float32): 4, ("cpu", torch.bfloat16): 3, ("cuda", torch.float32): 12}
FUSED_LOGIT_BYTES, HEAD_BYTES = 2, {"cpu": 8, "cuda": 10}
# On a CPU the heap keeps two fifths as much again of what a backward pass frees, and kernels
# and threads take some memory of their own. A GPU's peak is counted in tensors.
HEAP = {"cpu": 1.4, "cuda": 1.0}
STARTED = {"cpu": 90 * 2**20, "cuda": 0}


@dataclass(frozen=True)
class Memory:
    """Bytes at the training's peak, part by part; ``batch`` sequences are in memory at once."""

    batch: int
    weights: int
    optimizer: int
    gradients: int
    activations: int
    logits: int
    total: int

    @property
    def held(self) -> int:
        """What a GPU is asked for: recorded steps keep their activations, and one that is
        launched beside them needs as much again."""
        return self.total + self.activations


def activations(
    stack: Stack, batch: int, length: int, rule: Rule, packed: bool, precision: torch.dtype
) -> int:
    """The bytes that a backbone's forward pass keeps for its backward pass. They grow with the
    layers and the batch, and with the length and its square, so a few tiny passes tell all."""

    def kept(lower: int, upper: int, rows: int, tokens: int) -> int:
        tiny = replace(stack, layers=lower, decoder_layers=upper, length=max(LENGTHS))
        return _kept(tiny, rows, tokens, rule, packed, precision)

    def layered(rows: int, tokens: int) -> int:
        def below(upper: int) -> int:
            return _along(FEW, stack.layers, lambda lower: kept(lower, upper, rows, tokens))

        return _along(FEW, stack.decoder_layers, below) if stack.decoder_layers else below(0)

    def batched(tokens: int) -> int:
        return _along(FEW, batch, lambda rows: layered(rows, tokens))

    return _along(LENGTHS, length, batched)


def _along(places: tuple[int, ...], wanted: int, value: Callable[[int], int]) -> int:
    """The polynomial that has these values at these places, at another one."""
    total = Fraction(0)
    for place in places:
        share = Fraction(value(place))
        for other in places:
            if other != place:
                share *= Fraction(wanted - other, place - other)
        total += share
    return round(total)


@lru_cache(maxsize=1_024)
def _kept(
    stack: Stack, batch: int, length: int, rule: Rule, packed: bool, precision: torch.dtype
) -> int:
    """The bytes that a tiny forward pass keeps."""
    seen: dict[int, Any] = {}  # held, so that no identity is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        seen[storage._cdata] = storage
        return tensor

    with _tiny(stack.width), torch.random.fork_rng([]):
        backbone = (EncoderDecoder if stack.decoder_layers else Backbone)(stack, 8).train()
        held = {p.untyped_storage()._cdata for p in backbone.parameters()}
        inputs = _inputs(batch, length, rule, packed and stack.mixer == "attention")
        if stack.decoder_layers:
            inputs = replace(inputs, source=_inputs(batch, length, "full", packed))
        low = precision != torch.float32
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", precision, enabled=low):
            hidden = backbone(inputs)
        seen[hidden.untyped_storage()._cdata] = hidden.untyped_storage()
        kept = [storage for key, storage in seen.items() if key not in held]
        return sum(int(storage.nbytes()) for storage in kept)


@contextmanager
def _tiny(width: int) -> Iterator[None]:
    """Inside, what is computed takes little: one thread, as more would only wait for each other.
    Of wide layers even one is large; there tensors have shapes and no content, but they come
    with torch's compiler, which takes a second to load."""
    if width > WIDE:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def needed(
    settings: Settings, vocabulary: int, precision: torch.dtype, device: str, batch: int
) -> Memory:
    """The peak with ``batch`` sequences of the model's full length at a time."""
    stack, plan, objective = settings.model, settings.train, settings.objective
    heads = objective.heads(stack, vocabulary)
    listed = ledger.entries(stack, vocabulary, heads)
    count = sum(entry.count for entry in listed)
    length = sequence_length(settings)
    average = plan.ema is not None or plan.average_last is not None
    fixed = ledger.memory(stack, listed, plan.optimizer, average)
    frozen = plan.freeze == "backbone"
    learning = sum(ledger.parameters(stack, vocabulary, heads)["heads"].values())
    gradients = 4 * learning if frozen else fixed["gradients"]
    optimizer = ledger.ADAMW_BYTES * learning if frozen else fixed["optimizer"]
    weights = fixed["weights"] + (4 * count if plan.keep == "best" else 0)
    packed = objective.name != "translate" or batch > 1
    kept = activations(stack, batch, length, objective.visibility, packed, precision)
    rows = min(CHUNK_ROWS.get(device, 512), max(1, round(batch * length * objective.scored)))
    a_logit = LOGIT_BYTES.get((device, precision), FUSED_LOGIT_BYTES)
    logits = rows * vocabulary * a_logit if objective.scored else 0
    doubled = 2 if getattr(objective, "r_drop", 0.0) else 1
    if doubled == 2 and objective.scored:  # every logit of both passes is kept
        logits = round(batch * length * objective.scored) * vocabulary * 4 * 6
    kept = 0 if frozen else kept * doubled
    # The head's gradient, and a part of it, are made while all activations are there; the
    # others as they go.
    scores = objective.scored and not frozen
    table = HEAD_BYTES.get(device, 8) * vocabulary * stack.width if scores else 0
    kept = round(kept * HEAP.get(device, 1.0))
    busiest = max(kept + logits + table, gradients + kept // max(stack.layers, 1))
    total = STARTED.get(device, 0) + weights + optimizer + busiest
    return Memory(batch, weights, optimizer, gradients, kept, logits, total)


def sequence_length(settings: Settings) -> int:
    """The tokens of a sequence as they are trained on; pairs are sentences, and shorter."""
    length = settings.model.length
    return min(length, SENTENCE) if settings.model.decoder_layers else length


def sequences(settings: Settings) -> int:
    """How many sequences a step reads; of pairs, as many as its tokens of a side allow."""
    plan = settings.train
    if plan.batch_tokens is None or not settings.model.decoder_layers:
        return plan.batch
    return max(1, plan.batch_tokens // sequence_length(settings))


def largest(
    settings: Settings, vocabulary: int, precision: torch.dtype, device: str, free: int
) -> int:
    """The most sequences that fit at once; 0 where not even one does."""

    def fits(batch: int) -> bool:
        return needed(settings, vocabulary, precision, device, batch).total <= ROOM * free

    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= 65_536 and fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def free(device: torch.device) -> int:
    """Bytes that a training may take here: of the GPU, or of this machine within the limits
    that its container sets."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path, factor in (("/proc/meminfo", 1024), ("/sys/fs/cgroup/memory.max", 1)):
        try:
            with open(path, encoding="utf-8") as stream:
                content = stream.read()
        except OSError:
            continue
        lines = [line.split() for line in content.splitlines()]
        words = [words for words in lines if words[0] == "MemAvailable:" or len(lines) == 1]
        found += [int(w[min(1, len(w) - 1)]) * factor for w in words if w[-1] != "max"]
    return min(found)


def _inputs(batch: int, length: int, rule: Rule, packed: bool) -> Inputs:
    ids = torch.zeros((batch, length), dtype=torch.long)
    visibility = Visibility(rule, torch.zeros_like(ids) if packed else None)
    return Inputs(ids, visibility, torch.zeros_like(ids) if packed else None)
