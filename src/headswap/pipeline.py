"""From settings to a finished run. Each stage is found done or done again, so that running
the pipeline on a half-made run folder is what ``resume`` means."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headswap import beginning, ledger, locating, predictions, refusals, storage, translating
from headswap import run as runs
from headswap import settings as settings_module
from headswap.errors import HeadswapError, Interrupted, StorageError, UsageError
from headswap.nn.model import Model
from headswap.objectives import Classify, Translate
from headswap.planning import advice
from headswap.prepare import ROLES, Prepared, split_rows, with_labels
from headswap.progress import Reporter
from headswap.run import Run
from headswap.settings import Settings
from headswap.text import corpus, files
from headswap.text.loader import Window
from headswap.text.pairs import read_pairs
from headswap.text.sharded import Sharded
from headswap.text.tokenizer import Tokenizer
from headswap.training import checkpoint, machine, parallel
from headswap.training.evaluate import evaluate, scores
from headswap.training.loop import train
from headswap.training.ranks import ALONE, Ranks
from headswap.types import Table
from headswap.version import __version__
from headswap.wording import counted


def create(
    settings: Settings, out: Path, report: Reporter | None = None, ranks: Ranks = ALONE
) -> Run:
    """Check everything that can be checked cheaply, then make the run folder. With a
    ``report`` the plan is told, and a batch that would not fit is cut into parts. Several
    ranks have to agree on what they were given; rank 0 makes the folder."""
    with ranks.together():
        if Run(out).exists() and not ranks.again:
            Run.create(out, {}, {})  # refuses, and says how to go on
        final, hashes = checked(settings)
        ranks.check_batch(final.train)
    table = _shared(final.to_table())
    ranks.compare({"settings": table, "data": hashes, "versions": [__version__, torch.__version__]})

    def make() -> Run:
        run = Run(out)
        if run.exists() and (not ranks.leads or _shared(run.settings()) == table):
            return run  # made by rank 0, or by a group that torchrun has started again
        if not ranks.leads:
            raise StorageError(
                f"process {ranks.rank} does not see the run folder",
                where=out,
                fix="give an --out that all machines share",
            )
        there = {path.name for path in out.glob("*") if not path.name.startswith(storage.STAGING)}
        if ranks.again and there <= {runs.PROVENANCE}:
            storage.remove(out)  # killed before the second file
        chosen = final
        if report is not None:
            place = ranks.device(final.train.device)
            chosen, told = advice.line(final, place, ranks.world)
            report.say(told)
        return Run.create(out, chosen.to_table(), runs.provenance(hashes))

    return ranks.in_turn(make, first=ranks.leads)


def start(
    settings: Settings,
    out: Path,
    report: Reporter,
    planned: bool = False,
    ranks: Ranks = ALONE,
) -> Run:
    """Make a run and bring it to its end. A run that fails before it has learnt anything
    leaves no folder behind, so that the corrected command can use the same name. One that is
    ``planned`` already, as a part of an experiment, is not planned again."""
    run = create(settings, out, None if planned else report, ranks)
    try:
        return execute(run, report, ranks=ranks, planned=planned)
    except HeadswapError as error:
        worth_resuming = isinstance(error, Interrupted | StorageError)
        learnt = any((out / runs.CHECKPOINTS).glob("step-*"))
        if ranks.leads and not worth_resuming and not learnt:
            storage.remove(out)
        raise


def _shared(table: Table) -> Table:
    """The settings that all ranks must have alike: paths and threads may differ, and memory
    decides the parts of a batch."""
    own = {"train": ("threads", "accumulate"), "data": ("train", "valid", "test", "base")}
    return {
        section: {key: value for key, value in some.items() if key not in own.get(section, ())}
        if isinstance(some, dict)
        else some
        for section, some in table.items()
    }


def checked(settings: Settings) -> tuple[Settings, Table]:
    """The settings with labels, absolute paths and threads filled in, and the data's hashes."""
    plan, data = settings.train, settings.data
    plan.budget  # noqa: B018 (raises when there is none)
    if not data.train:
        raise UsageError("no file to train on", fix="name at least one")
    if settings.model.decoder_layers and not isinstance(settings.objective, Translate):
        raise UsageError(
            f"the recipe {settings.recipe} makes translators, not a {settings.objective.name} run",
            fix="take another recipe",
        )
    refusals.check(settings)
    if data.test and not isinstance(settings.objective, Classify | Translate):
        raise UsageError(
            f"a {settings.objective.name} run is not scored on --test",
            fix="score it when it is trained: headswap evaluate RUN FILE",
        )
    data = dataclasses.replace(
        data,
        train=locating.absolute(data.train),
        valid=locating.absolute(data.valid),
        test=locating.absolute(data.test),
    )
    located = locating.sources(data)
    hashes: Table = {role: {"sha256": files.sha256(paths)} for role, paths in located.items()}
    objective = settings.objective
    data = locating.checked_shards(settings, data, located)
    words = settings.tokenizer
    for path in filter(files.is_sharded, located["train"]):
        words = dataclasses.replace(words, vocabulary=Sharded(path).tokenizer().size)
    if isinstance(objective, Classify):
        if objective.room(settings.model) < 1:
            raise UsageError(f"a model.length of {settings.model.length} leaves no room for text")
        objective = with_labels(objective, data)
    elif isinstance(objective, Translate):
        for role in ROLES:
            if paths := [Path(path) for path in getattr(data, role)]:
                for _ in read_pairs(paths, data.reading):
                    pass  # sides of different lengths are found at the end
    else:
        for path in located["train"]:
            if not files.is_sharded(path):
                next(iter(corpus.documents([path], data.reading)))
    if not data.base:
        beginning.given_tokenizer(settings)  # refuses one that cannot be read
    if data.base:
        base = Run.open(Path(data.base))
        base.check_finished()
        data = dataclasses.replace(data, base=base.reference)
        hashes["base"] = {"sha256": files.sha256([base.path / runs.WEIGHTS])}
        if imported := base.provenance().get("imported"):
            hashes["base"]["imported"] = imported
    threads = plan.threads or torch.get_num_threads()
    plan = dataclasses.replace(plan, threads=threads)
    final = dataclasses.replace(
        settings, objective=objective, tokenizer=words, data=data, train=plan
    )
    return final, hashes


