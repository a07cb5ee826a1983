"""Memory and speed stay flat: predictions for a million lines, pretraining on two gigabytes.

    python benchmarks/memory.py --out docs/results/memory.json

Both commands run as a user would run them, on text that this script makes up, while the
anonymous resident memory of the process (what it holds beyond mapped files) is sampled. What
pretraining says of its speed is kept too, and when its first step was done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 2**20


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("etaoinshrdlucm", k=draw.randint(1, 9))) for _ in range(count)]


def write_text(path: Path, size: int) -> None:
    """Lines of made-up words, the common ones more often, in blocks that are shuffled anew."""
    vocabulary = words(20_000, 0)
    draw = random.Random(1)
    weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
    blocks = []
    for _ in range(12):
        chosen = draw.choices(vocabulary, weights, k=1_500_000)
        lines = [" ".join(chosen[i : i + 60]) for i in range(0, len(chosen), 60)]
        blocks.append(lines)
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        while written < size:
            lines = blocks[draw.randrange(len(blocks))]
            draw.shuffle(lines)
            written += stream.write("\n".join(lines) + "\n")


def watched(arguments: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Run a headswap command; its peak anonymous memory, and how it stood over time; of a
    training its speed."""
    started = time.monotonic()
    command = [sys.executable, "-m", "headswap", *arguments]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        samples = []
        begun = None
        steps = Path(arguments[arguments.index("--out") + 1]) / "metrics.jsonl"
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            for line in status.splitlines():
                if line.startswith("RssAnon:"):
                    samples.append(int(line.split()[1]) / 1024)
            if begun is None and steps.exists() and '"train"' in steps.read_text():
                begun = time.monotonic() - started
            time.sleep(0.1)
        if process.wait():
            errors.seek(0)
            raise SystemExit(errors.read().decode())
        errors.seek(0)
        speeds = re.findall(r"([\d.]+)k tokens/s", errors.read().decode())
    half = len(samples) // 2
    return {
        "peak_mib": round(max(samples)),
        "peak_of_first_half_mib": round(max(samples[:half])),
        "peak_of_second_half_mib": round(max(samples[half:])),
        "seconds": round(time.monotonic() - started),
        **({} if begun is None else {"seconds_to_first_step": round(begun, 1)}),
        **({"tokens_a_second": round(1_000 * float(speeds[-1]))} if speeds else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--megabytes", type=int, default=2_000)
    options = parser.parse_args()
    results: dict[str, object] = {
        "command": f"python benchmarks/memory.py --lines {options.lines} "
        f"--megabytes {options.megabytes}"
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "HEADSWAP_CACHE": f"{name}/cache"}
        small = [
            "--set=model.width=16", "--set=model.layers=1", "--set=model.heads=2",
            "--set=model.feedforward=32", "--set=model.length=32",
        ]  # fmt: skip
        rows = [{"text": " ".join(words(8, i)), "label": "ab"[i % 2]} for i in range(200)]
        table = folder / "table.jsonl"
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        watched(["train", "classify", str(table), "--out", f"{name}/clf", "--epochs", "1",
                 "--set=tokenizer.vocabulary=400", *small], environment)  # fmt: skip
        for count in (options.lines // 10, options.lines):
            lines = folder / "lines.txt"
            with lines.open("w") as stream:
                for i in range(count):
                    stream.write(f"line number {i} of many\n")
            arguments = ["predict", f"{name}/clf", str(lines), "--out", f"{name}/out.jsonl"]
            results[f"predict {count:,} lines"] = watched(arguments, environment)
        for megabytes in (1, 10, 100, options.megabytes):
            text = folder / "text.txt"
            write_text(text, megabytes * 10**6)
            arguments = ["train", "causal", str(text), "--out", f"{name}/base-{megabytes}"]
            arguments += ["--recipe", "tiny", "--steps", "150", "--documents", "line"]
            arguments += ["--set=train.log_every=1", "--set=train.evaluate_every=150"]
            results[f"pretrain on {megabytes:,} MB"] = watched(arguments, environment)
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
