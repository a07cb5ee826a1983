"""The runs of a transfer experiment: side by side, one after another, and as single commands.

    HEADSWAP_DATA=… python benchmarks/side_by_side.py --out docs/results/side-by-side.json

Ten seeds of two arms (scratch and pretrained) on cls-books at the course's shape, with a base
that is pretrained for a moment: what is measured is time, and that both ways give the same
accuracies. Of the single commands a few are timed, and stand for all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from common import headswap

ARMS = ("scratch", "pretrained")


def timed(*arguments: object) -> float:
    began = time.perf_counter()
    headswap(*arguments)
    return time.perf_counter() - began


def accuracies(folder: Path) -> dict[str, float]:
    """What each neural run of an experiment scored on validation, by its name."""
    runs = [run for run in folder.glob("runs/*") if not run.name.startswith("linear")]
    return {
        run.name: json.loads((run / "scores.json").read_text())["valid"]["accuracy"]
        for run in sorted(runs)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/side"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[6, 12, 1])
    parser.add_argument("--commands", type=int, default=2, help="single commands of each arm")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run")
    options = parser.parse_args()
    data = Path(os.environ["HEADSWAP_DATA"]) / "cls-books"
    train, valid, test = (data / f"{name}.jsonl.gz" for name in ("train", "valid", "test"))
    words = ["--tokenizer", data / "sentencepiece.french.model", "--pieces", data / "dict.txt.gz"]
    base, place = options.runs / "base", ["--device", options.device]
    changes = [part for change in options.set for part in ("--set", change)]
    first: dict[str, list[object]] = {
        "scratch": ["--recipe", "course", *words],
        "pretrained": ["--from", base],
    }
    if not (base / "model.safetensors").exists():
        headswap("train", "causal", train, *first["scratch"], "--steps", 50, "--out", base, *place)
    single = []
    for seed in range(options.commands):
        for arm in ARMS:
            out = options.runs / f"{arm}-{seed}"
            common = ["--test", test, "--seed", seed, "--out", out, "--set", "train.keep=best"]
            common += changes
            single.append(
                timed("train", "classify", train, "--valid", valid, *first[arm], *common, *place)
            )
    rows: list[dict[str, Any]] = []
    scored = []
    for workers in options.workers:
        out = options.runs / f"workers-{workers}"
        seconds = timed(
            "transfer", train, "--valid", valid, "--test", test, "--from", base, "--no-probe",
            "--seeds", options.seeds, "--workers", workers, "--minutes", 600, "--labels", 1_600,
            "--out", out, *changes, *place,
        )  # fmt: skip
        scored.append(accuracies(out))
        rows.append({"workers": workers, "seconds": seconds, "runs": len(scored[-1])})
        print(rows[-1], flush=True)
        found = {
            "command": f"python benchmarks/side_by_side.py --seeds {options.seeds} --workers "
            + " ".join([*map(str, options.workers), *(f"--set {one}" for one in options.set)]),
            "device": options.device,
            "seeds": options.seeds,
            "single_command_seconds": single,
            "single_command_median": statistics.median(single) if single else None,
            "rows": rows,
            "valid_accuracy": {
                name: [one.get(name) for one in scored] for name in sorted(set().union(*scored))
            },
        }
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
