"""The experiment's data: three splits and, for every seed, nested sets of labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from headswap import storage
from headswap.errors import DataError
from headswap.experiment.design import Design, Folder
from headswap.prepare import hold_out, label_order
from headswap.progress import Reporter
from headswap.randomness import derive
from headswap.text import corpus, files
from headswap.text.corpus import LabelledText, Reading
from headswap.text.likeness import fingerprint
from headswap.wording import counted

TEST_SHARE, VALID_SHARE = 0.25, 0.15
FEWEST_TEXTS, FEWEST_OF_A_CLASS = 20, 3
SPLITS = ("train", "valid", "test")

Rows = dict[str, list[LabelledText]]


def make(design: Design, report: Reporter) -> Rows:
    """The rows of train, valid and test, in a fixed random order. What is not given is cut
    from the table: stratified, equal texts kept together."""
    reading = Reading("auto", design.text_column, design.label_column)
    given = {"train": design.table, "valid": design.valid, "test": design.test}
    rows = {
        role: [row for path in files.expand(paths) for row in corpus.labelled(path, reading)]
        for role, paths in given.items()
    }
    _check_table(rows["train"], design.table[0], whole=not (design.valid and design.test))
    for role, share in (("test", TEST_SHARE), ("valid", VALID_SHARE)):
        if not given[role]:
            rows["train"], rows[role] = hold_out(rows["train"], share, 0, design.reading.cleaned)
            report.say(f"{role}: {counted(len(rows[role]), 'text')} held out of the table")
    known = {row.label for row in rows["train"]}
    for role in ("valid", "test"):
        found = {row.label for row in rows[role]}
        if strange := sorted(found - known):
            raise DataError(
                f"the label {strange[0]!r} of {role} is not among the training labels "
                f"({', '.join(sorted(known))})",
                where=(given[role] or design.table)[0],
                fix="add training examples of it or take those rows out",
            )
        if lacking := sorted(known - found):
            report.warn(f"{role} has no text of the class {', '.join(map(repr, lacking))}")
    return {role: _shuffled(some) for role, some in rows.items()}


def write(folder: Folder, rows: Rows, sizes: Sequence[int], seeds: int) -> None:
    """The splits and every seed's label sets, as files that runs can name."""
    for role in SPLITS:
        _write_rows(folder.data(role), rows[role])
    for seed in range(seeds):
        order = stratified(rows["train"], seed)
        for size in sizes:
            chosen = sorted(order[:size])
            _write_rows(folder.subset(size, seed), [rows["train"][index] for index in chosen])


def stratified(rows: Sequence[LabelledText], seed: int) -> list[int]:
    """An order of which every beginning has the classes in their proportions, and one of
    each class comes first."""
    by_label: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        by_label.setdefault(row.label, []).append(index)
    ranked: list[tuple[float, int]] = []
    for label in sorted(by_label):
        members = sorted(by_label[label], key=lambda index: derive(seed, "labels", index))
        ranked += [
            ((place + 0.5) / len(members) if place else 0.0, index)
            for place, index in enumerate(members)
        ]
    return [index for _, index in sorted(ranked)]


def labels_of(rows: Rows) -> tuple[str, ...]:
    return tuple(sorted({row.label for row in rows["train"]}, key=label_order))


def related(design: Design) -> Iterator[LabelledText]:
    """The rows of other labels, on which bases are fine-tuned first."""
    for path in files.expand(design.via):
        yield from corpus.labelled(path, Reading("auto", design.text_column, design.label_column))


def leaked_from_text(design: Design, rows: Rows) -> list[int]:
    """The test texts (by place) that also stand in what the bases read: the unlabelled text and
    the related labelled ones."""
    clean = design.reading.cleaned
    keys = [fingerprint(clean(row.text)) for row in rows["test"]]
    texts = corpus.documents(files.expand(design.text), design.reading)
    read = chain(texts, (clean(row.text) for row in related(design)))
    found = {fingerprint(text) for text in read} & set(keys)
    return [i for i, key in enumerate(keys) if key in found]


def _check_table(rows: Sequence[LabelledText], where: str, whole: bool) -> None:
    counts = Counter(row.label for row in {fingerprint(row.text): row for row in rows}.values())
    if len({row.label for row in rows}) < 2:
        raise DataError(
            f"only one label, {rows[0].label!r}", where=where, fix="give at least two classes"
        )
    if counts.total() < FEWEST_TEXTS:
        raise DataError(
            f"too few for an experiment: {counted(len(rows), 'row')} with "
            f"{counted(counts.total(), 'different text')}",
            where=where,
            fix=f"give at least {FEWEST_TEXTS} different texts",
        )
    for label in sorted({row.label for row in rows}):
        if whole and counts[label] < FEWEST_OF_A_CLASS:
            raise DataError(
                f"the class {label!r} has {counted(counts[label], 'different text')}, too few "
                "to train, validate and test on",
                where=where,
                fix="add some, merge it with another class or take it out",
            )


def _shuffled(rows: Sequence[LabelledText]) -> list[LabelledText]:
    order = sorted(range(len(rows)), key=lambda index: derive(0, "rows", index))
    return [rows[index] for index in order]


def _write_rows(path: Path, rows: Sequence[LabelledText]) -> None:
    lines = [
        json.dumps({"text": row.text, "label": row.label}, ensure_ascii=False) + "\n"
        for row in rows
    ]
    with storage.explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    storage.write(path, "".join(lines))
