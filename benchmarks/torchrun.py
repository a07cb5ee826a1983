"""What starting one process under torchrun costs: nothing but the start.

    python benchmarks/torchrun.py --device cpu --out docs/results/torchrun.json

The same training, plain and under torchrun with one process, in turns: tokens a second as the
training itself counts them, medians, and whether both end at the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import memory

UNITS = {"": 1.0, "k": 1e3, "M": 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="the result file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--recipe", default="mini")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    python = [sys.executable, "-m"]
    ways = {
        "plain": [*python, "headswap"],
        "torchrun": [*python, "torch.distributed.run", "--standalone", "-m", "headswap"],
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    weights = set()
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        memory.write_text(text, 5_000_000)
        for turn in range(options.repeats):
            for way, words in ways.items():
                out = Path(name) / f"{way}-{turn}"
                arguments = ["train", "causal", str(text), "--recipe", options.recipe]
                arguments += ["--steps", str(options.steps), "--device", options.device]
                arguments += ["--documents", "line", "--out", str(out)]
                done = subprocess.run([*words, *arguments], capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(done.stderr)
                number, unit = re.findall(r"([\d.]+)([kM]?) tokens/s", done.stderr)[-1]
                speeds[way].append(float(number) * UNITS[unit])
                weights.add(hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest())
                print(way, speeds[way][-1], flush=True)
    medians = {way: statistics.median(some) for way, some in speeds.items()}
    found = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    found[options.device] = {
        "recipe": options.recipe,
        "steps": options.steps,
        "tokens_a_second": speeds,
        "cost": medians["plain"] / medians["torchrun"] - 1,
        "identical": len(weights) == 1,
    }
    print(json.dumps(found[options.device], indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
