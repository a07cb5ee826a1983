"""Multi30k: several seeds of one recipe, each scored on both test sets.

    HEADSWAP_DATA=… python benchmarks/multi30k.py --pair en-de --out docs/results/multi30k.json

Every choice of the recipe was made on validation. The seeds train side by side (--jobs); the
result file keeps each seed's scores, their mean and a 95% interval over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import headswap
from scipy.stats import t as student

TESTS = ("test_2016_flickr", "test_2017_flickr")
FIGURES = ("bleu_tokenized_lowercase", "bleu", "chrf", "ter")


def trained(run: Path, data: Path, pair: tuple[str, str], seed: int, settings: list[str]) -> None:
    def files(split: str) -> list[Path]:
        return [data / f"{split}.{side}.gz" for side in pair]

    arguments: list[object] = ["train", "translate", *files("train"), "--valid", *files("val")]
    arguments += ["--recipe", "tiny-translate", "--seed", seed, "--out", run]
    for setting in (*settings, f"translate.language={pair[1]}"):
        arguments += ["--set", setting]
    if not (run / "model.safetensors").exists():
        headswap(*arguments)


def scored(run: Path, data: Path, pair: tuple[str, str]) -> dict[str, Any]:
    found = {}
    for split in ("val", *TESTS):
        files = [data / f"{split}.{side}.gz" for side in pair]
        found[split] = json.loads(headswap("evaluate", run, *files, "--json").stdout)
    return found


def spread(values: list[float]) -> dict[str, Any]:
    """The mean and where it may lie, by Student's t over seeds."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "each": values}
    half = float(student.ppf(0.975, len(values) - 1))
    half *= statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half, "each": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pair", default="en-de", help="source-target")
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/multi30k"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--name", default="", help="what the result is called")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    data = Path(os.environ["HEADSWAP_DATA"]) / "multi30k"
    source, target = options.pair.split("-")
    name = options.name or options.pair

    def one(seed: int) -> dict[str, Any]:
        run = options.runs / f"{name}-{seed}"
        trained(run, data, (source, target), seed, options.settings)
        return scored(run, data, (source, target))

    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(one, range(options.seeds)))
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    extra = "".join(f" --set {setting}" for setting in options.settings)
    results[name] = {
        "command": f"python benchmarks/multi30k.py --pair {options.pair}{extra}",
        "signature": found[0]["val"]["signature"],
        **{
            split: {key: spread([seed[split][key] for seed in found]) for key in FIGURES}
            for split in ("val", *TESTS)
        },
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    for split in ("val", *TESTS):
        print(name, split, results[name][split]["bleu_tokenized_lowercase"], flush=True)


if __name__ == "__main__":
    main()
