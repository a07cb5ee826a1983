"""The planner against reality: memory and time of a training step, foretold and measured.

    python benchmarks/planner.py --out docs/results/planner.json

Each model is trained for a few steps in a process of its own, with the objective's own batches
of random tokens; its peak memory is counted above what a process takes that has only imported
everything. The calibration times single layers at widths of its own and never these models.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headswap import settings
from headswap.nn.model import new_model
from headswap.objectives import Batch, Context
from headswap.planning import memory, rates
from headswap.settings import Settings
from headswap.text.loader import Labelled, Window
from headswap.training import machine, optim
from headswap.training.feed import Feed
from headswap.training.step import Step


def shape(width: int, heads: int, layers: int, inner: int) -> list[str]:
    sizes = {"width": width, "heads": heads, "layers": layers, "feedforward": inner}
    return [f"model.{name}={size}" for name, size in sizes.items()]


MODELS: dict[str, tuple[str, str, list[str]]] = {
    "1M": ("tiny", "masked", [*shape(80, 4, 5, 240), "tokenizer.vocabulary=5000"]),
    "5M, hybrid": ("mini", "hybrid", [*shape(224, 7, 5, 640), "train.batch=24"]),
    "12M": ("small", "causal", [*shape(320, 8, 6, 960), "train.batch=12"]),
    "21M, the course's shape, batch 8": ("course", "causal", ["train.batch=8"]),
    "40M": (
        "small",
        "causal",
        [*shape(480, 8, 9, 1440), "tokenizer.vocabulary=20000", "train.batch=6"],
    ),
    "4M classifier": ("mini", "classify", ["train.batch=20"]),
    "85M": (
        "base",
        "causal",
        [*shape(704, 11, 11, 1920), "train.batch=5"],
    ),
    "150M": (
        "base",
        "causal",
        [*shape(832, 13, 13, 2240), "tokenizer.vocabulary=24000", "train.batch=3"],
    ),
}


class Tokens:
    """As much of a tokenizer as objectives ask for."""

    pad, bos, eos, unk = 0, 1, 2, 3

    def __init__(self, size: int) -> None:
        self.size = size

    def special(self, name: str) -> int:
        return 4


def chosen(name: str, device: str) -> Settings:
    recipe, objective, changes = MODELS[name]
    table: list[Any] = [settings.config.parse_assignment(change) for change in changes]
    if device == "cuda":
        table.append(
            {"train": {"batch": 8 * settings.resolve(objective, recipe, table).train.batch}}
        )
    if objective == "classify":
        table.append({"classify": {"labels": ["a", "b"]}})
    return settings.resolve(objective, recipe, table)


def real(name: str, device: str, steps: int) -> dict[str, float]:
    """What a training of the model takes, in this process."""
    made = chosen(name, device)
    place = torch.device(device)
    vocabulary, plan, objective = made.tokenizer.vocabulary, made.train, made.objective
    precision, _ = machine.pick_precision(plan, place)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model = new_model(made.model, vocabulary, objective.heads(made.model, vocabulary), seed=0)
    model = model.to(place).train()
    arithmetic = Step(model, objective, optim.make_optimizer(model, plan), plan, precision, print)
    gpu = place.type == "cuda"
    draw = np.random.default_rng(0)
    tokens: Any = Tokens(vocabulary)
    times = []

    def made_batch(step: int) -> list[Batch]:
        size = made.model.length + 1 if objective.name != "classify" else made.model.length - 1
        ids = draw.integers(5, vocabulary, (plan.batch, size))
        examples: list[Any] = [Window(row) for row in ids]
        if objective.name == "classify":
            examples = [Labelled(row, 0) for row in ids]
        context = Context(made.model, tokens, draw, step, 0.5, training=True, few_shapes=gpu)
        return [objective.batch(examples, context)]

    with Feed(made_batch, steps) as feed:
        for step in range(steps):
            if gpu and step in (3, steps - 1):  # as in training, no step waits for the last one
                torch.cuda.synchronize()
            times.append(time.perf_counter())
            arithmetic(feed.parts(step), 1e-4, step)
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
    if place.type == "cuda":
        peak = float(torch.cuda.max_memory_allocated())
    count = sum(tensor.numel() for tensor in model.tensors().values())
    seconds = statistics.median(np.diff(times)[1:])
    if gpu:  # the first steps of a shape are recorded
        seconds = (times[-1] - times[3]) / (steps - 4)
    return {"seconds": float(seconds), "bytes": peak, "parameters": count}


def foretold(name: str, device: str) -> dict[str, float]:
    made = chosen(name, device)
    place = torch.device(device)
    precision, _ = machine.pick_precision(made.train, place)
    vocabulary, batch = made.tokenizer.vocabulary, memory.sequences(made)
    found = rates.measure(made.model, memory.sequence_length(made), place, precision)
    return {
        "seconds": rates.step_seconds(found, made, vocabulary, batch),
        "bytes": memory.needed(made, vocabulary, precision, device, batch).total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="the result file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="of both, in turns: medians")
    parser.add_argument("--only", default=",".join(MODELS).replace(", ", "; "))
    parser.add_argument("--real", help="measure this model in this process and print it")
    parser.add_argument("--foretold", help="foretell this model in this process and print it")
    options = parser.parse_args()
    if options.real or options.foretold:
        made = (
            real(options.real, options.device, options.steps)
            if options.real
            else foretold(options.foretold, options.device)
        )
        print(json.dumps(made))
        return
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    rows = {}
    for name in [name.replace("; ", ", ") for name in options.only.split(",")]:
        tries: dict[str, list[dict[str, float]]] = {"foretold": [], "real": []}
        for kind in ("foretold", "real") * options.repeats:
            if options.device == "cuda":  # its peak is counted in tensors, not in processes
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                work = real(name, "cuda", 24) if kind == "real" else foretold(name, "cuda")
                tries[kind].append(work)
                continue
            command = [sys.executable, __file__, f"--{kind}", name, "--device", options.device]
            done = subprocess.run(
                [*command, "--steps", str(options.steps)], stdout=subprocess.PIPE, text=True
            )
            if done.returncode:
                raise SystemExit(done.returncode)
            tries[kind].append(json.loads(done.stdout))
        found: dict[str, Any] = {
            kind: {key: statistics.median(one[key] for one in some) for key in some[0]}
            for kind, some in tries.items()
        }
        rows[name] = found | {
            key: found["foretold"][key] / found["real"][key] - 1 for key in ("seconds", "bytes")
        }
        said, was = found["foretold"], found["real"]
        print(
            f"{name:20} {was['parameters']:>12,.0f}  time {said['seconds']:.3f} for "
            f"{was['seconds']:.3f} ({rows[name]['seconds']:+.0%})  memory "
            f"{said['bytes'] / 2**20:,.0f} for {was['bytes'] / 2**20:,.0f} MiB "
            f"({rows[name]['bytes']:+.0%})",
            flush=True,
        )
        if options.out:
            options.out.write_text(json.dumps(results | {options.device: rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
