"""Settings that are possible and hardly meant."""

from __future__ import annotations

from headswap import settings

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