def execute(
    run: Run,
    report: Reporter,
    device: str | None = None,
    data_folder: Path | None = None,
    ranks: Ranks = ALONE,
    planned: bool = False,
) -> Run:
    """Bring a run to its end, from wherever it stands; on the device that its plan names
    unless another is given. Of several ranks each trains, and rank 0 writes the end. A part of
    an experiment (``planned``) writes no checkpoint of its last step."""
    with contextlib.ExitStack() as held:
        with ranks.together():
            if ranks.leads:
                held.enter_context(storage.alone(run.path, report.say))
        return _executed(run, report, device, data_folder, ranks, planned)


def _executed(
    run: Run,
    report: Reporter,
    device: str | None,
    data_folder: Path | None,
    ranks: Ranks,
    planned: bool,
) -> Run:
    with ranks.together():
        if data_folder is not None and not data_folder.is_dir():
            raise StorageError("no such folder", where=data_folder, fix="check --data")
    if ranks.from_leader(lambda: run.finished and storage.problem(run.path) is None):
        report.say(f"{run.path} is finished already")
        return run
    run.start_clock()
    with ranks.together():
        settings = settings_module.from_table(run.settings())
        ranks.check_batch(settings.train)
        paths = locating.again(run, settings, data_folder)
        place = ranks.device(device or settings.train.device)
        threads = settings.train.threads or torch.get_num_threads()
        machine.prepare(settings.train, place, threads, settings.objective.reads is Window)
        rows, pairs = split_rows(settings, paths)
    seen = rows.get("train") or pairs.get("train")
    tokens = ranks.in_turn(
        lambda: beginning.tokenizer_of(run, settings, paths, seen, report), ranks.leads
    )
    prepared = ranks.in_turn(
        lambda: Prepared(settings, paths, rows, pairs, tokens, report), ranks.local == 0
    )
    stack, objective = settings.model, settings.objective
    model = Model(stack, tokens.size, objective.heads(stack, tokens.size)).to(place)
    _tell_size(model, settings, place, report, ranks)

    def initial(fresh: Model) -> None:
        beginning.fill(fresh, settings, tokens, report)

    data = prepared.data
    if isinstance(objective, Translate) and settings.train.select in ("auto", "bleu"):
        judge = translating.judge_of(tokens, objective, pairs["valid"])
        data = dataclasses.replace(data, judge=judge)
    state = train(
        model, objective, tokens, data, settings.train, run, report, initial, ranks, not planned
    )
    summary = {
        "steps": state.step,
        "tokens": state.tokens,
        "best_step": state.best_step,
        "parameters": sum(tensor.numel() for tensor in model.tensors().values()),
        "flops": _flops(settings, tokens.size, state.tokens, data.length),
    }
    if seen is not None:
        summary["examples"] = len(seen)
    with parallel.whole_model(model) as chosen:
        if ranks.leads:
            _finish(run, settings, chosen, tokens, prepared, summary, report)
            run.note_time("finished")
    return run


