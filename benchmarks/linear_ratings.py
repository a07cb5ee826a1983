"""The linear model, given the ratings that the record's bases learn from.

    HEADSWAP_DATA=… python benchmarks/linear_ratings.py --out docs/results/linear-ratings.json

A Transformer that has learnt from 60,000 ratings is not to be held against a linear model that
has not. This one is Headswap's own, fitted on the ratings and the 1,600 labels of cls-books
together, the latter as often as it says; its strength is chosen on validation. Without
Amazon's ratings too, as in records.py. About half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import records

from headswap import linear, use
from headswap.report import stats
from headswap.text import corpus
from headswap.text.likeness import fingerprint

REPEATS = 5
STRENGTHS = (1.0, 3.0, 10.0, 30.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/linear-ratings"))
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ["HEADSWAP_DATA"])
    own = {role: list(corpus.labelled(data / "cls-books" / f"{role}.jsonl.gz"))
           for role in ("train", "valid", "test")}  # fmt: skip
    texts = [row.text for row in own["test"]]
    truth_N = np.array([int(row.label) for row in own["test"]])
    known = {fingerprint(row.text) for role in ("train", "valid") for row in own[role]}
    kept_N = np.array([fingerprint(text) not in known for text in texts])
    tested = {fingerprint(text) for text in texts}
    rated = [
        {"text": row["text"], "label": row["label"], "source": row["source"]}
        for row in records.rows(data)
        if row["label"] and fingerprint(row["text"]) not in tested
    ]
    found = {}
    for name, amazon in (("ratings", True), ("ratings-of-others", False)):
        chosen = [row for row in rated if amazon or records.AMAZON not in row["source"]]
        mine = [{"text": row.text, "label": row.label} for row in own["train"]]
        table = options.runs / f"{name}.jsonl"
        records.write(table, [*chosen, *mine * REPEATS])
        valid = options.runs / "valid.jsonl"
        records.write(valid, [{"text": row.text, "label": row.label} for row in own["valid"]])
        plan = linear.Linear(strengths=STRENGTHS)
        run = linear.fit(["0", "1"], table, valid, options.runs / name, plan=plan)
        right_N = use.load(run).logits(texts).argmax(1) == truth_N
        bounds = stats.mean_over_texts(right_N[None, :].astype(float))
        found[name] = {
            "ratings": len(chosen),
            "strength": run.scores()["training"]["strength"],
            "valid_accuracy": run.scores()["valid"]["accuracy"],
            "accuracy": float(right_N.mean()),
            "over_texts": [bounds.low, bounds.high],
            "accuracy_without_leaks": float(right_N[kept_N].mean()),
        }
        print(name, found[name], flush=True)
    table = {"command": "python benchmarks/linear_ratings.py", "repeats": REPEATS, "models": found}
    options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
