"""Everything that decides a run, in one value; recipes are named starting points for it.

A recipe is a TOML file with the sections ``model``, ``tokenizer``, ``data`` and ``train``.
A section named after an objective holds that objective's fields, and sections inside it
(``[causal.train]``) go over the general ones when that objective is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from headswap import config
from headswap.errors import UsageError, did_you_mean
from headswap.nn.mixers import MIXERS
from headswap.nn.spec import Stack, stack_from
from headswap.objectives import OBJECTIVES, Objective
from headswap.text.corpus import Cleaning, Reading
from headswap.text.tokenizer import TokenizerPlan
from headswap.training.plan import BUDGETS, Plan
from headswap.types import Table
from headswap.wording import counted

SECTIONS = ("model", "tokenizer", "data", "train")
DROPOUTS = ("dropout", "inner_dropout")
FREE_WITH_BASE = (*DROPOUTS, "length", "decoder_layers", "shared_embedding")
DEFAULT_RECIPE = "tiny"
ALTERNATIVES = {"budgets": BUDGETS, "sizes of a batch": ("batch", "batch_tokens")}
"""Settings of a training of which one takes the place of the others."""


@dataclass(frozen=True)
class DataPlan:
    """Which files are read and how. Without ``valid`` a share is held out of ``train``.

    ``weights`` (one for each training file) mix corpora: a file of weight 2 is read twice as
    much, by the token, as one of weight 1, whatever their sizes. With ``weights_end`` the
    mixture moves there in a straight line over the training. ``near`` is how many shards of a
    sharded corpus are read side by side; 0 takes windows from everywhere.
    """

    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    base: str | None = None
    hold_out: float | None = None
    documents: Literal["auto", "blank", "line"] = "auto"
    text_column: str | None = None
    label_column: str | None = None
    clean: tuple[Cleaning, ...] = ()
    weights: tuple[float, ...] = ()
    weights_end: tuple[float, ...] = ()
    near: int | None = None

    def __post_init__(self) -> None:
        if self.hold_out is not None and not 0 < self.hold_out < 1:
            raise UsageError(
                f"data.hold_out is a share between 0 and 1, not {self.hold_out:g}",
                fix="0.1 holds a tenth out",
            )
        for name in ("weights", "weights_end"):
            given = getattr(self, name)
            if given and len(given) != len(self.train):
                raise UsageError(
                    f"{len(given)} data.{name} for {counted(len(self.train), 'training file')}",
                    fix="give one weight a file, in their order",
                )
            if given and (min(given) < 0 or sum(given) <= 0):
                raise UsageError(f"data.{name} must be positive, not {list(given)}")
        if self.near is not None and self.near < 0:
            raise UsageError(f"data.near cannot be {self.near}", fix="give 0 or more")
        if self.weights_end and not self.weights:
            raise UsageError("data.weights_end needs data.weights")

    @property
    def reading(self) -> Reading:
        return Reading(self.documents, self.text_column, self.label_column, self.clean)


@dataclass(frozen=True)
class Settings:
    recipe: str
    objective: Objective
    model: Stack
    tokenizer: TokenizerPlan
    data: DataPlan
    train: Plan

    def to_table(self) -> Table:
        table: Table = {"recipe": self.recipe, "objective": self.objective.name}
        table[self.objective.name] = config.to_table(self.objective)
        return table | {name: config.to_table(getattr(self, name)) for name in SECTIONS}


def from_table(table: Table) -> Settings:
    """Settings from the sections of a run's config or a resolved recipe."""
    name = table.get("objective")
    if name == "linear":
        raise UsageError("a linear run has no backbone to keep", fix="name a neural one")
    if name not in OBJECTIVES:
        raise UsageError(f"unknown objective {name!r}", fix=did_you_mean(str(name), OBJECTIVES))
    known = {name, *SECTIONS}
    for key in table:
        if key not in known | {"recipe", "objective"}:
            raise UsageError(f"unknown section {key!r}", fix=did_you_mean(key, known))
    objective: Any = config.build(OBJECTIVES[name], table.get(name, {}), name)
    model = stack_from(table.get("model", {}))
    _check_mixer(model, objective)
    return Settings(
        recipe=table.get("recipe", DEFAULT_RECIPE),
        objective=objective,
        model=model,
        tokenizer=config.build(TokenizerPlan, table.get("tokenizer", {}), "tokenizer"),
        data=config.build(DataPlan, table.get("data", {}), "data"),
        train=config.build(Plan, table.get("train", {}), "train"),
    )


