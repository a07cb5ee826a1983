"""The linear baseline: a run like any other, without pickle."""

from __future__ import annotations

import json

import numpy as np
import pytest

from conftest import review_rows, write_jsonl
from headswap import api, linear, predictions
from headswap.errors import DataError
from headswap.report.compare import compare

LABELS = ("bad", "good")


@pytest.fixture
def fitted(tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", review_rows(150))
    valid = write_jsonl(tmp_path / "valid.jsonl", review_rows(60, 2))
    return linear.fit(LABELS, train, valid, tmp_path / "linear")


def test_it_learns_is_stored_whole_and_predicts(fitted, tmp_path):
    scores = fitted.scores()["valid"]
    assert scores["accuracy"] > 0.8
    assert not [path for path in fitted.path.rglob("*") if path.suffix in (".pkl", ".joblib")]
    model = api.load(fitted.path)
    rows = review_rows(60, 2)
    said = list(model.predict(row["text"] for row in rows))
    right = np.mean([p.label == row["label"] for p, row in zip(said, rows, strict=True)])
    assert right == pytest.approx(scores["accuracy"])
    assert model.evaluate([tmp_path / "valid.jsonl"])["loss"] == pytest.approx(scores["loss"])
    assert all(sum(p.probabilities.values()) == pytest.approx(1) for p in said)


def test_loaded_scores_equal_scikit_learns(fitted, tmp_path):
    from sklearn.feature_extraction.text import TfidfVectorizer

    model = api.load(fitted.path)
    texts = [row["text"] for row in review_rows(150)]
    fresh = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    expected = fresh.fit_transform(texts)
    found = model._vectorizers["words"].transform(texts)
    assert abs(expected - found).max() < 1e-6


def test_strengths_are_tried_on_validation_and_the_best_is_kept(fitted):
    trials = list(fitted.metrics())
    assert len(trials) == len(linear.Linear().strengths)
    best = max(trials, key=lambda line: (line["accuracy"], -line["loss"]))
    assert fitted.scores()["training"]["strength"] == best["strength"]


def test_more_than_two_classes_and_one_that_training_lacks(tmp_path):
    rows = [{"text": f"{word} thing {i}", "label": word} for i in range(20) for word in "abc"]
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    run = linear.fit((*"abc", "never"), train, train, tmp_path / "linear")
    said = next(iter(api.load(run.path).predict(["b thing"])))
    assert said.label == "b" and said.probabilities["never"] < 1e-6


def test_it_is_compared_with_a_neural_run(fitted, tmp_path):
    small = ["model.width=16", "model.heads=2", "model.layers=1", "tokenizer.vocabulary=330"]
    neural = tmp_path / "neural"
    api.train(
        "classify",
        tmp_path / "train.jsonl",
        valid=tmp_path / "valid.jsonl",
        out=neural,
        changes=[*small, "train.epochs=1"],
        device="cpu",
    )
    found = compare([fitted.path, neural], "valid")
    assert [arm["name"] for arm in found["arms"]] == ["linear", "neural"]


def test_a_test_set_added_later_is_part_of_the_run(fitted):
    truth = [0, 1, 1]
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    lines = predictions.lines(logits, truth, LABELS)
    fitted.add_test(lines, predictions.scores(logits, truth), {"sha256": "abc"})
    fitted.check_finished()
    assert fitted.scores()["test"]["accuracy"] == pytest.approx(2 / 3)
    assert fitted.provenance()["data"]["test"] == {"sha256": "abc"}
    assert predictions.read(fitted, "test").right_N.tolist() == [1, 1, 0]


def test_damage_is_found(fitted):
    path = fitted.path / "vocabulary.json"
    path.write_text(json.dumps({"words": []}))
    with pytest.raises(DataError, match="damaged"):
        api.load(fitted.path)


@pytest.mark.parametrize("text", ["n{}", "!{}?".replace("{}", "!"), ""])
def test_texts_without_common_words(tmp_path, text):
    """Names, of which no two are alike; signs that are no words; nothing at all."""
    rows = [{"text": text.format(i * 7919) or " ", "label": LABELS[i % 2]} for i in range(600)]
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    valid = write_jsonl(tmp_path / "valid.jsonl", rows[:20])
    if not text:
        with pytest.raises(DataError):
            linear.fit(LABELS, train, valid, tmp_path / "linear")
        return
    run = linear.fit(LABELS, train, valid, tmp_path / "linear")
    assert len(list(api.load(run.path).predict(["n7919", "!!"]))) == 2
