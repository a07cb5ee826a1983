"""The plan: does it fit, how long will it take, what would change it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headswap import ledger
from headswap import settings as settings_module
from headswap.errors import ResourceError
from headswap.objectives.masked import pairs_sentences
from headswap.planning import memory, rates
from headswap.planning.devices import DEVICES, Device
from headswap.progress import duration
from headswap.settings import Settings
from headswap.text import corpus, files
from headswap.text.check import words_in
from headswap.text.loader import Window
from headswap.text.pairs import read_pairs
from headswap.text.sharded import Sharded
from headswap.text.tokenizer import TOKENS_A_WORD
from headswap.training import machine
from headswap.types import Table
from headswap.wording import counted, gib

TOKENS_A_PARAMETER = 20  # Hoffmann et al. 2022, table 3
PASSES = 4  # so often, text is worth about as much as new text (Muennighoff et al. 2023)
# Vaswani et al. 2017, section 5: the base model.
PAPER, PAPER_TOKENS = "transformer-base", 100_000 * 50_000
PAPER_TOLD = (
    "100,000 steps of 25,000 source and 25,000 target tokens, 12 hours on 8 P100 "
    "(Vaswani et al. 2017, the base model)"
)
HELPS = 0.95  # of a step's time; what takes longer is no advice
GIB = 2**30


def make(
    settings: Settings, text: Sequence[Path], place: torch.device | None, named: Device | None
) -> Table:
    """Everything the plan says. Without ``place`` nothing is measured: estimates alone."""
    vocabulary = settings.tokenizer.vocabulary
    heads = settings.objective.heads(settings.model, vocabulary)
    count = ledger.parameters(settings.model, vocabulary, heads)["total"]
    flops = flops_a_token(settings)
    read = amount(text, settings) if text else None
    tokens = None if read is None else read.tokens
    found: Table = {
        "recipe": settings.recipe,
        "objective": settings.objective.name,
        "parameters": count,
        "training_flops_a_token": flops,
        "batch": memory.sequences(settings),
        "length": memory.sequence_length(settings),
        "tokens_a_step": tokens_a_step(settings),
        "text_tokens": tokens,
    }
    steps = steps_of(settings, read)
    if place is not None:
        found["here"] = _here(settings, place, steps, tokens)
    listed = DEVICES.values() if named is None else [named]
    found["elsewhere"] = [_elsewhere(settings, device, steps) for device in listed]
    return found


def line(settings: Settings, place: torch.device, world: int = 1) -> tuple[Settings, str]:
    """The settings with as many parts to a batch as memory asks for, and a sentence about it.
    The arithmetic of a step stays the same: gradients are added up over the parts. Each of
    ``world`` processes takes its share of a batch, and with ``shard`` of the model."""
    precision, _ = machine.pick_precision(settings.train, place)
    vocabulary, free = settings.tokenizer.vocabulary, memory.free(place)
    plan, whole = settings.train, math.ceil(memory.sequences(settings) / world)
    most = max(1, whole // 2) if pairs_sentences(settings.objective) else whole
    parts = plan.accumulate
    if place.type == "cpu":
        free //= world
    recorded = place.type == "cuda" and world == 1

    def fits(need: memory.Memory) -> bool:
        return (need.held if recorded else need.total) <= memory.ROOM * free

    def at_once() -> memory.Memory:
        batch = math.ceil(whole / parts)
        need = memory.needed(settings, vocabulary, precision, place.type, batch)
        if plan.shard:
            elsewhere = (need.weights + need.optimizer) * (world - 1) // world
            need = dataclasses.replace(need, total=need.total - elsewhere)
        return need

    while not fits(at_once()) and parts < most:
        parts = min(2 * parts, most)
    need = at_once()
    if need.total > memory.ROOM * free:
        raise ResourceError(
            f"training needs about {need.total / GIB:.1f} GiB even "
            f"{'one sequence' if most == whole else 'two sequences'} at a time, and "
            f"{free / GIB:.1f} GiB are free",
            fix="use a smaller recipe, a shorter model.length or a smaller tokenizer.vocabulary "
            "(headswap plan tells what fits)",
        )
    told = f"about {gib(need.total)} of {gib(free)}"
    if parts > plan.accumulate:
        told += f"; batches are cut into {parts} parts to fit"
        settings = dataclasses.replace(settings, train=dataclasses.replace(plan, accumulate=parts))
    return settings, f"plan: {told}"


def _here(
    settings: Settings, place: torch.device, steps: float | None, tokens: float | None
) -> Table:
    plan, vocabulary = settings.train, settings.tokenizer.vocabulary
    precision, _ = machine.pick_precision(plan, place)
    free = memory.free(place)
    most = memory.largest(settings, vocabulary, precision, place.type, free)
    whole = memory.sequences(settings)
    batch = min(math.ceil(whole / plan.accumulate), max(most, 1))
    need = memory.needed(settings, vocabulary, precision, place.type, batch)
    found: Table = {
        "device": device_name(place),
        "precision": str(precision).removeprefix("torch."),
        "free_bytes": free,
        "fits": most > 0,
        "largest_batch": most,
        "parts": math.ceil(whole / batch),
        "bytes": dataclasses.asdict(need),
    }
    if not most:
        return found
    measured = rates.measure(settings.model, memory.sequence_length(settings), place, precision)
    second = rates.step_seconds(measured, settings, vocabulary, batch)
    a_step = tokens_a_step(settings)
    speed = a_step / second
    minutes = plan.minutes if steps is None else steps * second / 60
    found |= {
        "step_seconds": second,
        "tokens_a_second": speed,
        "steps": steps,
        "minutes": minutes,
        "changes": list(_changes(settings, place, precision, batch, second)),
    }
    if minutes is not None and settings.objective.reads is Window:  # pretraining
        found["size"] = _sensible(speed * flops_a_token(settings), minutes, tokens)
    if settings.recipe == PAPER:
        found["paper_hours"] = PAPER_TOKENS / speed / 3600
    return found


def _changes(
    settings: Settings, place: torch.device, precision: torch.dtype, batch: int, second: float
) -> Iterator[Table]:
    """What other settings would do to memory and time."""
    plan, vocabulary = settings.train, settings.tokenizer.vocabulary
    other = "bf16" if precision == torch.float32 else "fp32"
    wanted = dataclasses.replace(plan, precision=other)  # type: ignore[arg-type]
    kind, refused = machine.pick_precision(wanted, place)
    if refused:
        yield {"change": f"train.precision={other}", "effect": refused}
    elif kind != precision:
        length = memory.sequence_length(settings)
        measured = rates.measure(settings.model, length, place, kind)
        then = rates.step_seconds(measured, settings, vocabulary, batch)
        need = memory.needed(settings, vocabulary, kind, place.type, batch)
        effect = f"{second / then:.2g} times as fast, {gib(need.total)}"
        if then > HELPS * second:
            effect = (
                f"would not help here, a step takes {then / second:.2g} times as long "
                f"({gib(need.total)})"
            )
        yield {"change": f"train.precision={other}", "effect": effect}
    half = max(1, batch // 2)
    if half < batch:
        need = memory.needed(settings, vocabulary, precision, place.type, half)
        change = f"train.accumulate={math.ceil(memory.sequences(settings) / half)}"
        yield {"change": change, "effect": f"{gib(need.total)}, the same arithmetic"}
    yield {
        "change": "train.compile=true",
        "effect": "not measured: it takes about a minute to begin and pays on long GPU trainings",
    }
    yield {
        "change": "more devices",
        "effect": "N of them take 1/N of the time at best; what they tell each other comes on top",
    }


def _elsewhere(settings: Settings, device: Device, steps: float | None) -> Table:
    """An estimate for a device by its data sheet."""
    vocabulary, plan = settings.tokenizer.vocabulary, settings.train
    free = round(device.memory_gib * GIB)
    most = memory.largest(settings, vocabulary, device.precision, "cuda", free)
    rate = device.flops(settings.model.width)
    seconds = tokens_a_step(settings) * flops_a_token(settings) / rate
    row: Table = {
        "device": device.name,
        "estimate": True,
        "memory_gib": device.memory_gib,
        "precision": str(device.precision).removeprefix("torch."),
        "fits": most > 0,
        "largest_batch": most,
        "tokens_a_second": tokens_a_step(settings) / seconds,
        "minutes": plan.minutes if steps is None else steps * seconds / 60,
        "note": device.note,
    }
    if settings.recipe == PAPER:
        row["paper_hours"] = PAPER_TOKENS / row["tokens_a_second"] / 3600
    return row


def _sensible(rate: float, minutes: float, tokens: float | None) -> Table:
    """A model's size for this much time and text."""
    by_time = math.sqrt(rate * 60 * minutes / (6 * TOKENS_A_PARAMETER))
    by_text = math.inf if tokens is None else PASSES * tokens / TOKENS_A_PARAMETER
    size = min(by_time, by_text)
    known = {}
    for name in settings_module.recipes():
        made = settings_module.resolve("causal", name) if "translate" not in name else None
        if made is None or made.model.decoder_layers:
            continue
        heads = made.objective.heads(made.model, made.tokenizer.vocabulary)
        listed = ledger.parameters(made.model, made.tokenizer.vocabulary, heads)
        known[name] = listed["total"]
    nearest = min(known, key=lambda name: abs(math.log(known[name] / size)))
    return {
        "parameters": size,
        "limited_by": "time" if by_time <= by_text else "text",
        "recipe": nearest,
    }


