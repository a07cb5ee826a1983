"""Which runs an experiment makes, fitted to the time it may take."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from headswap.errors import DataError

Kind = Literal["linear", "scratch", "pretrained", "probe"]
CURVE = (100, 500, 2_000, 10_000, 50_000)
TUNED_AT_MOST = 1_000
RATES = (1 / 3, 1.0, 3.0)
PROBE_RATES = (3.0, 10.0, 30.0)
FEW_EPOCHS, FEW_SEEDS = 4, 3
EXAMPLES_SEEN, MOST_EPOCHS = 1_200, 20
RUN_OVERHEAD_S = 1.5


@dataclass(frozen=True)
class Arm:
    """One way to get a classifier. ``base`` is the base it starts from; of a scratch arm, the
    base whose shape, tokenizer and way of reading it shares. ``against`` is the scratch arm
    that a pretrained or probed arm is compared with."""

    name: str
    kind: Kind
    base: str | None = None
    against: str | None = None

    @property
    def neural(self) -> bool:
        return self.kind != "linear"

    @property
    def reaches(self) -> bool:
        """Whether it is also trained on the label sets of ``reach``."""
        return self.kind in ("linear", "scratch")


@dataclass(frozen=True)
class Base:
    """A base: an existing run (``run``), or one to be pretrained for ``tokens`` tokens.

    ``start`` is the run that pretraining goes on from; ``via`` says that the base is then
    fine-tuned on related labels. ``rate`` is what its arms' learning rates are tried around (in
    older plans it may be the plan's); ``origin`` is the folder that ``run`` was imported from;
    ``labelled`` says that it has learnt from other labels than the experiment's.
    """

    name: str
    run: str
    objective: str | None = None
    tokens: int | None = None
    start: str | None = None
    via: bool = False
    rate: float | None = None
    origin: str | None = None
    labelled: bool = False


@dataclass(frozen=True)
class Job:
    """One run of an arm; ``rate`` None is the linear model's, which has no rate."""

    arm: Arm
    size: int
    seed: int
    rate: float | None
    epochs: int


@dataclass(frozen=True)
class Plan:
    labels: tuple[str, ...]
    bases: tuple[Base, ...]
    arms: tuple[Arm, ...]
    sizes: tuple[int, ...]
    reach: tuple[int, ...]
    seeds: int
    epochs: int
    rate: float
    workers: int
    threads: int
    minutes: float
    told: tuple[str, ...] = ()

    def epochs_at(self, size: int) -> int:
        """Few labels are read more often, so that every model sees some thousand texts."""
        return max(self.epochs, min(MOST_EPOCHS, math.ceil(EXAMPLES_SEEN / size)))

    def rates(self, arm: Arm) -> tuple[float, ...]:
        """The learning rates that are tried: as many for every neural arm."""
        scales = PROBE_RATES if arm.kind == "probe" else RATES
        own = [base.rate for base in self.bases if base.name == arm.base and base.rate]
        return tuple(float(f"{scale * (own or [self.rate])[0]:.2g}") for scale in scales)

    @property
    def main(self) -> int:
        """The number of labels at which the arms are compared."""
        return self.sizes[-1]

    @property
    def tuned_at(self) -> int:
        """The number of labels at which learning rates are chosen."""
        fitting = [size for size in self.sizes if size <= TUNED_AT_MOST]
        return fitting[-1] if fitting else self.sizes[0]

    def sizes_of(self, arm: Arm) -> tuple[int, ...]:
        return self.sizes + (self.reach if arm.reaches else ())

    def trials(self) -> list[Job]:
        """The runs among which each neural arm's rate is chosen."""
        return [
            self._job(arm, self.tuned_at, 0, rate)
            for arm in self.arms
            if arm.neural
            for rate in self.rates(arm)
        ]

    def final(self, rates: dict[str, float]) -> list[Job]:
        """Every run that counts, with the rates that were chosen; one trial is among them."""
        return [job for arm in self.arms for job in self.runs(arm, rates.get(arm.name))]

    def runs(self, arm: Arm, rate: float | None) -> list[Job]:
        """Those of one arm."""
        return [
            self._job(arm, size, seed, rate)
            for size in self.sizes_of(arm)
            for seed in range(self.seeds)
        ]

    def _job(self, arm: Arm, size: int, seed: int, rate: float | None) -> Job:
        return Job(arm, size, seed, rate, self.epochs_at(size))

    def dumps(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def loads(content: str, where: str) -> Plan:
        try:
            table = json.loads(content)
            table["bases"] = tuple(Base(**entry) for entry in table["bases"])
            table["arms"] = tuple(Arm(**entry) for entry in table["arms"])
            for name in ("labels", "sizes", "reach", "told"):
                table[name] = tuple(table[name])
            return Plan(**table)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"damaged ({error})", where=where) from error


