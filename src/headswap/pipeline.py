"""From settings to a finished run. Each stage is found done or done again, so that running
the pipeline on a half-made run folder is what ``resume`` means."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headswap import run as runs
from headswap import settings as settings_module
from headswap import storage
from headswap.errors import DataError, StorageError, UsageError
from headswap.nn.model import Model, new_model, swap_head
from headswap.objectives import Classify
from headswap.progress import Reporter, size
from headswap.randomness import derive
from headswap.run import Run
from headswap.settings import Settings
from headswap.text import corpus, files, shards, tokenizer
from headswap.text.corpus import LabelledText
from headswap.text.loader import BucketLoader, Labelled, WindowLoader, Windows
from headswap.text.tokenizer import Tokenizer
from headswap.training import checkpoint, machine
from headswap.training.evaluate import evaluate, scores
from headswap.training.loop import Data, train
from headswap.types import Table

ROLES = ("train", "valid", "test")
LABELS_HELD_OUT, WINDOWS_HELD_OUT, MOST_WINDOWS_HELD_OUT = 0.1, 0.01, 500


def create(settings: Settings, out: Path, report: Reporter) -> Run:
    """Check everything that can be checked cheaply, then make the run folder."""
    if Run(out).exists():
        Run.create(out, {}, {})  # refuses, and says how to go on
    plan, data = settings.train, settings.data
    plan.budget  # noqa: B018 (raises when there is none)
    if not data.train:
        raise UsageError("no file to train on", fix="name at least one")
    data = dataclasses.replace(
        data, **{role: tuple(str(Path(p).resolve()) for p in getattr(data, role)) for role in ROLES}
    )
    hashes: Table = {
        role: {"sha256": files.sha256([Path(path) for path in getattr(data, role)])}
        for role in ROLES
        if getattr(data, role)
    }
    objective = settings.objective
    if isinstance(objective, Classify):
        objective = _with_labels(objective, data)
    else:
        for path in map(Path, data.train):
            next(iter(corpus.documents([path], data.reading)))
    if data.base:
        base = Run.open(Path(data.base))
        base.check_finished()
        data = dataclasses.replace(data, base=str(base.path.resolve()))
        hashes["base"] = {"sha256": files.sha256([base.path / runs.WEIGHTS])}
    threads = plan.threads or torch.get_num_threads()
    plan = dataclasses.replace(plan, threads=threads)
    final = dataclasses.replace(settings, objective=objective, data=data, train=plan)
    return Run.create(out, final.to_table(), runs.provenance(hashes))


def execute(
    run: Run, report: Reporter, device: str = "auto", data_folder: Path | None = None
) -> Run:
    """Bring a run to its end, from wherever it stands."""
    if run.finished and storage.problem(run.path) is None:
        report.say(f"{run.path} is finished already")
        return run
    settings = settings_module.from_table(run.settings())
    paths = _locate(run, settings, data_folder)
    place = machine.pick_device(device)
    assert settings.train.threads is not None
    machine.prepare(settings.train, place, settings.train.threads)
    tokens = _tokenizer(run, settings, paths, report)
    prepared = _Prepared(settings, paths, tokens, report)
    stack, objective = settings.model, settings.objective
    model = Model(stack, tokens.size, objective.heads(stack, tokens.size)).to(place)
    _tell_size(model, settings, place, report)

    def initial(fresh: Model) -> None:
        _fill(fresh, settings, tokens, report)

    state = train(model, objective, tokens, prepared.data, settings.train, run, report, initial)
    summary = {"steps": state.step, "tokens": state.tokens, "best_step": state.best_step}
    _finish(run, settings, model, tokens, prepared, summary, report)
    return run


class _Prepared:
    """The examples of a run: what training reads and what is scored at the end."""

    def __init__(
        self,
        settings: Settings,
        paths: Mapping[str, Sequence[Path]],
        tokens: Tokenizer,
        report: Reporter,
    ) -> None:
        self.settings, self.paths, self.tokens, self.report = settings, paths, tokens, report
        self.labelled: dict[str, list[Labelled]] = {}
        if isinstance(settings.objective, Classify):
            self.data = self._labelled(settings.objective)
        else:
            self.data = self._windows()

    def _labelled(self, objective: Classify) -> Data:
        data, plan = self.settings.data, self.settings.train
        rows = {
            role: [row for path in paths for row in corpus.labelled(path, data.reading)]
            for role, paths in self.paths.items()
        }
        if "valid" not in rows:
            share = LABELS_HELD_OUT if data.hold_out is None else data.hold_out
            rows["train"], rows["valid"] = hold_out(rows["train"], share, plan.seed)
        numbers = {label: number for number, label in enumerate(objective.labels)}
        for role, some in rows.items():
            encoded = self.tokens.encode([row.text for row in some])
            self._tell_truncation(role, encoded, objective)
            self.labelled[role] = [
                Labelled(ids[: objective.room(self.settings.model)], numbers[row.label])
                for ids, row in zip(encoded, some, strict=True)
            ]
        train_rows, valid_rows = self.labelled["train"], self.labelled["valid"]
        lengths = np.array([len(example.ids) for example in train_rows])
        loader = BucketLoader(train_rows, lengths, plan.batch, plan.seed)
        truth = [example.label for example in valid_rows]
        return Data(loader, valid_rows, truth, float(lengths.mean() + 1) * plan.batch)

    def _windows(self) -> Data:
        plan, length = self.settings.train, self.settings.model.length
        main = self._shards("train")
        if len(main) < length + 1:
            raise DataError(
                f"the text is {len(main)} tokens, shorter than one window of {length}",
                where=self.paths["train"][0],
                fix="give more text or set a smaller model.length",
            )
        count = Windows(main, length, plan.seed).count
        held = 0
        if "valid" not in self.paths and count > 1:
            share = self.settings.data.hold_out
            wanted = count * (WINDOWS_HELD_OUT if share is None else share)
            held = min(max(1, round(wanted)), MOST_WINDOWS_HELD_OUT, count - 1)
        windows = Windows(main, length, plan.seed, held)
        if "valid" in self.paths:
            other = Windows(self._shards("valid"), length, plan.seed)
            valid = [other.window(i) for i in range(min(other.count, MOST_WINDOWS_HELD_OUT))]
        else:
            valid = [windows.window(i) for i in windows.valid()]
        self.report.say(
            f"{size(len(main))} tokens, {main.manifest.documents:,} documents, "
            f"{count - held:,} windows of {length} to train on, {len(valid):,} to validate"
        )
        return Data(WindowLoader(windows, plan.batch, plan.seed), valid, None, plan.batch * length)

    def _shards(self, role: str) -> shards.Shards:
        paths, reading = self.paths[role], self.settings.data.reading
        source = f"{files.sha256(paths)}/{reading}"
        self.report.begin("encoding text")
        try:
            return shards.prepare(
                lambda: corpus.documents(paths, reading),
                self.tokens,
                source,
                lambda count: self.report.update(None, f"{size(count)} tokens"),
            )
        finally:
            self.report.end()

    def _tell_truncation(self, role: str, encoded: Sequence[Any], objective: Classify) -> None:
        room = objective.room(self.settings.model)
        lengths = np.array([len(ids) for ids in encoded])
        lost = np.maximum(lengths - room, 0)
        line = f"{role}: {len(lengths):,} texts, {lengths.mean():.0f} tokens on average"
        if lost.any():
            line += (
                f"; {np.count_nonzero(lost):,} are longer than {room} and are cut, "
                f"which loses {lost.sum() / lengths.sum():.1%} of the tokens"
            )
        self.report.say(line)


def hold_out(
    rows: Sequence[LabelledText], share: float, seed: int
) -> tuple[list[LabelledText], list[LabelledText]]:
    """A stratified split by hash of the text, so that equal texts stay on one side."""
    by_label: dict[str, dict[str, list[int]]] = {}
    for index, row in enumerate(rows):
        groups = by_label.setdefault(row.label, {})
        groups.setdefault(" ".join(row.text.lower().split()), []).append(index)
    away: set[int] = set()
    for groups in by_label.values():
        wanted = max(1, round(share * sum(map(len, groups.values())))) if len(groups) > 1 else 0
        taken = 0
        for text in sorted(groups, key=lambda text: derive(seed, "hold out", text))[:-1]:
            if taken >= wanted:
                break
            away.update(groups[text])
            taken += len(groups[text])
    kept = [row for index, row in enumerate(rows) if index not in away]
    return kept, [row for index, row in enumerate(rows) if index in away]


def _with_labels(objective: Classify, data: settings_module.DataPlan) -> Classify:
    """The labels of the training rows, by name; every other split must stay within them."""
    found: dict[str, set[str]] = {}
    for role in ROLES:
        for path in map(Path, getattr(data, role)):
            seen = {row.label for row in corpus.labelled(path, data.reading)}
            found.setdefault(role, set()).update(seen)
            if role != "train" and (unknown := sorted(seen - found["train"])):
                raise DataError(
                    f"the label {unknown[0]!r} is not among the training labels "
                    f"({', '.join(sorted(found['train']))})",
                    where=path,
                    fix="add training examples of it or take those rows out",
                )
    labels = tuple(sorted(found["train"], key=_label_order))
    if len(labels) < 2:
        raise DataError(
            f"only one label, {labels[0]!r}", where=data.train[0], fix="give at least two classes"
        )
    if objective.labels and set(objective.labels) != set(labels):
        raise UsageError(
            f"classify.labels are {', '.join(objective.labels)} but the data has "
            f"{', '.join(labels)}"
        )
    return dataclasses.replace(objective, labels=objective.labels or labels)


def _label_order(label: str) -> tuple[int, float, str]:
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)


def _locate(
    run: Run, settings: Settings, folder: Path | None
) -> dict[str, list[Path]]:
    """The data's files, here or in ``folder``, checked against the hashes of the run."""
    hashes = run.provenance()["data"]
    located: dict[str, list[Path]] = {}
    for role in ROLES:
        for name in getattr(settings.data, role):
            path = Path(name)
            if folder is not None and (folder / path.name).exists():
                path = folder / path.name
            if not path.exists():
                raise StorageError(
                    "the run's data is not there",
                    where=path,
                    fix="name the folder that holds it with --data",
                )
            located.setdefault(role, []).append(path)
    for role, paths in located.items():
        if files.sha256(paths) != hashes[role]["sha256"]:
            raise DataError(
                f"the {role} data has changed since the run began",
                where=paths[0],
                fix="restore it, or train a new run",
            )
    return located


