from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import review_rows, write_jsonl
from headswap import api
from headswap.errors import DataError, StorageError, UsageError
from headswap.report import bleu, warm
from headswap.report.compare import compare, lines

SMALL = {"model": {"width": 16, "layers": 1, "heads": 2, "feedforward": 32, "length": 32}}
WORDS = {"tokenizer": {"vocabulary": 330}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two arms of two seeds: one that learns and one that hardly may."""
    folder = tmp_path_factory.mktemp("compare")
    train = write_jsonl(folder / "train.jsonl", review_rows(150, 1))
    test = write_jsonl(folder / "test.jsonl", review_rows(100, 2))
    found = {}
    for arm, rate in (("slow", 1e-6), ("fast", 1e-2)):
        for seed in (0, 1):
            plan = {"train": {"epochs": 4, "lr": rate, "seed": seed, "keep": "last"}}
            out = folder / f"{arm}-{seed}"
            api.train("classify", train, test=test, out=out, changes=[SMALL, WORDS, plan])
            found[f"{arm}-{seed}"] = out
    return found


def test_arms_are_found_and_compared(runs):
    found = compare(list(runs.values()))
    slow, fast = found["arms"]
    assert (slow["name"], fast["name"]) == ("slow", "fast")
    assert slow["seeds"] == fast["seeds"] == [0, 1]
    (row,) = found["differences"]
    assert row["gain"] == pytest.approx(fast["accuracy"] - slow["accuracy"])
    assert row["over_texts"]["low"] > 0 and row["paired_seeds"] == [0, 1]
    assert json.loads(json.dumps(found)) == found
    text = "\n".join(lines(found))
    assert "fast - slow: +" in text and "over 2 paired seeds" in text


def test_scores_agree_with_the_runs_own(runs):
    found = compare([runs["slow-0"], runs["fast-0"]])
    own = json.loads((runs["fast-0"] / "scores.json").read_text())["test"]
    assert found["arms"][1]["accuracy"] == pytest.approx(own["accuracy"])
    assert found["arms"][1]["macro_f1"] == pytest.approx(own["macro_f1"])
    assert found["arms"][0]["accuracy_over_seeds"] is None
    assert any("no seed interval" in line for line in lines(found))


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    with pytest.raises(UsageError, match="one run"):
        compare([runs["slow-0"]])
    rows = review_rows(150, 1)
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    test = write_jsonl(tmp_path / "test.jsonl", review_rows(100, 2))
    plan = {"train": {"epochs": 1, "keep": "last"}}
    shorter = tmp_path / "shorter"
    api.train("classify", train, test=test, out=shorter, changes=[SMALL, WORDS, plan])
    with pytest.raises(UsageError, match=r"differ in budget .train\.epochs"):
        compare([runs["slow-0"], shorter])
    assert compare([runs["slow-0"], shorter], why="a test")["why"] == "a test"
    other = write_jsonl(tmp_path / "other.jsonl", review_rows(50, 3))
    elsewhere = tmp_path / "elsewhere"
    four = {"train": {"epochs": 4, "keep": "last"}}
    api.train("classify", train, test=other, out=elsewhere, changes=[SMALL, WORDS, four])
    with pytest.raises(UsageError, match="different test data"):
        compare([runs["slow-0"], elsewhere])
    untested = tmp_path / "untested"
    api.train("classify", train, out=untested, changes=[SMALL, WORDS, four])
    with pytest.raises(StorageError, match="no test predictions"):
        compare([runs["slow-0"], untested])
    # What each seed holds out of a table are other texts, with the same labels in order.
    ordered = write_jsonl(tmp_path / "ordered.jsonl", sorted(rows, key=lambda row: row["label"]))
    held = []
    for seed in (0, 1):
        one = {"train": {"epochs": 1, "seed": seed, "keep": "last"}}
        held.append(tmp_path / f"held-{seed}")
        api.train("classify", ordered, out=held[-1], changes=[SMALL, WORDS, one])
    with pytest.raises(UsageError, match="different valid data"):
        compare(held, "valid")
    path = runs["slow-1"] / "predictions" / "test.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="damaged"):
        compare([runs["slow-0"], runs["slow-1"]])
    path.write_bytes(whole)


def test_it_needs_no_torch(runs):
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from headswap.report.compare import compare\n"
        "compare([Path(p) for p in sys.argv[1:]]); assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, *map(str, runs.values())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_seeds_that_both_arms_have_make_a_difference(runs):
    found = compare([runs["slow-0"], runs["slow-1"], runs["fast-0"]])
    (row,) = found["differences"]
    slow, fast = (arm["accuracy_by_seed"][0] for arm in found["arms"])
    assert row["paired_seeds"] == [0] and row["gain"] == pytest.approx(fast - slow)


def test_a_warm_start_is_judged_by_the_seeds_that_both_arms_have():
    right = [f"the cat number {i} sat on the red mat today" for i in range(20)]
    fair = [text.replace("red", "blue") for text in right]
    poor = [text.replace("cat", "dog") for text in fair]

    def run(arm, seed, said):
        return warm._Trained(arm, None, 20, 1e-3, seed, 0.0, said, right, [], {}, Path(arm), {})

    one = [run("scratch", 0, fair), run("scratch", 1, fair), run("scratch", 2, poor)]
    two = [run("from x", 0, fair), run("from x", 1, fair)]
    drawn = [bleu.resampled([each.said for each in cell], right) for cell in (one, two)]
    found = warm._difference(one, two, *drawn)
    assert found["seeds"] == 2
    assert found["gain"] == 0 == found["over_sentences"]["low"] == found["over_sentences"]["high"]


def test_older_papers_words_are_cut_by_the_targets_rules():
    pytest.importorskip("sacremoses")
    said, right = ["voici l'uniforme du petit soldat"], ["voici uniforme du petit soldat"]
    scores = {language: bleu.tokenized_bleu(said, right, language) for language in ("en", "fr")}
    assert scores["fr"] > scores["en"]


def test_bases_that_end_alike_are_arms_of_their_own():
    def run(base):
        return warm._Trained("scratch", base, 20, 1e-3, 0, 0.0, [], [], [], {}, Path("x"), {})

    told = warm._told_apart([run(None), run("/a/base"), run("/b/base"), run("/b/other")])
    assert [one.arm for one in told] == ["scratch", "from /a/base", "from /b/base", "from other"]


def test_a_run_that_is_named_twice(runs):
    with pytest.raises(UsageError, match=r"slow-0 and .*slow-0 have the same .*each run once"):
        compare([runs["slow-0"], runs["slow-0"]])