def flops_a_token(settings: Settings) -> float:
    heads = settings.objective.heads(settings.model, settings.tokenizer.vocabulary)
    objective, length = settings.objective, memory.sequence_length(settings)
    causal = objective.visibility == "causal"
    return ledger.flops_a_token(settings.model, heads, length, objective.scored, causal)


def tokens_a_step(settings: Settings) -> float:
    """Tokens read in a step, of a translator on both sides."""
    whole = memory.sequences(settings) * memory.sequence_length(settings)
    if not settings.model.decoder_layers:
        return whole
    return 2 * (settings.train.batch_tokens or whole)


def steps_of(settings: Settings, read: Amount | None) -> float | None:
    """Optimizer steps of the budget; None where minutes or an unknown text decide."""
    plan, a_step = settings.train, tokens_a_step(settings)
    if plan.steps is not None:
        return float(plan.steps)
    if plan.tokens is not None:
        return max(1, round(plan.tokens / a_step))
    if plan.epochs is not None and read is not None:
        each = read.tokens / a_step
        if settings.objective.reads is not Window and not plan.batch_tokens:
            each = read.texts / plan.batch  # however short they are
        return max(1, math.ceil(plan.epochs * each))
    return None


@dataclass(frozen=True)
class Amount:
    """How much there is to read: about so many tokens, in so many texts or pairs."""

    tokens: float
    texts: int


