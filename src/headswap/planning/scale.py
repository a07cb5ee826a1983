"""What many GPUs would take, on paper: memory, bytes sent, efficiency, hours and cost.

The time of one GPU is measured or taken from its data sheet; what GPUs tell each other follows
from a model (``rings``). Nothing here has been run on more GPUs than this machine has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headswap import ledger
from headswap.errors import UsageError
from headswap.planning import advice, memory, rates
from headswap.planning.advice import GIB
from headswap.planning.devices import Device
from headswap.planning.rings import WAYS, Fleet, Way, exposed
from headswap.settings import Settings
from headswap.training import machine
from headswap.types import Table
from headswap.wording import counted

GATHERED_LAYERS = 2  # the one that is computed and the one that comes next


def sharded_bytes(need: memory.Memory, settings: Settings, weight: int, world: int) -> int:
    """Weights, gradients and optimizer cut into ``world`` shares; some layers are whole while
    they are computed, and the activations are the rank's own."""
    if world == 1:
        return need.total
    layers = max(settings.model.layers + settings.model.decoder_layers, 1)
    whole = min(GATHERED_LAYERS, layers) * weight // layers
    kept = need.weights + need.optimizer
    at_work = need.total - kept
    in_update = need.gradients + need.activations // max(settings.model.layers, 1)
    if at_work <= in_update:  # the peak was the gradients', which are shared out too
        at_work = max(need.activations + need.logits, at_work - need.gradients)
    return kept // world + need.gradients // world + whole + at_work


def make(
    settings: Settings,
    text: Sequence[Path],
    place: torch.device | None,
    named: Device | None,
    fleet: Fleet,
) -> Table:
    """The plan for every size of the fleet, from one GPU to all."""
    whole, vocabulary = memory.sequences(settings), settings.tokenizer.vocabulary
    if whole % fleet.world:
        raise UsageError(
            f"{fleet.world} GPUs cannot share a batch of {counted(whole, 'sequence')} evenly",
            fix=f"give --batch {math.ceil(whole / fleet.world) * fleet.world}",
        )
    heads = settings.objective.heads(settings.model, vocabulary)
    count = ledger.parameters(settings.model, vocabulary, heads)["total"]
    read = advice.amount(text, settings) if text else None
    steps = advice.steps_of(settings, read)
    if place is not None:
        name, free = advice.device_name(place), memory.free(place)
        precision, _ = machine.pick_precision(settings.train, place)
        compute, kind = _measured(settings, place, precision), place.type
    else:
        assert named is not None
        one = dataclasses.replace(named, count=1)
        name, free, precision = one.name, round(one.memory_gib * GIB), one.precision
        compute, kind = _estimated(settings, one), "cuda"
    fitting = _Fitting(settings, precision, kind, memory.ROOM * free, count * precision.itemsize)
    sizes = [size for size in fleet.sizes() if whole % size == 0]
    first = compute(whole, fitting.parts("ddp", 1)[0])
    rows = [
        _row(settings, way, fleet.of(size), fitting, compute, first, steps)
        for size in sizes
        for way in WAYS
    ]
    return {
        "recipe": settings.recipe,
        "objective": settings.objective.name,
        "parameters": count,
        "batch": whole,
        "length": memory.sequence_length(settings),
        "tokens_a_step": advice.tokens_a_step(settings),
        "steps": steps,
        "device": name,
        "precision": str(precision).removeprefix("torch."),
        "memory_gib": free / GIB,
        "measured": place is not None,
        "step_seconds": first,
        "fleet": dataclasses.asdict(fleet),
        "estimate": True,
        "assumptions": list(_assumptions(fleet, place is not None, precision)),
        "rows": rows,
    }


Compute = Callable[[int, int], float]


def _estimated(settings: Settings, device: Device) -> Compute:
    """Seconds of a step by the data sheet: in proportion to its tokens."""
    flops = advice.tokens_a_step(settings) * advice.flops_a_token(settings)
    whole = flops / device.flops(settings.model.width)
    return lambda batch, parts: whole * batch / memory.sequences(settings)


def _measured(settings: Settings, place: torch.device, precision: torch.dtype) -> Compute:
    """Seconds of a step from single layers that were timed here."""
    length = memory.sequence_length(settings)
    found = rates.measure(settings.model, length, place, precision)

    def seconds(batch: int, parts: int) -> float:
        share = batch / memory.sequences(settings)
        asked = _with_batch(settings, share)
        at_once = math.ceil(batch / parts)
        return rates.step_seconds(found, asked, settings.tokenizer.vocabulary, at_once)

    return seconds


def _with_batch(settings: Settings, share: float) -> Settings:
    plan = settings.train
    tokens = None if plan.batch_tokens is None else max(1, round(plan.batch_tokens * share))
    batch = max(1, round(plan.batch * share))
    train = dataclasses.replace(plan, batch=batch, batch_tokens=tokens)
    return dataclasses.replace(settings, train=train)


