"""What pretraining buys a translator: its encoder from a masked base, against random weights.

    HEADSWAP_DATA=… python benchmarks/warm_start.py --runs runs/warm --jobs 4

The base reads both sides of Multi30k's training text, unpaired. Both arms share its shape and
its tokenizer and try the same learning rates; each seed draws its own pairs. Afterwards
`headswap compare RUNS --html FILE` makes the report.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from common import headswap

PAIR = ("en", "de")
STEPS = {3_000: 1_000, 29_000: 1_500}
RATES = (2e-3, 5e-3)
SHARED = ("train.average_last=4", "train.evaluate_every=125")


def subset(data: Path, out: Path, size: int, seed: int) -> list[Path]:
    """``size`` pairs drawn by ``seed``, as two aligned files."""
    packed = [(data / f"train.{side}.gz").read_bytes() for side in PAIR]
    sides = [gzip.decompress(some).decode().splitlines(keepends=True) for some in packed]
    chosen = sorted(random.Random(seed).sample(range(len(sides[0])), size))
    paths = [out / f"pairs-{size}-seed-{seed}.{side}" for side in PAIR]
    for path, lines in zip(paths, sides, strict=True):
        path.write_text("".join(lines[index] for index in chosen))
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/warm"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--base-steps", type=int, default=3_000)
    options = parser.parse_args()
    data = Path(os.environ["HEADSWAP_DATA"]) / "multi30k"
    options.runs.mkdir(parents=True, exist_ok=True)
    base = options.runs / "base"
    if not (base / "model.safetensors").exists():
        text = [data / f"train.{side}.gz" for side in PAIR]
        valid = [data / f"val.{side}.gz" for side in PAIR]
        arguments: list[object] = ["train", "masked", *text, "--valid", *valid, "--out", base]
        arguments += ["--recipe", Path(__file__).with_name("warm_start.toml")]
        headswap(*arguments, "--steps", options.base_steps, "--documents", "line")

    def one(job: tuple[int, str, float, int]) -> None:
        size, arm, rate, seed = job
        out = options.runs / f"{arm}-{size}-rate-{rate:g}-seed-{seed}"
        if (out / "model.safetensors").exists():
            return
        arguments: list[object] = ["train", "translate", *subset(data, options.runs, size, seed)]
        for role, split in (("--valid", "val"), ("--test", "test_2016_flickr")):
            arguments += [role, *(data / f"{split}.{side}.gz" for side in PAIR)]
        if arm == "pretrained":
            arguments += ["--from", base]
        else:
            arguments += ["--tokenizer", base / "tokenizer"]
        arguments += ["--recipe", "tiny-translate", "--lr", rate, "--steps", STEPS[size]]
        for setting in SHARED:
            arguments += ["--set", setting]
        headswap(*arguments, "--seed", seed, "--out", out)

    jobs = product(sorted(STEPS, reverse=True), ("scratch", "pretrained"), RATES)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, [(*job, seed) for job in jobs for seed in range(options.seeds)]))


if __name__ == "__main__":
    main()
