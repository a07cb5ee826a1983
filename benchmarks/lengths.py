"""Longer than it was trained on: the loss at 1, 2 and 4 times the length, by kind of position.

    python benchmarks/lengths.py TEXT --out docs/results/lengths.json

One causal model for each kind of position, the same in everything else, trained on windows of
64 tokens; then all of them read the same held-out documents in windows of 64, 128 and 256.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import headswap

from headswap import load
from headswap.objectives import Causal
from headswap.text import corpus
from headswap.text.corpus import Reading
from headswap.text.loader import Window
from headswap.training.evaluate import evaluate

KINDS = ("sinusoidal", "learned", "rotary", "none")
LENGTH, TIMES = 64, (1, 2, 4)


def losses(run: Path, texts: list[str]) -> dict[str, Any]:
    """The loss a token at each window length; none where the model has no such position."""
    trained: Any = load(run)
    tokens, found = trained.tokens, {}
    whole = np.concatenate(
        [np.concatenate([[tokens.bos], ids, [tokens.eos]]) for ids in tokens.encode(texts)]
    )
    for times in TIMES:
        size = LENGTH * times
        if trained.settings.model.positions == "learned" and times > 1:
            found[str(times)] = None
            continue
        longest = LENGTH * max(TIMES)
        blocks = whole[: len(whole) // longest * longest].reshape(-1, size)
        rows = [Window(row) for row in np.where(blocks == tokens.bos, tokens.eos, blocks)]
        result = evaluate(trained.model, Causal(), rows, tokens, 64, torch.float32)
        found[str(times)] = result.loss
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, help="documents; the last 20 are held out")
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/lengths"))
    parser.add_argument("--documents", type=int, default=4_000)
    parser.add_argument("--steps", type=int, default=1_500)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    texts = list(islice(corpus.documents([options.text], Reading()), options.documents))
    text, held = options.runs / "train.txt", texts[-20:]
    text.write_text("\n\n".join(t.replace("\n", " ") for t in texts[:-20]))
    rows = {}
    for kind in KINDS:
        run = options.runs / kind
        if not (run / "model.safetensors").exists():
            arguments: list[object] = ["train", "causal", text, "--recipe", "tiny", "--out", run]
            for change in (f"model.positions={kind}", f"model.length={LENGTH}"):
                arguments += ["--set", change]
            headswap(*arguments, "--steps", options.steps, "--documents", "blank")
        rows[kind] = losses(run, held)
        print(kind, rows[kind], flush=True)
    found = {
        "command": f"python benchmarks/lengths.py TEXT --steps {options.steps}",
        "corpus": options.text.parent.name,
        "length": LENGTH,
        "losses": rows,
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
