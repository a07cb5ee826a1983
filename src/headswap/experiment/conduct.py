"""The experiment from its design to its report. Every stage is found done or done again, so
running it on a half-made folder is what ``resume`` means."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from headswap import refusals, settings, storage
from headswap import run as runs
from headswap.errors import DataError, Interrupted, UsageError
from headswap.experiment import bases, cluster, explain, findings, speed, splits, verdict
from headswap.experiment.cluster import Cluster
from headswap.experiment.design import CARD, CHECK, PLAN, ROLES, Design, Folder
from headswap.experiment.jobs import Tasks, Workers, Workshop, load_ahead
from headswap.experiment.plan import Costs, Job, Plan, curve, fit
from headswap.experiment.sharing import side_by_side
from headswap.importing.base import open_base
from headswap.planning import memory
from headswap.progress import Reporter, duration
from headswap.report import charts
from headswap.run import Run
from headswap.text import check, files
from headswap.text.loader import Window
from headswap.text.tokenizer import TOKENS_A_WORD
from headswap.training import machine
from headswap.types import Table
from headswap.wording import counted, gib, quoted


def start(design: Design, out: Path, report: Reporter) -> Folder:
    """Check, plan and conduct a new experiment. One that cannot begin leaves no folder."""
    if design.on != "ray" and design.workers != 1:
        load_ahead()
    return conduct(begin(design, out, report), report)


def begin(design: Design, out: Path, report: Reporter) -> Folder:
    """Check and plan a new experiment: its folder, with everything but the runs."""
    design = _resolved(design, report)
    runs.check_free(out, "an experiment" if Folder(out).exists() else None)
    rows = splits.make(design, report)
    checked = _checked(design, rows, report)
    plan = make_plan(design, rows, checked, report)
    folder = Folder.create(out, design)
    splits.write(folder, rows, plan.sizes + plan.reach, plan.seeds)
    storage.write(folder.path / CHECK, json.dumps(checked, indent=1) + "\n")
    storage.write(folder.path / PLAN, plan.dumps())
    return folder


def workshop(folder: Folder) -> Workshop:
    """What makes the runs of a planned experiment."""
    if not (folder.path / PLAN).exists():
        raise UsageError(
            "the experiment was stopped before it was planned",
            where=folder.path,
            fix="delete the folder and begin again",
        )
    plan = Plan.loads((folder.path / PLAN).read_text("utf-8"), str(folder.path / PLAN))
    return Workshop(folder, folder.design(), plan)


def conduct(folder: Folder, report: Reporter, on: str | None = None) -> Folder:
    """Bring an experiment to its end, from wherever it stands; ``on`` what its design names,
    unless another place is given."""
    shop = workshop(folder)
    with storage.alone(folder.path, report.say):
        return _conducted(shop, report, on)


def _conducted(shop: Workshop, report: Reporter, on: str | None) -> Folder:
    folder = shop.folder
    try:
        if (on or shop.design.on) == "ray":
            _on_cluster(shop, report)
        else:
            _here(shop, report)
    except Interrupted as error:
        raise Interrupted(
            error.what, fix=f"go on with: headswap resume {quoted(folder.path)}"
        ) from error
    explain.examples(folder)
    found = verdict.write(folder.path)
    _keep_best(folder, found)
    for line in verdict.lines(found):
        report.say(line)
    if told := charts.missing():
        report.warn(f"{told}, then: headswap report {folder.path}")
    return folder


def _here(shop: Workshop, report: Reporter) -> None:
    plan = shop.plan
    for base in plan.bases:
        bases.make(shop.folder, shop.design, base, plan.bases, report)
    with (
        side_by_side(machine.pick_device(shop.design.device).type, plan.workers),
        Workers(plan.workers, plan.threads, report) as workers,
    ):
        _make_runs(shop, workers, report)


def _on_cluster(shop: Workshop, report: Reporter) -> None:
    """The same on a Ray cluster, whose hosts know the folder by its whole path."""
    shop = dataclasses.replace(shop, folder=Folder(shop.folder.path.resolve()))
    design, threads = shop.design, shop.plan.threads
    with Cluster(design.cpus, design.gpus, threads, shop.folder.path, report) as hosts:
        for base in shop.plan.bases:
            if not base.run and not Run(shop.base_path(base.name)).finished:
                hosts.each(f"pretraining {base.name}", Tasks(shop.make_base, [base], lambda _: 1.0))
        _make_runs(shop, hosts, report)


def make_plan(design: Design, rows: splits.Rows, checked: Table, report: Reporter) -> Plan:
    """What will be run, after a second of measuring what this machine can do."""
    found, known = bases.find(design, [row.text for row in rows["train"]], report)
    labels = splits.labels_of(rows)
    for base in known.values():  # before any of them is pretrained
        refusals.check(bases.classifier(design, base, labels))
    arms = bases.arms_of(design, found, known)
    chosen, heaviest = bases.classifier(design, known[found[0].name]), bases.heaviest(design, known)
    if design.on == "ray":
        workers, threads = cluster.share_out(design.cpus, design.gpus)
    else:
        workers, threads = speed.share_out(design.device, design.workers)
        workers = _that_fit(heaviest, design, workers, report)
    full = len(rows["train"])
    sizes, told = curve(full, design.labels)
    reach, more = curve(full, design.reach) if design.reach else ((), "")
    reach = tuple(size for size in reach if size > sizes[-1])
    if design.reach and not reach:
        more = f"--reach adds nothing to {sizes[-1]:,} labels: give smaller --labels"
    wanted = Plan(
        labels=labels,
        bases=found,
        arms=arms,
        sizes=sizes,
        reach=reach,
        seeds=design.seeds,
        epochs=round(chosen.train.epochs or 8),
        rate=chosen.train.lr,
        workers=workers,
        threads=threads,
        minutes=0.0,
        told=tuple(line for line in (told, more) if line),
    )
    words = checked["splits"]["train"]["words_mean"]
    length = round(min(heaviest.model.length, TOKENS_A_WORD * words + 2))
    batch = heaviest.train.batch
    step = speed.SHARING * speed.step_seconds(heaviest.model, batch, length, design.device, threads)
    together = speed.effective(design.device, workers)
    costs = Costs(step, step / 3 / batch, batch, together, len(rows["valid"]), len(rows["test"]))
    pretraining = bases.pretraining_seconds(design, found)
    plan = fit(wanted, costs, max(60 * design.minutes - pretraining, 6 * design.minutes))
    text = checked["splits"].get("text", checked["splits"]["train"])
    made = bases.with_tokens(
        design, found, known, text["texts"] * text["words_mean"], workers * threads
    )
    minutes = (costs.seconds(plan) + pretraining) / 60
    plan = dataclasses.replace(plan, bases=made, minutes=minutes)
    _tell(plan, report)
    return plan


def _that_fit(chosen: settings.Settings, design: Design, workers: int, report: Reporter) -> int:
    """No more runs side by side than there is memory for."""
    place = machine.pick_device(design.device)
    precision, _ = machine.pick_precision(chosen.train, place)
    vocabulary, batch = chosen.tokenizer.vocabulary, chosen.train.batch
    found = memory.needed(chosen, vocabulary, precision, place.type, batch)
    need = found.held if place.type == "cuda" else found.total
    free = memory.free(place)
    most = max(1, int(memory.ROOM * free / need))
    report.say(
        f"plan: about {gib(need)} a run of {gib(free)}"
        + (f"; {most} at a time" if most < workers else "")
    )
    return min(workers, most)


def _tell(plan: Plan, report: Reporter) -> None:
    for line in plan.told:
        report.warn(line)
    rates = {arm.name: plan.rates(arm)[0] for arm in plan.arms if arm.neural}
    runs = len(set(plan.trials()) | set(plan.final(rates)))
    made = sum(base.objective is not None for base in plan.bases)
    sizes, seeds = ", ".join(f"{size:,}" for size in plan.sizes), counted(plan.seeds, "seed")
    report.say(
        f"plan: {', '.join(arm.name for arm in plan.arms)} with {sizes} labels and {seeds}: "
        + (f"{made} to pretrain, then " if made else "")
        + f"{counted(runs, 'run')}, {plan.workers} at a time, about "
        + f"{duration(60 * plan.minutes)} in all"
    )
    if plan.reach:
        more = ", ".join(f"{size:,}" for size in plan.reach)
        report.say(f"plan: scratch and linear also with {more} labels")


def _resolved(design: Design, report: Reporter) -> Design:
    """The design with absolute paths, a recipe, and bases or objectives filled in."""
    for objective in design.objectives:
        made = settings.resolve(objective, design.recipe)  # refuses what does not exist
        if made.objective.reads is not Window:
            raise UsageError(
                f"a base cannot be pretrained to {objective}: it learns from text alone",
                fix="use causal, masked or hybrid",
            )
    if design.base_changes and design.bases and not (design.text or design.objectives):
        raise UsageError(
            "--set-base shapes bases that are pretrained here, and there are none",
            fix="use --set for the classifiers, or give --text",
        )
    changed: Table = {
        role: tuple(str(path.resolve()) for path in files.expand(getattr(design, role)))
        for role in ROLES
    }
    found = tuple(open_base(base, report).reference for base in design.bases)
    recipe = design.recipe
    if recipe is None:
        recipe = "tiny" if machine.pick_device(design.device).type == "cpu" else "small"
    return dataclasses.replace(
        design,
        **changed,
        bases=found,
        objectives=design.objectives or (() if found else ("hybrid",)),
        recipe=settings.recipe_name(recipe),
        title=design.title or Path(design.table[0]).name,
    )


def _checked(design: Design, rows: splits.Rows, report: Reporter) -> Table:
    """What the data check finds; what makes an experiment meaningless ends it here."""
    report.begin("checking the data")
    clean = design.reading.cleaned  # as the models will read them
    streams: dict[str, Iterable[tuple[str, str | None]]] = {}
    if design.text:
        streams["text"] = check.texts([Path(path) for path in design.text], design.reading)
    if design.via:
        streams["via"] = ((clean(row.text), None) for row in splits.related(design))
    for role, some in rows.items():
        streams[role] = [(clean(row.text), row.label) for row in some]
    found = check.examine(streams)
    report.end()
    for line in check.lines(found):
        report.say(line)
    if found["fatal"]:
        reasons = [entry["what"] for entry in found["findings"] if entry["fatal"]]
        raise DataError(f"the experiment would be meaningless: {'; '.join(reasons)}")
    for entry in found["findings"]:
        entry["rows"], entry["like"] = entry["rows"][:50], entry["like"][:50]
    return found | {"leaked_from_text": splits.leaked_from_text(design, rows)}


def _make_runs(shop: Workshop, workers: Workers | Cluster, report: Reporter) -> None:
    """All runs, then the test. A neural arm's runs begin when its trials have chosen its rate;
    the linear models wait for nothing, and keep idle workers busy meanwhile."""
    plan, rates = shop.plan, dict[str, float]()
    trials = plan.trials()
    waited_for = Counter(job.arm.name for job in trials)

    def then(done: Job) -> list[Job]:
        name = done.arm.name
        if not done.arm.neural or name in rates:
            return []
        waited_for[name] -= 1
        if waited_for[name]:
            return []
        rates[name] = findings.chosen_rate(shop.folder, plan, done.arm)
        report.say(f"{name}: a rate of {rates[name]:g} did best on validation")
        return _longest_first(set(plan.runs(done.arm, rates[name])) - set(trials))

    fitted = [job for job in plan.final({}) if not job.arm.neural and shop.twin(job) is None]
    first = {arm.name: plan.rates(arm)[0] for arm in plan.arms if arm.neural}
    later = [job for job in plan.final(first) if job.arm.neural and job not in set(trials)]
    ready = [*_longest_first(trials), *_longest_first(fitted)]
    workers.each("training", Tasks(shop.make, ready, _size, then, later, shop.so_far))
    jobs = plan.final(rates)
    own = [job for job in jobs if shop.twin(job) is None]
    workers.each("testing", Tasks(shop.test, _longest_first(own), _size))
    for job in set(jobs) - set(own):  # the same as one that is made and tested
        shop.make(job)
        shop.test(job)


def _longest_first(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (-_size(job), job.arm.name, job.seed))


def _size(job: Job) -> float:
    """How long a run takes, in units of its own."""
    return 20.0 + job.size * (job.epochs if job.arm.neural else 4)


def _keep_best(folder: Folder, found: Table) -> None:
    """The run that validation prefers, ready to use, with its card."""
    target = folder.path / "best"
    if Run(target).finished and storage.problem(target) is None:
        return
    with storage.copied(folder.path / found["best"]["run"], target) as staged:
        shutil.copy(folder.path / CARD, staged / "README.md")