def resolve(
    objective: str,
    recipe: str | None = None,
    changes: Sequence[Table] = (),
    base: Settings | None = None,
) -> Settings:
    """The recipe, under a base's model and tokenizer, under the caller's changes."""
    if objective not in OBJECTIVES:
        raise UsageError(
            f"unknown objective {objective!r}", fix=did_you_mean(objective, OBJECTIVES)
        )
    name = recipe_name(recipe or (base.recipe if base else DEFAULT_RECIPE))
    if recipe is None and Path(name).suffix == ".toml" and not Path(name).exists():
        raise UsageError(
            "the recipe that the base was made with is not there any more",
            where=name,
            fix="give one with --recipe",
        )
    table = _recipe_for(name, objective)
    if base is not None and base.model.decoder_layers and objective != "translate":
        raise UsageError(
            f"a translator cannot be the base of a {objective} run",
            fix="take a language model or a classifier",
        )
    if base is not None:
        wanted = table["model"].get("decoder_layers", base.model.layers)
        asked = {key: table["model"][key] for key in DROPOUTS if recipe and key in table["model"]}
        table["model"] = config.to_table(base.model) | asked
        if objective == "translate" and not base.model.decoder_layers:
            table["model"]["decoder_layers"] = wanted
        table["tokenizer"] = config.to_table(base.tokenizer)
        if objective == "classify":
            causal = base.objective.visibility == "causal"
            inherited = {
                "sees": base.objective.visibility,
                "pool": "last" if causal else "mean",
            }
            table[objective] = {**inherited, **table.get(objective, {})}
    for what, names in ALTERNATIVES.items():
        given = {key for change in changes for key in change.get("train", {}) if key in names}
        if len(given) > 1:
            both = " and ".join(f"train.{name}" for name in sorted(given))
            raise UsageError(f"two {what} at once: {both}", fix="give one")
    for change in changes:
        for key in ("recipe", "objective"):
            if key in change:
                raise UsageError(
                    f"{key} is not a setting", fix="it has its own place in the command"
                )
        if base is not None:
            _check_free(change.get("model", {}))
            if other := change.get("tokenizer", {}).keys() - {"model", "pieces"}:
                raise UsageError(
                    f"tokenizer.{min(other)} cannot be set beside a base, which brings its own",
                    fix="leave it out",
                )
        for names in ALTERNATIVES.values():
            if any(key in change.get("train", {}) for key in names):
                table["train"] = {k: v for k, v in table["train"].items() if k not in names}
        table = config.merge(table, change)
    made = from_table({**table, "recipe": name, "objective": objective})
    if getattr(made.objective, "r_drop", 0.0) and not (made.model.dropout or made.model.inside):
        if any(change.get(objective, {}).get("r_drop") for change in changes):
            raise UsageError(
                f"{objective}.r_drop compares two passes with different dropout, and there is none",
                fix="set model.dropout, to 0.1 say",
            )
        table[objective]["r_drop"] = 0.0  # the recipe's: of no use here, and twice the work
        made = from_table({**table, "recipe": name, "objective": objective})
    if base is not None and base.model.positions == "learned":
        most = base.model.length
        if made.model.length > most:
            raise UsageError(
                f"the base has learnt {most} positions, not {made.model.length}",
                fix=f"set model.length to {most} or less",
            )
    return made


def doubts(made: Settings, recipe: str | None, base: Settings | None) -> Iterator[str]:
    """What is possible and hardly meant."""
    if base is None and (made.train.freeze == "backbone" or made.train.freeze_layers):
        yield "layers are frozen, and without a base they are random: give one with --from"
    if base is not None and recipe is not None:
        own = stack_from(_recipe_for(recipe, made.objective.name)["model"])
        if (own.width, own.layers) != (base.model.width, base.model.layers):
            yield (
                f"the model keeps its base's shape ({counted(base.model.layers, 'layer')} of width "
                f"{base.model.width}); of the recipe {recipe} only how to train is taken"
            )


def _check_mixer(model: Stack, objective: Objective) -> None:
    if model.mixer not in MIXERS:
        raise UsageError(
            f"unknown model.mixer {model.mixer!r}", fix=did_you_mean(model.mixer, MIXERS)
        )
    if model.mixer == "bilstm" and objective.visibility == "causal":
        raise UsageError(
            "a bidirectional LSTM sees the future, which a causal model must not",
            fix="use model.mixer=lstm, or another objective",
        )


def recipe_name(given: str) -> str:
    """A recipe as a run remembers it: a file by its whole path, for it may be read from
    elsewhere."""
    return str(Path(given).resolve()) if Path(given).suffix == ".toml" else given


def recipes() -> dict[str, str]:
    """The recipes that come with Headswap, each with its sentence."""
    folder = resources.files("headswap") / "recipes"
    return {
        Path(entry.name).stem: config.read(Path(str(entry))).get("about", "")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def _recipe_for(name: str, objective: str) -> Table:
    table = _read_recipe(name)
    for key in table:
        if key not in ("about", "recipe", "objective", *SECTIONS, *OBJECTIVES):
            raise UsageError(
                f"unknown section {key!r}",
                where=f"recipe {name}",
                fix=did_you_mean(key, [*SECTIONS, *OBJECTIVES]),
            )
    own = dict(table.get(objective, {}))
    for names in ALTERNATIVES.values():
        if any(key in own.get("train", {}) for key in names):  # in place of the general one
            general = table.get("train", {})
            table["train"] = {key: value for key, value in general.items() if key not in names}
    resolved: Table = {
        section: config.merge(table.get(section, {}), own.pop(section, {})) for section in SECTIONS
    }
    return resolved | {objective: own}


def _read_recipe(name: str) -> Table:
    path = Path(name)
    if path.suffix == ".toml":
        return config.read(path)
    known = recipes()
    if name not in known:
        raise UsageError(f"unknown recipe {name!r}", fix=did_you_mean(name, known))
    return config.read(Path(str(resources.files("headswap") / "recipes" / f"{name}.toml")))


def _check_free(model: Table) -> None:
    for key in model:
        if key not in FREE_WITH_BASE:
            raise UsageError(
                f"model.{key} comes from the base",
                fix=f"leave it out; only {' and '.join(FREE_WITH_BASE)} can change",
            )
