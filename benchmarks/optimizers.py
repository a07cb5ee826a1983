"""AdamW against Muon, to equal validation loss.

    python benchmarks/optimizers.py --text FILE --out docs/results/optimizers.json

Each optimizer pretrains the same causal model on the same batches at several rates. The best rate
of each counts: how many steps, and how much time, does it take to the loss that the worse of the
two ends at? Time is per step of the whole loop, evaluation apart, from a run of its own beside
the other's, in turns.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import headswap

OPTIMIZERS = ("adamw", "muon")


def train(optimizer: str, rate: float, out: Path, options: Any, steps: int, every: int) -> str:
    """What it said; a run that is there already says nothing."""
    if (out / "manifest.json").exists():
        return ""
    return headswap(
        "train", "causal", options.text, "--recipe", options.recipe, "--steps", steps,
        "--lr", rate, "--set", f"train.optimizer={optimizer}", "--batch", options.batch,
        "--set", f"train.evaluate_every={every}", "--device", options.device, "--out", out,
    ).stderr  # fmt: skip


def losses(run: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if line["split"] == "valid"]


def steps_to(curve: list[tuple[int, float]], goal: float) -> float:
    """When the curve first comes down to the goal, read between its points."""
    for (step, loss), (later, lower) in pairwise(curve):
        if lower <= goal:
            return step + (later - step) * (loss - goal) / max(loss - lower, 1e-9)
    return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/optimizers"))
    parser.add_argument("--recipe", default="mini")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rates", default="0.001,0.002,0.004", help="that each one tries")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    every = max(1, options.steps // 10)
    curves: dict[str, dict[float, list[tuple[int, float]]]] = {}
    rates = [float(rate) for rate in options.rates.split(",")]
    for optimizer in OPTIMIZERS:
        for rate in rates:
            out = options.runs / f"{optimizer}-{rate:g}"
            train(optimizer, rate, out, options, options.steps, every)
            curves.setdefault(optimizer, {})[rate] = losses(out)
            print(optimizer, rate, curves[optimizer][rate][-1], flush=True)
    best = {name: min(found, key=lambda r: found[r][-1][1]) for name, found in curves.items()}
    goal = max(curves[name][rate][-1][1] for name, rate in best.items())
    speeds: dict[str, list[float]] = {name: [] for name in best}
    for turn in range(3):
        for name, rate in best.items():
            out = options.runs / f"time-{name}-{turn}"
            told = train(name, rate, out, options, 60, 1_000)
            found = re.findall(r"([\d.]+)([kM]?) tokens/s", told)
            if found:
                number, unit = found[-1]
                speeds[name].append(float(number) * {"": 1, "k": 1e3, "M": 1e6}[unit])
    rows = {}
    for name, rate in best.items():
        curve = curves[name][rate]
        steps, speed = steps_to(curve, goal), statistics.median(speeds[name])
        rows[name] = {
            "rate": rate,
            "loss": curve[-1][1],
            "steps_to_goal": steps,
            "tokens_a_second": speed,
            "losses_by_rate": {str(r): found[-1][1] for r, found in curves[name].items()},
        }
    table = {
        "command": f"python benchmarks/optimizers.py --text {options.text.name} --recipe "
        f"{options.recipe} --steps {options.steps} --batch {options.batch} --rates {options.rates}",
        "device": options.device,
        "goal": goal,
        "optimizers": rows,
        "muon_needs_steps": rows["muon"]["steps_to_goal"] / rows["adamw"]["steps_to_goal"],
        "muon_needs_time": rows["muon"]["steps_to_goal"]
        / rows["adamw"]["steps_to_goal"]
        * rows["adamw"]["tokens_a_second"]
        / rows["muon"]["tokens_a_second"],
    }
    print(json.dumps(table, indent=1))
    if options.out:
        options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
