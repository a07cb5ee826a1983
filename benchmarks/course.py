"""The course's experiment from the command line: scratch against pretrained on cls-books.

    HEADSWAP_DATA=… python benchmarks/course.py --out docs/results/course.json

Pretrains a causal base of the course's shape on French text, then trains the last-token
classifier from scratch and from the base, 15 epochs, several seeds. Every step is a
``headswap`` command, printed as it runs; the result file is read from the run folders.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import headswap

TEXT = (
    "french-text/novels-eltec-core.txt.xz",
    "french-text/news-2018-2019.txt.xz",
    "french-text/modern-2000s.txt.xz",
    "french-text/commonvoice-sentences.txt.xz",
    "french-text/parliament-2013.txt.xz",
    "french-text/book-blog.txt.xz",
    "french-reviews/reviews.jsonl.xz",
    "french-reviews/book-reviews.jsonl.xz",
    "french-reviews/more-reviews.jsonl.xz",
)
ARMS = ("scratch", "pretrained")


def fine_tune(data: Path, runs: Path, arm: str, seed: int, device: str) -> Path:
    out = runs / f"{arm}-{seed}"
    books = data / "cls-books"
    source = ["--from", runs / "base"]
    if arm == "scratch":
        source = ["--recipe", "course", "--tokenizer", books / "sentencepiece.french.model"]
        source += ["--pieces", books / "dict.txt.gz"]
    if not (out / "manifest.json").exists():
        headswap(
            "train", "classify", books / "train.jsonl.gz", "--valid", books / "valid.jsonl.gz",
            "--test", books / "test.jsonl.gz", *source, "--seed", seed, "--out", out,
            "--device", device, "--set", "train.threads=1", "--set", "train.save_minutes=60",
            "--set", "train.keep=best",
        )  # fmt: skip
    return out


def curve(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = ("epoch", "accuracy", "loss")
    return [{key: line[key] for key in kept} for line in lines if line["split"] == "valid"]


def summary(runs: Path, seeds: int) -> dict[str, object]:
    arms = {}
    for arm in ARMS:
        folders = [runs / f"{arm}-{seed}" for seed in range(seeds)]
        scores = [json.loads((folder / "scores.json").read_text()) for folder in folders]
        tests = [score["test"]["accuracy"] for score in scores]
        arms[arm] = {
            "test_accuracy": tests,
            "test_accuracy_mean": statistics.mean(tests),
            "test_accuracy_sd": statistics.stdev(tests) if seeds > 1 else None,
            "valid_accuracy_of_kept_epoch": [score["valid"]["accuracy"] for score in scores],
            "valid_curves": [curve(folder) for folder in folders],
        }
    base = runs / "base"
    return {
        "arms": arms,
        "base": {
            "scores": json.loads((base / "scores.json").read_text()),
            "provenance": json.loads((base / "provenance.json").read_text())["libraries"],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/course"))
    parser.add_argument("--tokens", type=int, default=200_000_000, help="to pretrain on")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings side by side")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    data = Path(os.environ["HEADSWAP_DATA"])
    base = options.runs / "base"
    books = data / "cls-books"
    if not (base / "manifest.json").exists():
        print(headswap(
            "train", "causal", *(data / name for name in TEXT), "--recipe", "course",
            "--tokenizer", books / "sentencepiece.french.model", "--pieces", books / "dict.txt.gz",
            "--tokens", options.tokens, "--batch", 64, "--lr", 1e-3, "--out", base,
            "--set", "train.schedule=cosine", "--set", "train.warmup=0.02",
            "--device", options.device,
        ).stderr)  # fmt: skip
    work = [(arm, seed) for arm in ARMS for seed in range(options.seeds)]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: fine_tune(data, options.runs, *job, options.device), work))
    result = {
        "command": f"python benchmarks/course.py --tokens {options.tokens} --seeds {options.seeds}",
        **summary(options.runs, options.seeds),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for arm in ARMS:
        figures = result["arms"][arm]
        print(arm, [f"{value:.4f}" for value in figures["test_accuracy"]])


if __name__ == "__main__":
    main()
