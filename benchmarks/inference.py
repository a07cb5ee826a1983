"""Classifying on a CPU against the plain Hugging Face pipeline, on the same weights.

    python benchmarks/inference.py RUN --texts FILE --out docs/results/inference.json

RUN is a classifier that exports to Hugging Face, FILE has a text a line. The pipeline, Headswap
itself and its ONNX exports (fp32 and int8) are handed the same texts in turns, one and 32 at a
time; medians of nine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headswap import load
from headswap.export.folder import export
from headswap.exported import SMALL_FILE

REPEATS = 9
PAUSE = 0.3  # the threads of whoever was before wait awake for a while
Contestant = Callable[[Sequence[str]], list[str]]


def pipeline(folder: Path, batch: int) -> Contestant:
    import transformers

    made = transformers.pipeline("text-classification", model=str(folder), device="cpu")

    def run(texts: Sequence[str]) -> list[str]:
        return [row["label"] for row in made(list(texts), batch_size=batch, truncation=True)]

    return run


def ours(path: Path, batch: int) -> Contestant:
    loaded = load(path, device="cpu")

    def run(texts: Sequence[str]) -> list[str]:
        some = [texts[i : i + batch] for i in range(0, len(texts), batch)]
        return [one.label for group in some for one in loaded.predict(group)]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    lines = [line for line in options.texts.read_text("utf-8").splitlines() if line.strip()]
    texts = lines[: options.count]
    results: dict[str, Any] = {"texts": len(texts)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(options.run, "hf", folder / "hf")
        export(options.run, "onnx", folder / "onnx", int8=True)
        for batch in (1, 32):
            contestants: dict[str, Contestant] = {
                "hugging face pipeline": pipeline(folder / "hf", batch),
                "headswap": ours(options.run, batch),
                "headswap, exported to onnx": ours(folder / "onnx", batch),
                "headswap, exported as int8": ours(folder / "onnx" / SMALL_FILE, batch),
            }
            times: dict[str, list[float]] = {one: [] for one in contestants}
            said = {}
            for turn in range(REPEATS + 1):
                for one, classify in contestants.items():
                    time.sleep(PAUSE)
                    began = time.perf_counter()
                    said[one] = classify(texts)
                    if turn:
                        times[one].append(time.perf_counter() - began)
            right = said["hugging face pipeline"]
            plain = statistics.median(times["hugging face pipeline"])
            results[f"batch {batch}"] = {
                one: {
                    "texts_a_second": len(texts) / statistics.median(some),
                    "ratio": plain / statistics.median(some),
                    "same_labels": float(
                        np.mean([a == b for a, b in zip(right, said[one], strict=True)])
                    ),
                }
                for one, some in times.items()
            }
            for one, row in results[f"batch {batch}"].items():
                print(f"batch {batch:2}  {one:28} {row}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
