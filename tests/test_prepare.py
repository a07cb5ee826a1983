"""What training reads: budgets in tokens, and what is held out."""

from __future__ import annotations

import random

import pytest

from headswap import api, ledger, prepare, settings
from headswap.text.likeness import fingerprint

SMALL = ["model.width=16", "model.layers=1", "model.heads=2", "model.feedforward=32"]
SMALL += ["model.length=32", "tokenizer.vocabulary=300", "train.evaluate_every=1000"]


def written(path, words, count, seed=0):
    draw = random.Random(seed)
    names = [f"word{i}" for i in range(100)]
    lines = (" ".join(draw.choices(names, k=words)) for _ in range(count))
    path.write_text("".join(f"{line}.\n" for line in lines), "utf-8")
    return path


@pytest.mark.parametrize(
    ("objective", "words", "count", "changes"),
    [
        ("causal", 30, 12, ["train.batch=64"]),  # less than one batch
        ("masked", 12, 400, ["train.batch=8", "masked.next_sentence=true"]),  # windows cut short
        ("masked", 12, 400, ["train.batch=8"]),
    ],
)
def test_a_budget_in_tokens_is_read(tmp_path, objective, words, count, changes):
    text = written(tmp_path / "text.txt", words, count)
    changes = [*SMALL, *changes, "train.tokens=20000"]
    made = api.train(objective, text, out=tmp_path / "run", recipe="tiny", changes=changes)
    assert made.run.scores()["training"]["tokens"] == pytest.approx(20_000, rel=0.1)


def test_a_classifiers_budget_in_tokens_is_read(tmp_path):
    lines = written(tmp_path / "text.txt", 20, 40).read_text("utf-8").splitlines()
    table = tmp_path / "labels.csv"
    rows = (f"{line},{number % 2}\n" for number, line in enumerate(lines))
    table.write_text("text,label\n" + "".join(rows), "utf-8")
    changes = [*SMALL[:-1], "train.batch=256", "train.tokens=10000"]
    made = api.train("classify", table, out=tmp_path / "run", recipe="tiny", changes=changes)
    training = made.run.scores()["training"]
    assert training["tokens"] == pytest.approx(10_000, rel=0.1)
    length = training["tokens"] / training["steps"] / 36  # a tenth is held out
    plan = made.settings
    heads = plan.objective.heads(plan.model, made.tokens.size)
    a_token = ledger.flops_a_token(plan.model, heads, length, 1.0, False)
    assert training["flops"] == pytest.approx(training["tokens"] * a_token, rel=0.05)


def test_equal_sources_stay_on_one_side_of_the_cap(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "MOST_PAIRS_HELD_OUT", 10)
    table = tmp_path / "pairs.tsv"
    rows = [f"sentence {i // 3}\tSatz {i}\n" for i in range(900)]
    table.write_text("".join(rows), "utf-8")
    for seed in range(5):
        changes = [{"data": {"train": [str(table)]}, "train": {"seed": seed}}]
        made = settings.resolve("translate", "tiny-translate", changes)
        _, pairs = prepare.split_rows(made, {"train": [table]})
        sides = [{fingerprint(pair.source) for pair in pairs[role]} for role in ("train", "valid")]
        assert not sides[0] & sides[1]
        assert 0 < len(pairs["valid"]) <= 10
