"""The experiment's data: stratified, nested, duplicates together, bad tables refused."""

from __future__ import annotations

from collections import Counter

import pytest

from conftest import review_rows, write_jsonl
from headswap.errors import DataError
from headswap.experiment import splits
from headswap.experiment.design import Design
from headswap.progress import Silent
from headswap.text.corpus import LabelledText, Reading
from headswap.text.likeness import fingerprint


def made(tmp_path, rows, **given):
    table = write_jsonl(tmp_path / "table.jsonl", rows)
    report = Silent()
    return splits.make(Design(table=(str(table),), **given), report), report


def test_one_file_is_split_and_equal_texts_stay_together(tmp_path):
    rows = review_rows(200)
    rows += [{"text": row["text"].upper() + "!", "label": row["label"]} for row in rows[:60]]
    found, _ = made(tmp_path, rows)
    assert sum(map(len, found.values())) == 260
    keys = {role: {fingerprint(row.text) for row in some} for role, some in found.items()}
    assert not keys["train"] & keys["test"] and not keys["train"] & keys["valid"]
    assert not keys["valid"] & keys["test"]
    for some in found.values():
        assert len({row.label for row in some}) == 2


def test_label_sets_are_nested_and_keep_the_proportions():
    rows = [LabelledText(f"text {i}", "rare" if i % 10 == 0 else "common") for i in range(500)]
    order = splits.stratified(rows, 3)
    assert sorted(order) == list(range(500))
    for size in (2, 50, 200):
        counts = Counter(rows[index].label for index in order[:size])
        assert counts["rare"] >= 1 and abs(counts["rare"] - size / 10) <= 1
    assert order != splits.stratified(rows, 4)


def refused(tmp_path, rows, message, **given):
    with pytest.raises(DataError, match=message):
        made(tmp_path, rows, **given)


def test_tables_that_cannot_be_learnt_from(tmp_path):
    good = review_rows(60)
    refused(tmp_path, [{**row, "label": "x"} for row in good], "only one label")
    refused(tmp_path, [*good[:2], {"text": "z", "label": "q"}], "too few for an experiment")
    refused(tmp_path, [{"text": "the same", "label": str(i % 2)} for i in range(50)], "1 different")
    rare = [*good, {"text": "strange", "label": "ugly"}]
    refused(tmp_path, rare, "'ugly' has 1 different text, ")
    refused(tmp_path, [{"text": row["text"]} for row in good], "no label column")


def test_labels_that_a_split_lacks_or_adds(tmp_path):
    test = write_jsonl(tmp_path / "test.jsonl", [{"text": f"t{i}", "label": "good"} for i in "abc"])
    _, report = made(tmp_path, review_rows(60), test=(str(test),))
    assert any("test has no text of the class 'bad'" in line for line in report.lines)
    strange = write_jsonl(tmp_path / "test2.jsonl", [{"text": "t", "label": "ugly"}])
    refused(tmp_path, review_rows(60), "'ugly' of test is not among", test=(str(strange),))


def test_leaks_are_looked_for_in_what_the_models_read(tmp_path):
    """Cleaned on both sides: marks that are taken out hide nothing."""
    rows = review_rows(80)
    for row in rows:
        row["text"] = row["text"].replace(" ", "<br />", 1)
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(row["text"].replace("<br />", " ") for row in rows) + "\n")
    given = {"text": (str(plain),), "clean": ("html",), "documents": "line"}
    found, _ = made(tmp_path, rows, **given)
    table = (str(tmp_path / "table.jsonl"),)
    leaked = splits.leaked_from_text(Design(table=table, **given), found)
    assert leaked == list(range(len(found["test"])))
    assert splits.leaked_from_text(Design(table=table, **{**given, "clean": ()}), found) == []


def test_texts_that_differ_in_what_is_taken_out_stay_together(tmp_path):
    rows = review_rows(200)
    rows += [
        {"text": row["text"].replace(" ", "<br />"), "label": row["label"]} for row in rows[:90]
    ]
    found, _ = made(tmp_path, rows, clean=("html",))
    clean = Reading(clean=("html",)).cleaned
    keys = {role: {fingerprint(clean(row.text)) for row in some} for role, some in found.items()}
    assert not keys["train"] & keys["test"] and not keys["train"] & keys["valid"]
