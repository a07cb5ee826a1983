"""The commands that show things: inspect, recipes, demo."""

from __future__ import annotations

import json
from pathlib import Path

from headswap.cli.options import Json, reporter


def inspect(
    what: str,
    /,
    *,
    objective: str | None = None,
    classes: int | None = None,
    as_json: Json = False,
) -> None:
    """Count the parameters of a run or a recipe, part by part.

    Parameters
    ----------
    what
        A run folder, a recipe's name or a recipe's .toml file.
    objective
        With a recipe: the objective whose head is counted (causal by default).
    classes
        With --objective classify: how many classes.
    """
    from rich.console import Console

    from headswap import inspection

    facts = inspection.facts(what, objective, classes)
    if as_json:
        print(json.dumps(facts))
    else:
        Console().print(inspection.table(facts))


def recipes(*, as_json: Json = False) -> None:
    """List the recipes that come with Headswap."""
    from headswap import settings

    known = settings.recipes()
    if as_json:
        print(json.dumps(known))
        return
    for name, about in known.items():
        print(f"{name:10} {about}")


def demo(*, out: Path = Path("runs/demo")) -> None:
    """Run the whole path on real film reviews: a base, then scratch beside pretrained.

    Parameters
    ----------
    out
        Where the runs go. A demo that was stopped goes on from there.
    """
    from headswap import demo as example

    print(example.summary(example.demo(out, reporter())))
