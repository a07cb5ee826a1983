from __future__ import annotations

import json
import random

import pytest

from conftest import BAD, GOOD, PLAIN, review_rows, write_jsonl
from headswap.errors import UsageError
from headswap.text import check, likeness


def found(tmp_path, length=None, **splits):
    sources = {}
    for role, rows in splits.items():
        if role == "text":
            path = tmp_path / "text.txt"
            path.write_text("\n".join(rows), "utf-8")
        else:
            path = write_jsonl(tmp_path / f"{role}.jsonl", rows)
        sources[role] = [path]
    result = check.check(sources, length=length)
    return {finding["what"]: finding for finding in result["findings"]}, result


def rows(count, seed):
    return [
        {"text": f"{row['text']} {seed}-{i}", "label": row["label"]}
        for i, row in enumerate(review_rows(count, seed))
    ]


def test_clean_data_gives_no_finding(tmp_path):
    findings, result = found(tmp_path, train=rows(60, 1), test=rows(30, 2))
    assert findings == {} and not result["fatal"]
    assert result["splits"]["train"]["texts"] == 60


def test_leaks_are_counted_and_named_ignoring_case_spacing_and_punctuation(tmp_path):
    train, valid, test = rows(40, 1), rows(20, 2), rows(20, 3)
    test[3] = {"text": train[7]["text"].upper() + " !!", "label": train[7]["label"]}
    test[4] = {"text": valid[2]["text"].replace(" ", "   "), "label": valid[2]["label"]}
    valid[5] = dict(train[0])
    text = [train[9]["text"], test[10]["text"], "something else entirely"]
    findings, _ = found(tmp_path, text=text, train=train, valid=valid, test=test)
    assert findings["train texts that also stand in test"]["rows"] == (8,)
    assert findings["valid texts that also stand in test"]["rows"] == (3,)
    assert findings["valid texts that also stand in train"]["rows"] == (6,)
    assert findings["text texts that also stand in test"]["rows"] == (2,)
    assert findings["text texts that also stand in train"]["rows"] == (1,)


def test_repeats_and_contradictions(tmp_path):
    train = rows(30, 1)
    train += [dict(train[0]), {"text": train[1]["text"], "label": "other"}]
    findings, _ = found(tmp_path, train=train)
    assert findings["train: repeats of a text inside it"]["count"] == 2
    assert findings["one text with two labels"]["count"] == 1


def long_text(draw, words=120):
    return " ".join("".join(draw.choices("abcdefghijklmnop", k=6)) for _ in range(words))


def test_near_duplicates_are_found_and_strangers_are_not(tmp_path):
    draw = random.Random(0)
    train = [{"text": long_text(draw), "label": draw.choice("ab")} for _ in range(60)]
    test = [{"text": long_text(draw), "label": draw.choice("ab")} for _ in range(60)]
    for index in range(10):
        words = train[index]["text"].split()
        words[index * 5] = "changed"
        test[index]["text"] = " ".join(words)
    train[40]["text"] = train[30]["text"] + " once more"
    findings, result = found(tmp_path, train=train, test=test)
    near = findings["near duplicates between train and test"]
    assert 8 <= near["count"] <= 10 and len(findings) == 2
    assert near["rows"] == near["like"] and set(near["rows"]) <= set(range(1, 11))
    inside = findings["near duplicates inside train"]
    assert (inside["rows"], inside["like"]) == ((41,), (31,))
    told = list(check.lines(result))
    assert told[-2].endswith("inside train (at least 70% of runs shared): row 41 (like 31)")
    first = near["rows"][0]
    assert f"rows of test, like those of train): rows {first} (like {first}), " in told[-1]
    assert told[-1].endswith(", …")


def test_the_sketch_estimates_what_two_texts_share():
    draw = random.Random(1)
    for share in (0.0, 0.5, 0.9):
        estimates = []
        for _ in range(30):
            common, one, two = (long_text(draw, n) for n in (int(400 * share), 400, 400))
            a = (common + one[: int(len(one) * (1 - share))]).replace(" ", "")
            b = (common + two[: int(len(two) * (1 - share))]).replace(" ", "")
            estimates.append(likeness.alike(likeness.sketch(a), likeness.sketch(b)))
        expected = share / (2 - share)
        assert abs(sum(estimates) / 30 - expected) < 0.08