def _tokenizer(
    run: Run, settings: Settings, paths: Mapping[str, Sequence[Path]], report: Reporter
) -> Tokenizer:
    folder = run.path / runs.TOKENIZER
    if not folder.exists():
        made = _make_tokenizer(settings, paths, report)
        made = made.with_specials(settings.objective.specials)
        with storage.new_folder(folder) as staged:
            made.save(staged)
    wrong = storage.problem(folder)
    if wrong:
        raise DataError(f"the tokenizer is damaged: {wrong}", where=folder)
    return tokenizer.load(folder)


def _make_tokenizer(
    settings: Settings, paths: Mapping[str, Sequence[Path]], report: Reporter
) -> tokenizer.SentencePieceTokenizer:
    plan, data = settings.tokenizer, settings.data
    if data.base:
        return tokenizer.load(Path(data.base) / runs.TOKENIZER)
    if plan.model:
        pieces = None if plan.pieces is None else Path(plan.pieces)
        loaded = tokenizer.load_model(Path(plan.model), pieces)
        if loaded.appended:
            report.say(f"tokenizer: appended the missing specials {', '.join(loaded.appended)}")
        return loaded
    report.say(f"training a {plan.kind} tokenizer of {plan.vocabulary:,} tokens")
    made = tokenizer.train(corpus.documents(paths["train"], data.reading), plan)
    if made.size < plan.vocabulary:
        report.warn(
            f"the text is too small for {plan.vocabulary:,} tokens: "
            f"the vocabulary has {made.size:,}"
        )
    return made


