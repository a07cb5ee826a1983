"""The examples of a run: what training reads and what is scored at the end."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headswap.errors import DataError, UsageError
from headswap.objectives import Classify, Context, Translate
from headswap.progress import Reporter, size
from headswap.randomness import derive, generator
from headswap.settings import DataPlan, Settings
from headswap.text import corpus, files, shards
from headswap.text.corpus import LabelledText
from headswap.text.likeness import fingerprint
from headswap.text.loader import (
    BucketLoader,
    Labelled,
    Loader,
    MixedLoader,
    NearWindows,
    Pair,
    Source,
    TokenLoader,
    Window,
    WindowLoader,
    Windows,
)
from headswap.text.pairs import PairText, read_pairs
from headswap.text.sharded import Sharded
from headswap.text.shards import Shards
from headswap.text.tokenizer import Tokenizer
from headswap.training.loop import Data
from headswap.wording import counted

LONG = {
    "head": "their beginning is read, which loses {:.1%} of all tokens",
    "head+tail": "their beginning and end are read, which loses {:.1%} of all tokens",
    "windows": "they are read in overlapping windows whose scores are averaged",
}
ROLES = ("train", "valid", "test")
LABELS_HELD_OUT, WINDOWS_HELD_OUT, MOST_WINDOWS_HELD_OUT = 0.1, 0.01, 500
PAIRS_HELD_OUT, MOST_PAIRS_HELD_OUT = 0.02, 1_000
SAMPLED_BATCHES = 8


Rows = dict[str, list[LabelledText]]
PairRows = dict[str, list[PairText]]


def split_rows(settings: Settings, paths: Mapping[str, Sequence[Path]]) -> tuple[Rows, PairRows]:
    """The labelled texts or the sentence pairs by role, with a share held out where no
    validation file is given; nothing for objectives that read plain text."""
    if isinstance(settings.objective, Translate):
        return {}, _split_pairs(settings, paths)
    if not isinstance(settings.objective, Classify):
        return {}, {}
    data = settings.data
    rows = {
        role: [row for path in some for row in corpus.labelled(path, data.reading)]
        for role, some in paths.items()
    }
    if "valid" not in rows:
        share = LABELS_HELD_OUT if data.hold_out is None else data.hold_out
        rows["train"], rows["valid"] = hold_out(rows["train"], share, settings.train.seed)
    return rows, {}


def _split_pairs(settings: Settings, paths: Mapping[str, Sequence[Path]]) -> PairRows:
    data = settings.data
    pairs = {role: list(read_pairs(some, data.reading)) for role, some in paths.items()}
    if settings.objective.reverse:  # type: ignore[attr-defined]
        pairs = {
            role: [PairText(pair.target, pair.source) for pair in some]
            for role, some in pairs.items()
        }
    if "valid" not in pairs:
        share = PAIRS_HELD_OUT if data.hold_out is None else data.hold_out
        named = [LabelledText(pair.source, "") for pair in pairs["train"]]
        _, away = hold_out(named, share, settings.train.seed)
        repeats = Counter(fingerprint(row.text) for row in away)
        held: set[int] = set()
        room = MOST_PAIRS_HELD_OUT
        for key in sorted(repeats, key=lambda key: derive(settings.train.seed, "held", key)):
            if repeats[key] <= room:
                held.add(key)
                room -= repeats[key]
        every, pairs["train"], pairs["valid"] = pairs["train"], [], []
        for pair in every:
            pairs["valid" if fingerprint(pair.source) in held else "train"].append(pair)
    return pairs


class Prepared:
    """``data`` for the training loop; ``labelled`` and ``pairs`` by role for the final
    scores."""

    def __init__(
        self,
        settings: Settings,
        paths: Mapping[str, Sequence[Path]],
        rows: Rows,
        pairs: PairRows,
        tokens: Tokenizer,
        report: Reporter,
    ) -> None:
        self.settings, self.paths, self.tokens, self.report = settings, paths, tokens, report
        self.labelled: dict[str, list[Labelled]] = {}
        self.pairs: PairRows = pairs
        if isinstance(settings.objective, Translate):
            self.data = self._translated(settings.objective, pairs)
        elif isinstance(settings.objective, Classify):
            self.data = self._labelled(settings.objective, rows)
        else:
            self.data = self._windows()

    def _labelled(self, objective: Classify, rows: Rows) -> Data:
        plan = self.settings.train
        if not rows["valid"]:
            self.report.warn(
                f"only {counted(len(rows['train']), 'text')}: too few to hold any out, "
                "so nothing is validated"
            )
        numbers = {label: number for number, label in enumerate(objective.labels)}
        for role, some in rows.items():
            if not some:
                self.labelled[role] = []
                continue
            encoded = self.tokens.encode([row.text for row in some])
            self._tell_truncation(role, encoded, objective)
            self.labelled[role] = [
                Labelled(ids, numbers[row.label]) for ids, row in zip(encoded, some, strict=True)
            ]
        train_rows, valid_rows = self.labelled["train"], self.labelled["valid"]
        lengths = np.array([len(example.ids) for example in train_rows])
        loader = BucketLoader(train_rows, lengths, plan.batch, plan.seed)
        truth = [example.label for example in valid_rows]
        stack = self.settings.model
        read = [
            len(row) for one in train_rows for row in objective.rows(one.ids, stack, self.tokens)
        ]
        return Data(loader, valid_rows, truth, sum(read) / loader.batches, sum(read) / len(read))

    def _translated(self, objective: Translate, pairs: PairRows) -> Data:
        plan = self.settings.train
        encoded = {role: self.encoded_pairs(some, role) for role, some in pairs.items()}
        longest = min(objective.longest, self.settings.model.length - 2)
        train = [pair for pair in encoded["train"] if len(pair.ids) <= longest]
        if not train:
            raise DataError(f"every pair is longer than {longest} tokens")
        told = f"{counted(len(train), 'pair')} to train on, {len(encoded['valid']):,} to validate"
        if left_out := len(encoded["train"]) - len(train):
            told += f"; {left_out:,} left out, longer than {longest} tokens"
        self.report.say(told)
        if objective.both:
            train += [Pair(pair.target, pair.source, backwards=True) for pair in train]
        lengths = np.array([len(pair.ids) + 1 + objective.both for pair in train])
        loader: Loader[Pair] = BucketLoader(train, lengths, plan.batch, plan.seed)
        if plan.batch_tokens is not None:
            loader = TokenLoader(train, lengths, plan.batch_tokens, plan.seed)
        total = sum(len(pair.source) + len(pair.target) + 2 for pair in train)
        length = total / (2 * len(train))
        return Data(loader, encoded["valid"], None, total / loader.batches, length)

    def encoded_pairs(self, some: Sequence[PairText], role: str) -> list[Pair]:
        """Pairs as ids; those that are scored are cut to what the model can read."""
        room = None if role == "train" else self.settings.model.length - 2
        sources = self.tokens.encode([pair.source for pair in some])
        targets = self.tokens.encode([pair.target for pair in some])
        return [Pair(a[:room], b[:room]) for a, b in zip(sources, targets, strict=True)]

    def _windows(self) -> Data:
        train = self.paths["train"]
        if self.settings.data.weights or (len(train) > 1 and any(map(files.is_sharded, train))):
            return self._mixture()
        plan, length = self.settings.train, self.settings.model.length
        main = self._shards(self.paths["train"])
        if len(main) < length + 1:
            raise DataError(
                f"the text is {counted(len(main), 'token')}, shorter than one window of {length}",
                where=self.paths["train"][0],
                fix="give more text or set a smaller model.length",
            )
        windows, valid = self._split(main)
        self.report.say(
            f"{size(len(main))} tokens, {counted(main.manifest.documents, 'document')}, "
            f"{counted(windows.count - windows.held_out, 'window')} of {length} to train on, "
            f"{len(valid):,} to validate"
        )
        loader = WindowLoader(windows, plan.batch, plan.seed)
        return Data(loader, valid, None, *self._read_a_step(loader))

    def _read_a_step(self, loader: Loader[Window]) -> tuple[float, float]:
        """The tokens of a step and of a sequence, as the first batches have them: an objective
        may leave a part of its windows out."""
        settings, tokens, rows = self.settings, [], []
        for step in range(min(loader.batches, SAMPLED_BATCHES)):
            noise = generator(settings.train.seed, "sampled", step)
            context = Context(settings.model, self.tokens, noise, step, training=True)
            made = settings.objective.batch(loader.batch(0, step), context)
            tokens.append(made.tokens)
            rows.append(len(made.inputs.ids_BT))
        return sum(tokens) / len(tokens), sum(tokens) / sum(rows)

    def _mixture(self) -> Data:
        """Each training file is a corpus of its own, read as much as its weight says; without
        weights, as much as it is long."""
        plan, data, length = self.settings.train, self.settings.data, self.settings.model.length
        sources: list[Source] = []
        valid: list[Window] = []
        for path in self.paths["train"]:
            windows, held = self._split(self._shards([path]))
            if windows.count - windows.held_out < 1:
                raise DataError(f"shorter than one window of {length}", where=path)
            sources.append(windows)
            if "valid" in self.paths:
                valid = held  # the same for all
            else:
                valid += held[: max(1, MOST_WINDOWS_HELD_OUT // len(self.paths["train"]))]
        weights = data.weights or tuple(float(s.count - s.held_out) for s in sources)

        def mixed(steps: int) -> MixedLoader:
            end = data.weights_end or weights
            return MixedLoader(sources, weights, end, plan.batch, plan.seed, steps)

        read = self._read_a_step(mixed(sys.maxsize))
        steps = plan.total_steps(mixed(1).batches, read[0])
        if data.weights_end and steps is None:
            raise UsageError("data.weights_end needs a budget in steps, epochs or tokens")
        loader = mixed(steps or 1)
        for place, source, weight in zip(data.train, sources, weights, strict=True):
            share, name = weight / sum(weights), place.rstrip("/").rpartition("/")[2]
            self.report.say(
                f"{name}: {counted(source.count, 'window')}, {share:.1%} of the reading"
            )
        return Data(loader, valid, None, *read)

    def _split(self, main: Shards | Sharded) -> tuple[Source, list[Window]]:
        """Windows to train on, and those that validate: held out, or of files of their own."""
        seed, length = self.settings.train.seed, self.settings.model.length
        if "valid" in self.paths:
            given = self._shards(self.paths["valid"])
            some = min(Windows(given, length, seed).count, MOST_WINDOWS_HELD_OUT)
            other = Windows(given, length, seed, held_out=some)
            return self._source(main), [other.window(i) for i in sorted(other.valid())]
        count = self._source(main).count
        share = self.settings.data.hold_out
        wanted = count * (WINDOWS_HELD_OUT if share is None else share)
        held = min(max(1, round(wanted)), MOST_WINDOWS_HELD_OUT, max(count - 1, 0))
        windows = self._source(main, held)
        return windows, [windows.window(i) for i in windows.valid()]

    def _source(self, main: Shards | Sharded, held_out: int = 0) -> Source:
        seed, length = self.settings.train.seed, self.settings.model.length
        near = self.settings.data.near
        if near and isinstance(main, Sharded):
            return NearWindows(main, length, seed, near, held_out)
        return Windows(main, length, seed, held_out)

    def _shards(self, paths: Sequence[Path]) -> Shards | Sharded:
        reading = self.settings.data.reading
        if files.is_sharded(paths[0]):
            found = Sharded(paths[0])
            if not self.tokens.extends(found.tokenizer()):
                raise UsageError(
                    "the shards were made with another tokenizer than the model's",
                    where=paths[0],
                    fix="shard the text with --tokenizer of the base",
                )
            return found
        kinds = ",".join(files.kind(path) for path in paths)
        source = f"{files.sha256(paths)}/{kinds}/{reading}"
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
        tokens = counted(round(lengths.mean()), "token")
        line = f"{role}: {counted(len(lengths), 'text')}, {tokens} on average"
        if lost.any():
            line += f"; {np.count_nonzero(lost):,} longer than {room}: "
            line += LONG[objective.long].format(lost.sum() / lengths.sum())
        self.report.say(line)


def hold_out(
    rows: Sequence[LabelledText], share: float, seed: int, clean: Callable[[str], str] = str
) -> tuple[list[LabelledText], list[LabelledText]]:
    """A stratified split by hash of the text, so that texts that are equal when they are clean
    stay on one side, whatever their labels."""
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(fingerprint(clean(row.text)), []).append(index)
    by_label: dict[str, list[int]] = {}
    for key, members in groups.items():
        by_label.setdefault(rows[members[0]].label, []).append(key)
    away: set[int] = set()
    for keys in by_label.values():
        wanted = max(1, round(share * sum(len(groups[key]) for key in keys)))
        taken = 0
        for key in sorted(keys, key=lambda key: derive(seed, "hold out", key))[:-1]:
            if taken >= wanted:
                break
            away.update(groups[key])
            taken += len(groups[key])
    kept = [row for index, row in enumerate(rows) if index not in away]
    return kept, [row for index, row in enumerate(rows) if index in away]


def with_labels(objective: Classify, data: DataPlan) -> Classify:
    """The labels that were given, else those of the training rows, by name; every split must
    stay within them. Training rows need not have all that were given."""
    given, found = set(objective.labels), dict[str, set[str]]()
    for role in ROLES:
        for path in map(Path, getattr(data, role)):
            seen = {row.label for row in corpus.labelled(path, data.reading)}
            found.setdefault(role, set()).update(seen)
            known = given or found["train"]
            if role != "train" and (unknown := sorted(seen - known)):
                raise DataError(
                    f"the label {unknown[0]!r} is not among the training labels "
                    f"({', '.join(sorted(known))})",
                    where=path,
                    fix="add training examples of it or take those rows out",
                )
    labels = tuple(sorted(found["train"], key=label_order))
    if len(given or labels) < 2:
        raise DataError(
            f"only one label, {labels[0]!r}", where=data.train[0], fix="give at least two classes"
        )
    if given and set(labels) - given:
        raise UsageError(
            f"classify.labels are {', '.join(objective.labels)} but the data has "
            f"{', '.join(labels)}"
        )
    return dataclasses.replace(objective, labels=objective.labels or labels)


def label_order(label: str) -> tuple[int, float, str]:
    """Numbers as numbers, before names."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    return (0, number, label) if math.isfinite(number) else (1, 0.0, label)