def test_labels_that_cannot_work_are_fatal(tmp_path):
    one = [{"text": row["text"], "label": "same"} for row in rows(10, 1)]
    findings, result = found(tmp_path, train=one)
    assert result["fatal"] and findings["train: a single class (same)"]["fatal"]
    strange = [*rows(5, 2), {"text": "hm", "label": "neutral"}]
    findings, result = found(tmp_path, train=rows(30, 1), test=strange)
    assert result["fatal"] and findings["test: labels that train lacks"]["detail"] == "neutral"


def test_missing_labels_imbalance_and_empty_texts(tmp_path):
    odd = [("no label here at all", ""), ("?!", "good"), ("rare", "rare"), ("too", "rare")]
    train = [*rows(60, 1), *({"text": text, "label": label} for text, label in odd)]
    findings, _ = found(tmp_path, train=train)
    assert findings["train: rows without a label"]["count"] == 1
    assert findings["train: texts without a letter"]["count"] == 1
    assert findings["train: the class 'rare' is rare"]["count"] == 2


def test_labels_that_are_no_classes(tmp_path):
    texts = [{"text": f"text number {i}", "label": f"label {i}"} for i in range(50)]
    findings, result = found(tmp_path, train=texts)
    assert findings["train: classes with a single text"]["fatal"] and result["fatal"]
    assert max(map(len, check.lines(result))) < 400


def test_a_test_set_that_is_mostly_training_data_is_fatal(tmp_path):
    train = rows(40, 1)
    findings, result = found(tmp_path, train=train, test=train[:20])
    assert result["fatal"] and findings["train texts that also stand in test"]["fatal"]


def test_surface_damage(tmp_path):
    train = rows(200, 1)
    train[0]["text"] += " <br /> tag"
    train[1]["text"] += " entity &eacute;"
    train[2]["text"] += " dÃ©jÃ\u00a0 vu"
    train[3]["text"] += " lost \ufffd"
    french = "le livre est dans la maison et les enfants de la rue pour une fois que des"
    for index in range(10, 20):
        train[index]["text"] = f"{french} {index}"
    findings, _ = found(tmp_path, train=train)
    assert findings["train: texts with HTML remains"]["count"] == 2
    assert findings["train: texts with encoding damage"]["count"] == 2
    assert findings["train: texts in another language"]["count"] >= 10


def test_truncation_is_said(tmp_path):
    train = [{"text": " ".join(PLAIN * 20), "label": "a"}, {"text": GOOD[0], "label": "b"}]
    findings, _ = found(tmp_path, length=70, train=train)
    finding = findings["train: texts longer than 70 tokens"]
    assert finding["count"] == 1 and "loses 8" in finding["detail"]


def test_nothing_to_check():
    with pytest.raises(UsageError, match="nothing to check"):
        check.sources_of([], [], [], [])


def test_findings_survive_json(tmp_path):
    _, result = found(tmp_path, train=[{"text": BAD[0], "label": "x"}])
    assert json.loads(json.dumps(result))["fatal"]
    assert any(line.startswith("STOP") for line in check.lines(result))


def test_labels_that_differ_in_spelling_alone_are_told():
    labels = ["pos", "neg", "POS", "1", "1.0", "0"] * 2
    rows = [(f"text number {i} of some words", label) for i, label in enumerate(labels)]
    found = {entry["detail"]: entry for entry in check.examine({"train": rows})["findings"]}
    assert "'POS', 'pos'" in found and "'1', '1.0'" in found
    assert not found["'POS', 'pos'"]["fatal"] and found["'POS', 'pos'"]["count"] == 2


def test_words_of_languages_without_spaces_are_their_letters():
    assert check.words_in("a  good\nfilm") == 3 and check.words_in("") == 0
    assert check.words_in("这是一本非常好的书我很喜欢它的故事和人物") == 20
    assert check.words_in("http://example.org/a-very-long-address/indeed.html") == 1


def test_related_labels_that_are_mostly_test_texts_are_fatal(tmp_path):
    test = rows(30, 2)
    _, result = found(tmp_path, train=rows(60, 1), via=test[:20] + rows(40, 3), test=test)
    assert result["fatal"]


def test_labels_that_mean_none_are_looked_at():
    rows = [(f"text number {i} of many", ("nan", "pos")[i % 2]) for i in range(20)]
    told = "\n".join(check.lines(check.examine({"train": rows})))
    assert "rows labelled 'nan'" in told and "nothing suspicious" not in told