@dataclass(frozen=True)
class Costs:
    """Measured seconds: of a training step, of scoring a text, and how many run at once."""

    step: float
    text: float
    batch: int
    workers: float
    valid: int
    test: int

    def of(self, job: Job) -> float:
        if not job.arm.neural:
            return 1.0 + 2e-3 * job.size
        steps = math.ceil(job.size / self.batch) * job.epochs
        step = self.step / (3 if job.arm.kind == "probe" else 1)
        scored = self.valid * (job.epochs + 1) + self.test
        return RUN_OVERHEAD_S + steps * step + scored * self.text

    def seconds(self, plan: Plan) -> float:
        rates = {arm.name: plan.rates(arm)[0] for arm in plan.arms if arm.neural}
        jobs = set(plan.trials()) | set(plan.final(rates))
        return sum(map(self.of, jobs)) / self.workers


def curve(full: int, wanted: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """The sizes of the label curve, and what had to be changed about them."""
    if not wanted:
        return (*(size for size in CURVE if size < 0.7 * full), full), ""
    fitting = sorted({min(size, full) for size in wanted})
    if max(wanted) > full:
        told = f"there are {full:,} labels to train on: the label curve ends there"
        return tuple(fitting), told
    return tuple(fitting), ""


def fit(wanted: Plan, costs: Costs, seconds: float) -> Plan:
    """The largest plan, from what is wanted down, that fits into the time."""
    smallest = wanted
    for candidate in _smaller(wanted):
        smallest = candidate
        if costs.seconds(candidate) <= seconds:
            break
    told = list(wanted.told)
    cuts = list(_cuts(wanted, smallest))
    if cuts:
        told.append(f"to fit the time: {', '.join(cuts)}; --minutes asks for more")
    if costs.seconds(smallest) > seconds:
        told.append("even so it will take longer than asked: the smallest experiment that counts")
    return replace(smallest, told=tuple(told))


def _smaller(plan: Plan) -> Iterator[Plan]:
    """From the wanted plan down to a single seed at a single size."""
    yield plan
    seeds, few = plan.seeds, min(plan.seeds, FEW_SEEDS)
    epochs, less = plan.epochs, min(plan.epochs, FEW_EPOCHS)
    for count, points, most in (
        (seeds, 3, epochs),
        (few, 3, epochs),
        (few, 3, less),
        (few, 2, less),
        (few, 1, less),
        (min(seeds, 2), 1, less),
        (1, 1, less),
    ):
        kept = plan.sizes[: points - 1] + plan.sizes[-1:] if points > 1 else plan.sizes[-1:]
        sizes = tuple(dict.fromkeys(kept))
        reach = plan.reach if points > 1 else ()
        yield replace(plan, seeds=count, sizes=sizes, reach=reach, epochs=most)


def _cuts(wanted: Plan, kept: Plan) -> Iterator[str]:
    if kept.seeds < wanted.seeds:
        yield f"{kept.seeds} of {wanted.seeds} seeds"
    if kept.sizes + kept.reach != wanted.sizes + wanted.reach:
        yield f"labels {', '.join(f'{size:,}' for size in kept.sizes + kept.reach)} only"
    if kept.epochs < wanted.epochs:
        yield f"{kept.epochs} of {wanted.epochs} epochs"