@dataclass(frozen=True)
class _Fitting:
    """Into how many parts a rank's batch is cut so that memory suffices."""

    settings: Settings
    precision: torch.dtype
    device: str
    room: float
    weight: int

    def parts(self, way: Way, world: int) -> tuple[int, int]:
        """The parts, and the bytes of a rank; more bytes than room where nothing helps."""
        batch = memory.sequences(self.settings) // world
        parts = min(self.settings.train.accumulate, batch)
        while (need := self._bytes(way, world, math.ceil(batch / parts))) > self.room:
            if parts >= batch:
                break
            parts = min(2 * parts, batch)
        return parts, need

    def _bytes(self, way: Way, world: int, batch: int) -> int:
        vocabulary = self.settings.tokenizer.vocabulary
        need = memory.needed(self.settings, vocabulary, self.precision, self.device, batch)
        if way == "ddp":
            return need.total
        return sharded_bytes(need, self.settings, self.weight, world)

    def gradients(self) -> int:
        vocabulary = self.settings.tokenizer.vocabulary
        need = memory.needed(self.settings, vocabulary, self.precision, self.device, 1)
        return need.gradients


def _row(
    settings: Settings,
    way: Way,
    fleet: Fleet,
    fitting: _Fitting,
    compute: Compute,
    first: float,
    steps: float | None,
) -> Table:
    world = fleet.world
    parts, need = fitting.parts(way, world)
    busy = max(compute(memory.sequences(settings) // world, parts), first / world)
    sent, late = exposed(way, fitting.gradients(), fitting.weight, parts, busy, fleet)
    seconds = busy + late
    hours = None if steps is None else steps * seconds / 3600
    if steps is None and settings.train.minutes is not None:
        hours = settings.train.minutes / 60
    price = fleet.price
    return {
        "gpus": world,
        "nodes": fleet.nodes,
        "way": way,
        "bytes": need,
        "fits": need <= fitting.room,
        "parts": parts,
        "sent_inside": sent.inside,
        "sent_between": sent.between,
        "step_seconds": seconds,
        "waiting_seconds": late,
        "efficiency": first / (world * seconds),
        "hours": hours,
        "cost": None if hours is None or price is None else price * world * hours,
    }


def _assumptions(fleet: Fleet, measured: bool, precision: torch.dtype) -> Iterator[str]:
    yield (
        "one GPU's time is put together from single layers that were timed here"
        if measured
        else "one GPU's time is an estimate from its data sheet: 40% of its peak in wide layers"
    )
    yield "efficiency is against as many GPUs that tell each other nothing, and have room enough"
    yield (
        "ddp: every GPU holds the whole model, and a ring inside the node and one between nodes "
        "send 2(n-1)/n of the gradients, 4 bytes a parameter, once a step"
    )
    yield (
        f"sharded: weights, gradients and optimizer are cut up; weights are gathered twice for "
        f"every part of a batch ({precision.itemsize} bytes a parameter) and gradients scattered "
        "once, each (n-1)/n of them"
    )
    yield (
        f"{fleet.overlap:.0%} of a pass's time hides sending (--overlap); no time for latency, "
        "stragglers, checkpoints or failures"
    )
    yield (
        "the batch stays the same however many GPUs share it, and so do the steps: whether so "
        "large a batch learns as much from a token is another question (McCandlish et al. 2018)"
    )


def dollars(amount: float) -> str:
    return f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}"


def lines(found: Table) -> Iterator[str]:
    """The plan for a terminal."""
    origin = "measured here" if found["measured"] else "from its data sheet"
    yield (
        f"{found['recipe']} ({found['objective']}): {found['parameters']:,} parameters, batches of "
        f"{found['batch']:,} × {found['length']} tokens; one {found['device']}, {origin}: "
        f"{found['step_seconds']:.3g} s a step"
    )
    yield "estimates, not measurements:"
    yield (
        " GPUs nodes  way      GiB a GPU  parts  GB sent inside  between  efficiency     hours"
        "        cost"
    )
    for row in found["rows"]:
        fits = f"{row['bytes'] / GIB:9.3g}" + (" " if row["fits"] else "!")
        hours = "unknown" if row["hours"] is None else f"{row['hours']:,.3g}"
        cost = "" if row["cost"] is None else dollars(row["cost"])
        yield (
            f"{row['gpus']:5,} {row['nodes']:5,}  {row['way']:8} {fits} {row['parts']:5}  "
            f"{row['sent_inside'] / 1e9:14.3g} {row['sent_between'] / 1e9:8.3g} "
            f"{row['efficiency']:11.1%} {hours:>9} {cost:>11}"
        )
    if not all(row["fits"] for row in found["rows"]):
        yield f"! more than a GPU has ({found['memory_gib']:.0f} GiB)"
    if found["steps"] is None:
        yield "hours need a budget: --tokens, --steps, or --epochs with --text"
    yield "assumptions:"
    for line in found["assumptions"]:
        yield f"  {line}"
