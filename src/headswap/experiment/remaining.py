"""What is left of an experiment, as commands for any scheduler, and doing one of them.

A command brings one run to its end, or finds it there. What depends on other runs is listed
when those are done: bases, then the trials of rates, then the rest, then the report.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from headswap.errors import UsageError, did_you_mean
from headswap.experiment import bases, findings
from headswap.experiment.design import REPORT
from headswap.experiment.jobs import Workshop
from headswap.experiment.plan import Base, Job
from headswap.progress import Reporter
from headswap.run import Run
from headswap.wording import quoted


@dataclass(frozen=True)
class Stage:
    """Runs that do not wait for each other; none where only the report is left."""

    title: str
    names: tuple[str, ...]


def stage(shop: Workshop) -> Stage | None:
    """What can be done now; None when all is done."""
    plan = shop.plan
    missing = [base for base in plan.bases if not _made(shop, base)]
    if missing:
        ready = [base for base in missing if _waits_for(shop, base) is None]
        return Stage("pretraining", tuple(f"bases/{base.name}" for base in ready))
    trials = _left(shop, plan.trials())
    if trials:
        return Stage("trying rates", trials)
    rest = _left(shop, plan.final(findings.chosen_rates(shop.folder, plan)))
    if rest:
        return Stage("training", rest)
    return None if (shop.folder.path / REPORT).exists() else Stage("testing and the report", ())


def commands(shop: Workshop) -> list[str]:
    """One line for every run that can be made now."""
    found = stage(shop)
    if found is None:
        return []
    command = f"headswap resume {shlex.quote(str(shop.folder.path.resolve()))}"
    return [f"{command} --run {shlex.quote(name)}" for name in found.names] or [command]


def make(shop: Workshop, name: str, report: Reporter) -> None:
    """Bring the run of this name to its end."""
    known: dict[str, Base | Job] = {f"bases/{base.name}": base for base in shop.plan.bases}
    known |= {_name(shop, job): job for job in _possible(shop)}
    if name not in known:
        raise UsageError(
            f"the experiment has no run {name!r}",
            where=shop.folder.path,
            fix=did_you_mean(name, known) if known.keys() else None,
        )
    what = known[name]
    before = _waits_for(shop, what)
    if before is not None:
        raise UsageError(
            f"{name} begins from bases/{before}, which is not made yet",
            where=shop.folder.path,
            fix=f"headswap resume {quoted(shop.folder.path)} --run bases/{before}",
        )
    if isinstance(what, Base):
        bases.make(shop.folder, shop.design, what, shop.plan.bases, report)
    else:
        shop.make(what)


def _possible(shop: Workshop) -> list[Job]:
    """Every run that the experiment may come to make, whichever rates win."""
    plan = shop.plan
    found = plan.trials()
    for place in range(max((len(plan.rates(arm)) for arm in plan.arms), default=0)):
        found += plan.final({arm.name: plan.rates(arm)[place] for arm in plan.arms if arm.neural})
    return found


def _left(shop: Workshop, jobs: list[Job]) -> tuple[str, ...]:
    names = (_name(shop, job) for job in jobs if not Run(shop.path(job)).finished)
    return tuple(dict.fromkeys(names))


def _name(shop: Workshop, job: Job) -> str:
    return f"runs/{shop.path(job).name}"


def _made(shop: Workshop, base: Base) -> bool:
    return bool(base.run) or Run(shop.base_path(base.name)).finished


def _waits_for(shop: Workshop, what: Base | Job) -> str | None:
    """The base that has to be there first, where it is not."""
    if isinstance(what, Job):
        needed = [what.arm.base]
    else:
        first = bases.shares_tokenizer_of(what, shop.plan.bases)
        needed = [what.start, first.name if first else None]
    for base in shop.plan.bases:
        if base.name in needed and base != what and not _made(shop, base):
            return base.name
    return None
