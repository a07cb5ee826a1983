from __future__ import annotations

import subprocess
import sys

import pytest

import headswap


def test_import_is_light():
    code = "import sys, headswap; assert 'torch' not in sys.modules; print(headswap.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    names = ["__version__", "load", "resume", "train", "transfer"]
    assert done.stdout.strip() == str(names), done.stderr


def test_the_public_names():
    assert callable(headswap.train) and callable(headswap.load) and callable(headswap.resume)
    with pytest.raises(AttributeError):
        _ = headswap.nothing


def test_a_few_lines_do_the_same(corpus_file, reviews_file, tmp_path):
    small = ["model.width=16", "model.heads=2", "model.layers=1", "model.length=24"]
    small += ["tokenizer.vocabulary=330"]
    headswap.train("causal", corpus_file, out=tmp_path / "base", changes=[*small, "train.steps=4"])
    model = headswap.train(
        "classify",
        reviews_file,
        base=tmp_path / "base",
        out=tmp_path / "clf",
        changes=["train.epochs=8", "train.lr=0.01"],
    )
    labels = [p.label for p in model.predict(["superb lovely charming", "awful boring tedious"])]
    assert labels == ["good", "bad"]
    again = headswap.load(tmp_path / "clf")
    assert [p.label for p in again.predict(["superb lovely charming"])] == ["good"]
    assert list(again.predict([])) == []
    assert again.evaluate([reviews_file])["accuracy"] > 0.9
    assert headswap.resume(tmp_path / "clf").run.finished