def _fill(model: Model, settings: Settings, tokens: Tokenizer, report: Reporter) -> None:
    """The first weights: random, or a base's under the new head."""
    stack, seed = settings.model, settings.train.seed
    heads = settings.objective.heads(stack, tokens.size)
    if settings.data.base is None:
        source = new_model(stack, tokens.size, heads, seed=seed)
    else:
        base_run = Run.open(Path(settings.data.base))
        base, base_settings = load_model(base_run)
        base_tokens = tokenizer.load(base_run.path / runs.TOKENIZER)
        if base_tokens.fingerprint != tokens.fingerprint:
            raise UsageError("the base was made with another tokenizer", where=base_run.path)
        same = base_settings.objective == settings.objective
        keep = tuple(name for name in heads if same or name != "label")
        source, carried = swap_head(base, heads, seed=seed, keep=keep)
        report.say(f"{base_run.path.name}: {carried}")
    with torch.no_grad():
        found = source.tensors()
        for name, tensor in model.tensors().items():
            tensor.copy_(found[name])


def load_model(run: Run, device: torch.device | None = None) -> tuple[Model, Settings]:
    """A finished run's model, every byte checked."""
    run.check_finished()
    settings = settings_module.from_table(run.settings())
    vocabulary = tokenizer.load(run.path / runs.TOKENIZER).size
    heads = settings.objective.heads(settings.model, vocabulary)
    model = Model(settings.model, vocabulary, heads)
    checkpoint.load_weights(model, run.path / runs.WEIGHTS)
    return model.to(device or torch.device("cpu")).eval(), settings


