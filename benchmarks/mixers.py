"""Attention, LSTM, bidirectional LSTM and convolution on cls-books, from scratch.

    HEADSWAP_DATA=… python benchmarks/mixers.py --out docs/results/mixers.json

The same stack with another mixer, its feed-forward widened or narrowed until all have the same
number of parameters; each mixer's rate is chosen on validation with the first seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import headswap

WIDTH = 128
FEEDFORWARD = {"attention": 512, "lstm": 341, "bilstm": 427, "convolution": 469}
RATES = (3e-4, 1e-3)
SHAPE = ("model.layers=4", "model.length=256", "model.dropout=0.1", "tokenizer.vocabulary=8000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/mixers"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    data = Path(os.environ["HEADSWAP_DATA"]) / "cls-books"

    def one(job: tuple[str, float, int]) -> dict[str, Any]:
        mixer, rate, seed = job
        out = options.runs / f"{mixer}-rate-{rate:g}-seed-{seed}"
        if not (out / "scores.json").exists():
            arguments: list[object] = ["train", "classify", data / "train.jsonl.gz"]
            arguments += ["--valid", data / "valid.jsonl.gz", "--test", data / "test.jsonl.gz"]
            arguments += ["--lr", rate, "--seed", seed, "--epochs", options.epochs, "--out", out]
            inner = FEEDFORWARD[mixer]
            for setting in (*SHAPE, f"model.mixer={mixer}", f"model.feedforward={inner}"):
                arguments += ["--set", setting]
            headswap(*arguments, "--recipe", "tiny", "--set", "classify.sees=full")
        scores = json.loads((out / "scores.json").read_text())
        return {"mixer": mixer, "rate": rate, "seed": seed, **scores}

    with ThreadPoolExecutor(options.jobs) as pool:
        trials = list(pool.map(one, [(m, r, 0) for m in FEEDFORWARD for r in RATES]))
        best = {
            mixer: max(
                (row for row in trials if row["mixer"] == mixer),
                key=lambda row: row["valid"]["accuracy"],
            )["rate"]
            for mixer in FEEDFORWARD
        }
        seeds = range(options.seeds)
        final = list(pool.map(one, [(m, best[m], s) for m in FEEDFORWARD for s in seeds]))
    rows = {}
    for mixer in FEEDFORWARD:
        mine = [row for row in final if row["mixer"] == mixer]
        accuracies = [row["test"]["accuracy"] for row in mine]
        rows[mixer] = {
            "parameters": mine[0]["training"]["parameters"],
            "rate": best[mixer],
            "valid": statistics.fmean(row["valid"]["accuracy"] for row in mine),
            "test": statistics.fmean(accuracies),
            "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "by_seed": accuracies,
        }
        print(mixer, rows[mixer], flush=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
