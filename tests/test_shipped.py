"""The bases that come with Headswap: whole, small, usable by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import headswap
from conftest import review_rows, write_jsonl
from headswap.errors import StorageError
from headswap.run import Run, shipped


def test_there_are_two():
    assert shipped() == ["english-small", "french-small"]


@pytest.mark.parametrize("name", shipped())
def test_it_is_whole_and_small_and_names_no_machine(name):
    run = Run.open(Path(name))
    run.check_finished()
    parts = [path for path in run.path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in parts) < 12e6
    for path in parts:
        if path.suffix in (".json", ".toml", ".jsonl"):
            assert "/" not in path.read_text("utf-8").replace("benchmarks/", "").replace(
                "tokenizer/", ""
            ).replace("predictions/", ""), path


@pytest.mark.parametrize(
    ("name", "text", "fitting"),
    [
        ("english-small", "the movie was really <mask> and i loved it", {"good", "great"}),
        ("french-small", "elle était très <mask> de le voir .", {"heureuse", "contente"}),
    ],
)
def test_it_fills_masks_with_sense(name, text, fitting):
    (candidates,) = headswap.load(name, device="cpu").fill(text, 10)
    assert fitting & {candidate.token for candidate in candidates}


def test_it_is_a_base_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "reviews.jsonl", review_rows(40))
    model = headswap.train(
        "classify",
        "reviews.jsonl",
        base="english-small",
        out="mine",
        changes=["train.steps=2"],
        device="cpu",
    )
    assert model.run.settings()["data"]["base"] == "english-small"
    assert list(model.predict(["a lovely book"]))


def test_an_unknown_run_hears_of_it():
    with pytest.raises(StorageError, match="english-small"):
        Run.open(Path("englisch-small"))