def _finish(
    run: Run,
    settings: Settings,
    model: Model,
    tokens: Tokenizer,
    prepared: _Prepared,
    summary: Table,
    report: Reporter,
) -> None:
    """Write the chosen weights, the predictions and the scores; then seal the run."""
    objective, plan = settings.objective, settings.train
    precision, _ = machine.pick_precision(plan, model.device)
    results: Table = {"training": summary}
    lines: dict[str, str] = {}
    splits: dict[str, Sequence[Any]] = {"valid": prepared.data.valid}
    if "test" in prepared.labelled:
        splits["test"] = prepared.labelled["test"]
    for role, examples in splits.items():
        if not examples:
            continue
        result = evaluate(model, objective, examples, tokens, plan.batch, precision)
        truth = None
        if isinstance(objective, Classify):
            assert result.logits_NC is not None
            truth = [example.label for example in examples]
            lines[role] = prediction_lines(result.logits_NC, truth, objective.labels)
        results[role] = scores(result, truth)
        told = "  ".join(f"{name} {value:.4f}" for name, value in results[role].items())
        report.say(f"{role}: {told}")
    with storage.new_folder(run.path / runs.PREDICTIONS) as staged:
        for role, content in lines.items():
            (staged / f"{role}.jsonl").write_text(content, "utf-8")
    with storage.explained(run.path):
        staged_weights = run.path / f"{storage.STAGING}weights"
        checkpoint.save_weights(model, staged_weights)
        staged_weights.replace(run.path / runs.WEIGHTS)
    storage.write(run.path / runs.SCORES, json.dumps(results, indent=1) + "\n")
    run.finish()
    run.note_time("finished")


def prediction_lines(logits_NC: np.ndarray, truth: Sequence[int], labels: Sequence[str]) -> str:
    """One JSON line an example, in the order of the data."""
    lines = []
    for index, (row, right) in enumerate(zip(softmax(logits_NC), truth, strict=True)):
        line = {
            "index": index,
            "label": labels[right],
            "predicted": labels[int(row.argmax())],
            "probabilities": dict(zip(labels, row.tolist(), strict=True)),
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines)


def softmax(logits_NC: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits_NC.astype(np.float64) - logits_NC.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def _tell_size(model: Model, settings: Settings, place: torch.device, report: Reporter) -> None:
    count = sum(tensor.numel() for tensor in model.tensors().values())
    stack = settings.model
    report.say(
        f"{settings.objective.name}: {count:,} parameters "
        f"({stack.layers} layers of width {stack.width}) on {place}"
    )