def _finish(
    run: Run,
    settings: Settings,
    model: Model,
    tokens: Tokenizer,
    prepared: Prepared,
    summary: Table,
    report: Reporter,
) -> None:
    """Write the chosen weights, the predictions and the scores; then seal the run."""
    run.check_there()
    objective, plan = settings.objective, settings.train
    precision, _ = machine.pick_precision(plan, model.device)
    results: Table = {"training": summary}
    lines: dict[str, str] = {}
    splits: dict[str, Sequence[Any]] = {"valid": prepared.data.valid}
    if "test" in prepared.labelled:
        splits["test"] = prepared.labelled["test"]
    if "test" in prepared.pairs:
        splits["test"] = prepared.encoded_pairs(prepared.pairs["test"], "test")
    for role, examples in splits.items():
        if not examples:
            continue
        part = max(1, plan.batch // plan.accumulate)
        result = evaluate(model, objective, examples, tokens, part, precision)
        truth = None
        if isinstance(objective, Classify):
            assert result.logits_NC is not None
            truth = [example.label for example in examples]
            lines[role] = predictions.lines(result.logits_NC, truth, objective.labels)
        results[role] = scores(result, truth)
        if isinstance(objective, Translate):
            texts = prepared.pairs[role]
            lines[role], judged = translating.judged(model, tokens, objective, texts)
            results[role] |= judged
        told = "  ".join(
            f"{name} {value:.4f}" for name, value in results[role].items() if name != "signature"
        )
        report.say(f"{role}: {told}")
    (run.path / runs.TESTED).unlink(missing_ok=True)  # of a run that is mended
    with storage.new_folder(run.path / runs.PREDICTIONS) as staged:
        for role, content in lines.items():
            (staged / f"{role}.jsonl").write_text(content, "utf-8")
    with storage.explained(run.path):
        staged_weights = run.path / f"{storage.STAGING}weights"
        checkpoint.save_weights(model, staged_weights)
        staged_weights.replace(run.path / runs.WEIGHTS)
    storage.write(run.path / runs.SCORES, json.dumps(results, indent=1) + "\n")
    run.finish()


def _flops(settings: Settings, vocabulary: int, tokens: int, length: float) -> float:
    """What the training cost, from the structure; a frozen backbone is only read forwards."""
    objective, stack = settings.objective, settings.model
    a_token = ledger.flops_a_token(
        stack,
        objective.heads(stack, vocabulary),
        min(stack.length, length),
        objective.scored,
        objective.visibility == "causal",
    )
    passes = 2 if getattr(objective, "r_drop", 0.0) else 1
    return passes * tokens * a_token / (3 if settings.train.freeze == "backbone" else 1)


def _tell_size(
    model: Model, settings: Settings, place: torch.device, report: Reporter, ranks: Ranks
) -> None:
    count = sum(tensor.numel() for tensor in model.tensors().values())
    stack = settings.model
    report.say(
        f"{settings.objective.name}: {count:,} parameters "
        f"({counted(stack.layers, 'layer')} of width {stack.width}) on {place}"
    )
    plan = settings.train
    if ranks.alone:
        if plan.shard:
            report.warn("train.shard needs several processes: one holds the whole model")
        return
    share = plan.batch // ranks.world
    how = "a part of the model on each" if plan.shard else "the whole model on each"
    report.say(f"{ranks.world} processes, {counted(share, 'example')} a step and {how}")
    if plan.batch // plan.accumulate < ranks.world:
        report.warn(
            f"train.accumulate cuts batches into parts of {plan.batch // plan.accumulate}, fewer "
            f"than {ranks.world} processes: some of them have nothing to do"
        )
