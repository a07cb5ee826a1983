"""The bases of an experiment: which there are, which arms they make, and making them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from headswap import config, pipeline, settings, storage
from headswap.errors import DataError, UsageError
from headswap.experiment import speed
from headswap.experiment.design import Design, Folder
from headswap.experiment.plan import Arm, Base
from headswap.importing.base import SCHEME, open_base
from headswap.ledger import flops_a_token
from headswap.objectives import Classify
from headswap.progress import Reporter
from headswap.run import TOKENIZER, Run
from headswap.settings import Settings
from headswap.text import tokenizer
from headswap.text.check import LONG_WORD
from headswap.types import Table

PRETRAINING_SHARE, MOST_PASSES = 0.4, 20
FOREIGN, STRANGE = 2.6, 2.0
SAMPLED_TEXTS = 300
TEXTS = "train"


def find(
    design: Design, texts: Sequence[str], report: Reporter
) -> tuple[tuple[Base, ...], dict[str, Settings]]:
    """The bases, and the settings that each has or will have."""
    bases: list[Base] = []
    known: dict[str, Settings] = {}

    def add(base: Base, made: Settings) -> None:
        bases.append(base)
        known[base.name] = made

    for source in design.bases:
        run = Run.open(Path(source))
        run.check_finished()
        table = run.settings()
        if table.get("objective") == "linear":
            raise UsageError("a linear run cannot be a base", where=run.path)
        _check_language(run, texts, report)
        imported = run.provenance().get("imported")
        origin = imported and f"{SCHEME}{imported['from']}"
        labelled = table.get("objective") == Classify.name
        name = _unique(run.path.name, known)
        base = Base(name, run.reference, origin=origin, labelled=labelled)
        add(base, settings.from_table(table))
        if design.text and not design.objectives:
            objective = _language_objective(run)
            adapted = _unique(f"{name}-adapted", known)
            more = Base(adapted, "", objective, None, base.run, labelled=labelled)
            settings.resolve(objective, None, _changes(design), base=known[name])  # or refuses
            add(more, known[name])
    for objective in design.objectives:
        base = Base(_unique(objective, known), "", objective)
        add(base, settings.resolve(objective, design.recipe, _changes(design)))
    for base in list(bases) if design.via else ():
        name = _unique(f"{base.name}-via", known)
        via = Base(name, "", None, None, base.name, via=True, labelled=True)
        add(via, known[base.name])
    rates = {name: classifier(design, made).train.lr for name, made in known.items()}
    # Sizes may differ, and with them sensible rates.
    return tuple(dataclasses.replace(base, rate=rates[base.name]) for base in bases), known


def classifier(design: Design, base: Settings, labels: Sequence[str] = ()) -> Settings:
    """The settings of a classifier on a base, as far as the design and its labels decide them."""
    changes = [config.parse_assignment(text) for text in design.changes]
    if labels:
        changes.append({"classify": {"labels": list(labels)}})
    return settings.resolve("classify", None, changes, base=base)


def heaviest(design: Design, known: Mapping[str, Settings]) -> Settings:
    """The classifier that takes the most time and memory: what an experiment is planned for."""
    made = [classifier(design, base) for base in known.values()]
    return max(made, key=lambda one: flops_a_token(one.model, {}, one.model.length, 0.0))


def arms_of(
    design: Design, bases: Sequence[Base], known: Mapping[str, Settings]
) -> tuple[Arm, ...]:
    """Linear; a scratch arm for every shape, tokenizer and way of reading; each base; each
    base frozen."""
    owners: dict[str, Base] = {}
    owner_of: dict[str, Base] = {}
    for base in bases:
        same = _identity(base, design, known, owner_of)
        owner_of[base.name] = owners.setdefault(same, base)
    scratch = {
        base.name: "scratch" if len(owners) == 1 else f"scratch-{base.name}"
        for base in owners.values()
    }
    arms = [Arm("linear", "linear")]
    arms += [Arm(scratch[base.name], "scratch", base.name) for base in owners.values()]
    single = len(bases) == 1
    for base in bases:
        against = scratch[owner_of[base.name].name]
        arms.append(Arm("pretrained" if single else base.name, "pretrained", base.name, against))
    for base in bases if design.probe else ():
        against = scratch[owner_of[base.name].name]
        arms.append(Arm("probe" if single else f"probe-{base.name}", "probe", base.name, against))
    for place, arm in enumerate(arms):
        before = [other.name for other in arms[:place]]
        while arm.name in before:  # bases x and probe-x
            arm = dataclasses.replace(arm, name=f"{arm.name}-2")
        arms[place] = arm
    return tuple(arms)


def pretraining_seconds(design: Design, bases: Sequence[Base]) -> float:
    """The time that all pretraining together may take."""
    if not any(base.objective for base in bases):
        return 0.0
    minutes = design.pretraining_minutes
    return 60 * (PRETRAINING_SHARE * design.minutes if minutes is None else minutes)


def with_tokens(
    design: Design, bases: Sequence[Base], known: Mapping[str, Settings], words: float, threads: int
) -> tuple[Base, ...]:
    """The bases with their budgets: as many tokens as the time allows, and no more than some
    passes over the text."""
    made = [base for base in bases if base.objective]
    seconds = pretraining_seconds(design, bases) / max(len(made), 1)
    found = []
    for base in bases:
        if base.objective is None:
            found.append(base)
            continue
        chosen = known[base.name]
        stack, batch = chosen.model, chosen.train.batch
        step = speed.step_seconds(stack, batch, stack.length, design.device, threads)
        bare = flops_a_token(stack, {}, stack.length, 0.0)
        heads = chosen.objective.heads(stack, chosen.tokenizer.vocabulary)
        whole = flops_a_token(stack, heads, stack.length, chosen.objective.scored)
        rate = batch * stack.length / (step * whole / bare)
        most = MOST_PASSES * words * tokenizer.TOKENS_A_WORD
        tokens = round(max(min(rate * seconds, most), batch * stack.length))
        found.append(dataclasses.replace(base, tokens=tokens))
    return tuple(found)


def located(folder: Folder, base: Base) -> Path:
    """Where a base is: a run that was there before, or one that the experiment makes."""
    return Path(base.run) if base.run else folder.base(base.name)


def make(
    folder: Folder, design: Design, base: Base, bases: Sequence[Base], report: Reporter
) -> None:
    """Pretrain a base or fine-tune it on related labels, or find it done. An imported one is
    imported again when the cache was emptied."""
    if base.origin and not Run(Path(base.run)).exists():
        open_base(base.origin, report)
    if base.run:
        return
    out = folder.base(base.name)
    run = Run(out)
    if run.exists():
        pipeline.execute(run, report)
        return
    storage.remove(out)  # a process that was killed as it began
    report.say(f"\n── {base.name}")
    pipeline.start(_settings(folder, design, base, bases), out, report)


def _settings(folder: Folder, design: Design, base: Base, bases: Sequence[Base]) -> Settings:
    train: Table = {"device": design.device}
    data: Table = {
        "clean": list(design.clean),
        "documents": design.documents,
        "text_column": design.text_column,
        "label_column": design.label_column,
    }
    data = {key: value for key, value in data.items() if value is not None}
    if base.via:
        start = next(other for other in bases if other.name == base.start)
        run = Run.open(located(folder, start))
        data |= {"train": list(design.via), "base": run.reference}
        objective, recipe = "classify", None
        changes = [config.parse_assignment(text) for text in design.changes]
    else:
        assert base.objective is not None
        run = Run.open(Path(base.start)) if base.start else Run(Path())
        data["train"] = list(design.text) or [str(folder.data(TEXTS).resolve())]
        if not design.text:
            data |= {"text_column": "text", "label_column": "label"}
        train["tokens"] = base.tokens
        objective, recipe = base.objective, None if base.start else design.recipe
        changes = _changes(design)
        if base.start:
            data["base"] = run.reference
        elif first := shares_tokenizer_of(base, bases):
            words = folder.base(first.name) / TOKENIZER
            changes.append({"tokenizer": {"model": str(words.resolve())}})
    known = settings.from_table(run.settings()) if "base" in data else None
    return settings.resolve(
        objective, recipe, [*changes, {"data": data, "train": train}], base=known
    )


def shares_tokenizer_of(base: Base, bases: Sequence[Base]) -> Base | None:
    """The first base that is pretrained here from nothing: those after it share its tokenizer."""
    if not base.objective or base.start:
        return None
    first = next(other for other in bases if other.objective and not other.start)
    return None if first == base else first


def _changes(design: Design) -> list[Table]:
    return [config.parse_assignment(text) for text in design.base_changes]


def _language_objective(run: Run) -> str:
    name = str(run.settings()["objective"])
    if name == "classify":
        raise UsageError(
            "a classifier cannot go on pretraining",
            where=run.path,
            fix="leave --text out, or name a language model with --from",
        )
    return name


def _identity(
    base: Base, design: Design, known: Mapping[str, Settings], owners: Mapping[str, Base]
) -> str:
    """Equal for bases whose classifiers, from random weights, would be the same."""
    if base.start is not None and base.start in owners:
        return _identity(owners[base.start], design, known, {})
    chosen = classifier(design, known[base.name])
    plan = known[base.name].tokenizer
    source = base.run or base.start
    if source:
        words = tokenizer.load(Run.open(Path(source)).path / TOKENIZER).fingerprint
    elif plan.model:
        pieces = None if plan.pieces is None else Path(plan.pieces)
        loaded = tokenizer.load_model(Path(plan.model), pieces)
        words = loaded.with_specials(known[base.name].objective.specials).fingerprint
    else:
        words = json.dumps(config.to_table(plan))
    return json.dumps([config.to_table(chosen.model), config.to_table(chosen.objective), words])


def _unique(name: str, taken: Mapping[str, Settings]) -> str:
    if name not in taken and name not in ("linear", "scratch", "probe", "pretrained"):
        return name
    return next(f"{name}-{number}" for number in range(2, 1_000) if f"{name}-{number}" not in taken)


def _check_language(run: Run, texts: Sequence[str], report: Reporter) -> None:
    """Refuse a base whose tokenizer cuts these texts to pieces."""
    some = texts[:SAMPLED_TEXTS]
    tokens = tokenizer.load(run.path / TOKENIZER)
    words = sum(len(text.split()) for text in some)
    if sum(map(len, some)) > LONG_WORD * max(words, 1):
        return  # written without spaces
    pieces = sum(map(len, tokens.encode(some))) / max(words, 1)
    if pieces > FOREIGN:
        raise DataError(
            f"the base's tokenizer cuts a word of these texts into {pieces:.1f} pieces: it was "
            "made for another language",
            where=run.path,
            fix="pretrain a base on text like yours with --text",
        )
    if pieces > STRANGE:
        report.warn(
            f"{run.path.name}: its tokenizer cuts a word of these texts into {pieces:.1f} pieces; "
            "it was made for other text"
        )
