"""Classifying on a CPU against the plain Hugging Face pipeline, on the same weights.

    python benchmarks/inference.py RUN --texts FILE --out docs/results/inference.json

RUN is a classifier that exports to Hugging Face, FILE has a text a line. The pipeline, Headswap
itself and ONNX Runtime (fp32 and int8) classify the same texts in turns, one and 32 at a time;
medians of five.
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
from headswap.objectives.base import pad_rows

REPEATS = 5
Contestant = Callable[[Sequence[str]], list[str]]


def pipeline(folder: Path, batch: int) -> Contestant:
    import transformers

    made = transformers.pipeline("text-classification", model=str(folder), device="cpu")

    def run(texts: Sequence[str]) -> list[str]:
        return [row["label"] for row in made(list(texts), batch_size=batch, truncation=True)]

    return run


def native(trained: Any, batch: int) -> Contestant:
    def run(texts: Sequence[str]) -> list[str]:
        some = [texts[i : i + batch] for i in range(0, len(texts), batch)]
        return [one.label for group in some for one in trained.predict(group)]

    return run


def onnx(trained: Any, file: Path, batch: int) -> Contestant:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    objective, stack, tokens = trained.settings.objective, trained.settings.model, trained.tokens

    def run(texts: Sequence[str]) -> list[str]:
        found: list[str] = []
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        places = []
        for start in range(0, len(texts), batch):
            some = order[start : start + batch]
            encoded = tokens.encode([texts[i] for i in some])
            rows = [objective.rows(ids, stack, tokens)[0] for ids in encoded]
            table = pad_rows(rows, tokens.pad)
            real = np.arange(table.shape[1]) < np.array([len(row) for row in rows])[:, None]
            given = dict(zip(names, (table, real.astype(np.int64)), strict=True))
            logits = session.run(None, given)[0]
            found += [objective.labels[int(i)] for i in logits.argmax(1)]
            places += some
        back = dict(zip(places, found, strict=True))
        return [back[i] for i in range(len(texts))]

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
    trained = load(options.run, device="cpu")
    results: dict[str, Any] = {"texts": len(texts)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(options.run, "hf", folder / "hf")
        export(options.run, "onnx", folder / "onnx")
        export(options.run, "onnx", folder / "int8", int8=True)
        files = {kind: next((folder / kind).glob("*.onnx")) for kind in ("onnx", "int8")}
        for batch in (1, 32):
            contestants: dict[str, Contestant] = {
                "hugging face pipeline": pipeline(folder / "hf", batch),
                "headswap": native(trained, batch),
                "onnx": onnx(trained, files["onnx"], batch),
                "onnx int8": onnx(trained, files["int8"], batch),
            }
            times: dict[str, list[float]] = {one: [] for one in contestants}
            said = {}
            for turn in range(REPEATS + 1):
                for one, classify in contestants.items():
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
                print(f"batch {batch:2}  {one:24} {row}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