def amount(paths: Sequence[Path], settings: Settings) -> Amount:
    """What files hold, told from their words; shards know it."""
    reading = settings.data.reading
    words = count = 0
    every: Iterator[tuple[str, ...]]
    if settings.model.decoder_layers:
        every = (pair.texts for pair in read_pairs(paths, reading))
    else:
        texts = [path for path in paths if not files.is_sharded(path)]
        every = ((document,) for document in corpus.documents(texts, reading))
    for some in every:
        words += sum(map(words_in, some))
        count += 1
    known = (Sharded(path).manifest.tokens for path in paths if files.is_sharded(path))
    return Amount(words * TOKENS_A_WORD + sum(known), count)


def device_name(place: torch.device) -> str:
    if place.type == "cuda":
        return str(torch.cuda.get_device_name(place))
    return f"CPU, {torch.get_num_threads()} threads"


def lines(found: Table) -> Iterator[str]:
    """The plan for a terminal."""
    yield (
        f"{found['recipe']} ({found['objective']}): {found['parameters']:,} parameters, "
        f"{found['training_flops_a_token'] / 1e6:,.1f} million FLOPs a token in training"
    )
    if found["text_tokens"] is not None:
        yield f"text: about {found['text_tokens']:,.0f} tokens"
    if found["recipe"] == PAPER:
        yield f"the paper's training: {PAPER_TOLD}"
    if "here" in found:
        yield from _here_lines(found, found["here"])
    yield "elsewhere (estimates from data sheets, not measured):"
    for row in found["elsewhere"]:
        if not row["fits"]:
            told = "does not fit, not even one sequence at a time"
        else:
            told = f"largest batch {row['largest_batch']:,}, {row['tokens_a_second']:,.0f} tokens/s"
            if row["minutes"] is not None:
                told += f", {duration(60 * row['minutes'])}"
            if "paper_hours" in row:
                told += f"; the paper's training {row['paper_hours']:,.1f} hours"
        note = f" ({row['note']})" if row["note"] else ""
        yield f"  {row['device']:12} {row['memory_gib']:g} GiB: {told}{note}"


def _here_lines(found: Table, here: Table) -> Iterator[str]:
    free = here["free_bytes"] / GIB
    yield f"here ({here['device']}, {here['precision']}, measured):"
    if not here["fits"]:
        need = here["bytes"]["total"] / GIB
        yield f"  does not fit: {need:,.1f} GiB even one sequence at a time, {free:.1f} GiB free"
        return
    cut = f", in {here['parts']} parts" if here["parts"] > 1 else ""
    yield (
        f"  fits: {gib(here['bytes']['total'])} of {free:.1f} GiB with batches of "
        f"{found['batch']} × {found['length']} tokens{cut}; the largest batch is "
        f"{here['largest_batch']:,}"
    )
    yield f"  speed: {here['tokens_a_second']:,.0f} tokens/s, {here['step_seconds']:.3g} s a step"
    if here["minutes"] is None:
        yield "  time: unknown without --text or another budget"
    elif here["steps"] is not None:
        yield (
            f"  time: {counted(round(here['steps']), 'step')} of {found['tokens_a_step']:,.0f} "
            f"tokens, about {duration(60 * here['minutes'])}"
        )
    if "size" in here:
        size = here["size"]
        yield (
            f"  a sensible size: about {size['parameters'] / 1e6:,.2g} million parameters, limited "
            f"by the {size['limited_by']} ({TOKENS_A_PARAMETER} tokens a parameter, at most "
            f"{PASSES} passes); the nearest recipe is {size['recipe']}"
        )
    if "paper_hours" in here:
        yield f"  the paper's training: about {here['paper_hours']:,.0f} hours here"
    for row in here["changes"]:
        yield f"  {row['change']}: {row['effect']}"
