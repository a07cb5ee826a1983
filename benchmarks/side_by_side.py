"""The runs of a transfer experiment, one after another and side by side.

    HEADSWAP_DATA=… python benchmarks/side_by_side.py --out docs/results/side-by-side.json

Ten seeds of two arms (scratch and pretrained) on cls-books at the course's shape, with a base
that is pretrained for a moment: what is measured is time, and that both ways give the same
accuracies.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from common import headswap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/side"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--labels", type=int, default=1_600)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    data = Path(os.environ["HEADSWAP_DATA"]) / "cls-books"
    base = options.runs / "base"
    if not (base / "model.safetensors").exists():
        arguments: list[object] = ["train", "causal", data / "train.jsonl.gz", "--recipe", "course"]
        arguments += ["--steps", 50, "--out", base, "--device", options.device]
        arguments += ["--tokenizer", data / "sentencepiece.french.model"]
        headswap(*arguments, "--pieces", data / "dict.txt.gz")
    rows: list[dict[str, Any]] = []
    accuracies: dict[int, Any] = {}
    for workers in options.workers:
        out = options.runs / f"workers-{workers}"
        arguments = ["transfer", data / "train.jsonl.gz", "--valid", data / "valid.jsonl.gz"]
        arguments += ["--test", data / "test.jsonl.gz", "--from", base, "--no-probe"]
        arguments += ["--seeds", options.seeds, "--workers", workers, "--device", options.device]
        arguments += ["--minutes", 600, "--labels", options.labels, "--out", out]
        began = time.perf_counter()
        headswap(*arguments)
        seconds = time.perf_counter() - began
        runs = sorted(path.parent for path in out.rglob("scores.json"))
        accuracies[workers] = [
            json.loads((run / "scores.json").read_text())["test"]["accuracy"]
            for run in runs
            if "test" in json.loads((run / "scores.json").read_text())
        ]
        rows.append({"workers": workers, "seconds": seconds, "runs": len(runs)})
        print(rows[-1], flush=True)
    one, *others = (accuracies[workers] for workers in options.workers)
    same = all(other == one for other in others)
    found = {"device": options.device, "rows": rows, "same_accuracies": same}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print("the same accuracies:", same, one[:5])


if __name__ == "__main__":
    main()
