"""Recipes of one's own, and settings that are possible and hardly meant."""

from __future__ import annotations

import pytest

from headswap import cli, settings
from headswap.errors import UsageError

BASE = settings.resolve("causal", "tiny")


def doubts(recipe, base, **train):
    changes = [{"train": train}] if train else []
    made = settings.resolve("classify", recipe, changes, base=base)
    return list(settings.doubts(made, recipe, base))


def test_what_is_frozen_came_from_somewhere():
    (told,) = doubts("tiny", None, freeze="backbone")
    assert "random" in told and "--from" in told
    assert doubts("tiny", None, freeze_layers=2) and not doubts(None, BASE, freeze="backbone")


def test_a_recipe_of_another_shape_gives_only_its_training():
    (told,) = doubts("small", BASE)
    assert "4 layers of width 128" in told and "recipe small" in told
    assert not doubts("tiny", BASE) and not doubts(None, BASE)


def recipe(folder, text):
    path = folder / "own.toml"
    path.write_text(text)
    return path


def test_a_recipe_of_one_s_own_is_known_by_its_whole_path(tmp_path, monkeypatch):
    path = recipe(tmp_path, "[train]\nepochs = 3\n")
    monkeypatch.chdir(tmp_path)
    base = settings.resolve("causal", "own.toml")
    assert base.recipe == str(path)
    monkeypatch.chdir(tmp_path.parent)
    assert settings.resolve("classify", None, base=base).train.epochs == 3
    path.unlink()
    with pytest.raises(UsageError, match="not there any more") as refused:
        settings.resolve("classify", None, base=base)
    assert "--recipe" in str(refused.value.fix)


def test_a_budget_for_one_objective_stands_in_place_of_the_general_one(tmp_path):
    path = recipe(tmp_path, "[train]\nepochs = 1\n[classify.train]\nsteps = 5\n")
    assert settings.resolve("classify", str(path)).train.budget
    assert settings.resolve("classify", str(path)).train.epochs is None
    assert settings.resolve("causal", str(path)).train.epochs == 1


def test_what_a_recipe_says_of_reading_and_devices_counts(tmp_path, corpus_file, capsys):
    path = recipe(tmp_path, '[data]\ndocuments = "line"\n[train]\ndevice = "cpu"\nepochs = 1\n')
    command = ["train", "causal", str(corpus_file), "--recipe", str(path), "--out", "x"]
    for more, documents in (([], "line"), (["--documents", "blank"], "blank")):
        with pytest.raises(SystemExit) as done:
            cli.main([*command, *more, "--print-config"])
            raise SystemExit(0)
        assert not done.value.code
        told = capsys.readouterr().out
        assert f'documents = "{documents}"' in told and 'device = "cpu"' in told


def test_a_base_brings_its_tokenizer():
    base = settings.resolve("causal", "tiny")
    with pytest.raises(UsageError, match=r"tokenizer\.vocabulary cannot be set beside a base"):
        settings.resolve("classify", None, [{"tokenizer": {"vocabulary": 900}}], base=base)
