"""How soon a training begins, and how fast text is encoded.

    HEADSWAP_DATA=… python benchmarks/start.py --out docs/results/start.json

The first: from the command's start to the end of its first training step, of the recipe ``tiny``
on the first megabytes of IMDb's reviews: imports, tokenizer, encoding and a validation included;
without a cache. The second: the product's encoding in turns with sentencepiece's own, on as many
threads. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece

from headswap import use
from headswap.run import Run
from headswap.text import corpus
from headswap.text.corpus import Reading

READING = Reading("line", clean=("html", "whitespace"))


def first_step(text: Path, folder: Path, number: int) -> float:
    """Seconds until the metrics tell of the first step."""
    out = folder / f"run-{number}"
    command = [sys.executable, "-m", "headswap", "train", "causal", str(text), "--out", str(out)]
    command += ["--recipe", "tiny", "--steps", "2", "--set", "train.log_every=1"]
    environment = {**os.environ, "HEADSWAP_CACHE": str(folder / f"cache-{number}")}
    began = time.perf_counter()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [*command, "--device", "cpu"], env=environment, stdout=quiet, stderr=quiet
    ) as running:
        metrics = out / "metrics.jsonl"
        while not (metrics.exists() and '"train"' in metrics.read_text()):
            if running.poll():
                raise SystemExit(f"failed: {' '.join(command)}")
            time.sleep(0.005)
        return time.perf_counter() - began


def encoding(run: Path, texts: list[str], repeats: int) -> dict[str, Any]:
    tokens = use.load(Run.open(run), "cpu").tokens
    path = run / "tokenizer" / "sentencepiece.model"
    plain = sentencepiece.SentencePieceProcessor(model_file=str(path))
    threads = os.cpu_count() or 1
    times: dict[str, list[float]] = {"headswap": [], "sentencepiece": []}
    for number in range(repeats + 1):
        began = time.perf_counter()
        tokens.encode(texts)
        between = time.perf_counter()
        plain.encode(texts, num_threads=threads)
        if number:
            times["headswap"].append(between - began)
            times["sentencepiece"].append(time.perf_counter() - between)
    size = sum(len(text.encode()) for text in texts) / 1e6
    rates = {name: size / statistics.median(some) for name, some in times.items()}
    return {"megabytes": size, "threads": threads, "megabytes_a_second": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=2_000, help="reviews to train on")
    options = parser.parse_args()
    reviews = Path(os.environ["HEADSWAP_DATA"]) / "aclImdb" / "unsup.txt.xz"
    texts = list(islice(corpus.texts(reviews, READING), options.texts))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        text = folder / "reviews.txt"
        text.write_text("".join(line + "\n" for line in texts), "utf-8")
        seconds = [first_step(text, folder, number) for number in range(options.repeats)]
        found = {
            "command": "python benchmarks/start.py",
            "cores": os.cpu_count(),
            "text_megabytes": text.stat().st_size / 1e6,
            "seconds_to_the_first_step": statistics.median(seconds),
            "lowest": min(seconds),
            "highest": max(seconds),
            "encoding": encoding(folder / "run-0", texts, options.repeats),
        }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
