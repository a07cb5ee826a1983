"""The command that foretells: plan."""

from __future__ import annotations

import json
from typing import Annotated, Any

from cyclopts import Group, Parameter

from headswap.cli.options import BUDGET, Files, Json, Repeated
from headswap.errors import UsageError

FLEET = Group("Many GPUs, on paper")


def plan(
    recipe: str,
    /,
    *,
    objective: str | None = None,
    classes: int = 2,
    text: Files = [],  # noqa: B006
    steps: Annotated[int | None, Parameter(group=BUDGET)] = None,
    epochs: Annotated[float | None, Parameter(group=BUDGET)] = None,
    tokens: Annotated[int | None, Parameter(group=BUDGET)] = None,
    minutes: Annotated[float | None, Parameter(group=BUDGET)] = None,
    batch: int | None = None,
    set_: Annotated[Repeated, Parameter(name="--set")] = [],  # noqa: B006
    device: str = "auto",
    nodes: Annotated[int | None, Parameter(group=FLEET)] = None,
    gpus_per_node: Annotated[int | None, Parameter(group=FLEET)] = None,
    link: Annotated[float | None, Parameter(group=FLEET)] = None,
    fabric: Annotated[float | None, Parameter(group=FLEET)] = None,
    price: Annotated[float | None, Parameter(group=FLEET)] = None,
    overlap: Annotated[float | None, Parameter(group=FLEET)] = None,
    as_json: Json = False,
) -> None:
    """Can this machine train it? Memory, the largest batch, time, a sensible size.

    A calibration of some ten seconds times single layers here; the model itself is not built. Named
    devices are estimated from their data sheets.

    Examples:

        headswap plan small --text corpus.txt

        headswap plan transformer-base --device "GTX 1050 Ti"

        headswap plan base --device H100 --nodes 16 --gpus-per-node 8 --link 450 --fabric 50
        --batch 1024 --tokens 1_000_000_000 --price 2.5

    Parameters
    ----------
    recipe
        A recipe's name (see `headswap recipes`) or a .toml file.
    objective
        What would be learnt: causal (unless the recipe is a translator's), masked, hybrid,
        classify or translate.
    classes
        With --objective classify: how many.
    text
        The files that would be trained on: how much text there is decides time and size.
    steps
        Optimizer steps.
    epochs
        Passes over the text.
    tokens
        Tokens read in training.
    minutes
        Wall-clock minutes.
    batch
        Examples in one optimizer step.
    set_
        Any other setting, as section.name=value. May be repeated.
    device
        auto, cpu, cuda, cuda:N, or one that is not here: GTX 1050 Ti, T4, A100, H100, H200,
        8xP100.
    nodes
        Plan for many GPUs, on paper: hosts of --gpus-per-node each, from one GPU to all:
        --nodes 128 --gpus-per-node 8.
    gpus_per_node
        The GPUs of a host: --gpus-per-node 8.
    link
        GB/s that a GPU sends to others of its host: --link 450 (an H100's NVLink).
    fabric
        GB/s that a host sends to others: --fabric 50 (one port of 400 Gb/s).
    price
        Dollars for a GPU's hour: --price 2.5.
    overlap
        The share of a forward or backward pass's time that hides sending: --overlap 0.7.
    """
    from headswap import inspection
    from headswap.planning import advice, devices, scale
    from headswap.planning.rings import Fleet
    from headswap.text import files
    from headswap.training import machine

    budget = {"steps": steps, "epochs": epochs, "tokens": tokens, "minutes": minutes}
    given: dict[str, Any] = {name: value for name, value in budget.items() if value is not None}
    if batch is not None:
        given["batch"] = batch
    settings = inspection.recipe_settings(recipe, objective, classes, [{"train": given}, *set_])
    read = files.expand(text)
    here = device == "auto" or device.split(":")[0] in ("cpu", "cuda", "mps")
    place = machine.pick_device(device) if here else None
    named = None if here else devices.named(device)
    fleet: dict[str, Any] = {"link": link, "fabric": fabric, "price": price, "overlap": overlap}
    fleet = {name: value for name, value in fleet.items() if value is not None}
    if nodes is not None or gpus_per_node is not None:
        size = {"nodes": 1 if nodes is None else nodes}
        size["gpus"] = 1 if gpus_per_node is None else gpus_per_node
        wanted = Fleet(**size, **fleet)
        found = scale.make(settings, read, place, named, wanted)
        print(json.dumps(found) if as_json else "\n".join(scale.lines(found)))
        return
    if fleet:
        raise UsageError(
            f"--{next(iter(fleet))} goes with --nodes", fix="give --nodes and --gpus-per-node"
        )
    found = advice.make(settings, read, place, named)
    print(json.dumps(found) if as_json else "\n".join(advice.lines(found)))
