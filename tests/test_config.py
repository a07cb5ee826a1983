from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Literal

import pytest

from headswap import config, settings
from headswap.errors import UsageError


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    size: int = 3
    kind: Literal["a", "b"] = "a"
    note: str | None = None
    inner: Inner = field(default_factory=Inner)


def test_round_trip_through_toml():
    made = Outer(5, "b", None, Inner(2.0, ("x", "y")))
    text = config.dumps(config.to_table(made))
    assert config.build(Outer, tomllib.loads(text)) == made


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sise": 3}, "unknown setting 'sise'; did you mean 'size'"),
        ({"inner": {"rat": 1}}, "unknown setting 'inner.rat'; did you mean 'rate'"),
        ({"size": "3"}, "size must be a whole number"),
        ({"size": True}, "size must be a whole number"),
        ({"kind": "c"}, "kind cannot be 'c'"),
        ({"inner": 3}, "inner must be a table"),
        ({"inner": {"rate": float("nan")}}, "inner.rate must be a number, not nan"),
        ({"inner": {"names": "x"}}, "inner.names must be a list, not 'x'; write inner.names="),
    ],
)
def test_what_does_not_fit_is_refused(table, message):
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        config.build(Outer, table)


def test_assignments():
    assert config.parse_assignment("train.lr=3e-4") == {"train": {"lr": 3e-4}}
    assert config.parse_assignment("a.b.c=[1, 2]") == {"a": {"b": {"c": [1, 2]}}}
    assert config.parse_assignment("model.style=classic") == {"model": {"style": "classic"}}
    with pytest.raises(UsageError, match=r"section\.name=value"):
        config.parse_assignment("train.lr")


def test_every_recipe_resolves_for_every_objective():
    for name, about in settings.recipes().items():
        assert about
        for objective in settings.OBJECTIVES:
            resolved = settings.resolve(objective, name)
            again = settings.from_table(resolved.to_table())
            assert again == resolved
            assert resolved.train.budget


def test_an_unknown_recipe_or_key_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'course'"):
        settings.resolve("causal", "curse")
    path = tmp_path / "mine.toml"
    path.write_text("[modle]\nwidth = 3\n")
    with pytest.raises(UsageError, match="did you mean 'model'"):
        settings.resolve("causal", str(path))
    path.write_text("[model]\nwidht = 3\n")
    with pytest.raises(UsageError, match="did you mean 'width'"):
        settings.resolve("causal", str(path))


def test_a_new_budget_replaces_the_recipes():
    changed = settings.resolve("causal", "tiny", [{"train": {"steps": 7}}]).train
    assert changed.steps == 7 and changed.epochs is None
    with pytest.raises(UsageError, match="two budgets"):
        settings.resolve("causal", "tiny", [{"train": {"steps": 7, "minutes": 1.0}}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 10, "heads": 3}, "not a multiple"),
        ({"layers": 0}, "at least 1"),
        ({"dropout": 1.5}, "dropout"),
        ({"style": "modem"}, "did you mean 'modern'"),
    ],
)
def test_impossible_models_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        settings.resolve("causal", "tiny", [{"model": change}])


def test_r_drop_needs_dropout():
    wanted = [{"classify": {"r_drop": 1.0}}]
    with pytest.raises(UsageError, match="there is none"):
        settings.resolve("classify", "tiny", wanted)
    settings.resolve("classify", "tiny", [*wanted, {"model": {"dropout": 0.1}}])
    settings.resolve("classify", "tiny", [*wanted, {"model": {"inner_dropout": 0.1}}])
    calm = settings.resolve("translate", "tiny-translate", [{"model": {"dropout": 0.0}}])
    assert calm.objective.r_drop == 0
    assert settings.resolve("translate", "tiny-translate").objective.r_drop == 1
