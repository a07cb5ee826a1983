"""Draw the README's picture from a result file.

    python benchmarks/picture.py

It is docs/results/first.svg: the arms of the record on cls-books with their intervals, and the
linear model that was given the same ratings.
"""

from __future__ import annotations

import json
from pathlib import Path

from headswap.report import charts

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ARMS = {
    "linear": "linear model",
    "scratch": "Transformer from scratch",
    "text": "pretrained on text",
    "linear-ratings": "linear model, given ratings too",
    "text-and-ratings": "pretrained on text, then on ratings",
    "text-and-ratings-of-others": "the same without Amazon's ratings",
}


def main() -> None:
    chosen = json.loads((RESULTS / "records.json").read_text())["books: all"]
    labels = max(row["labels"] for row in chosen["arms"])
    rows = {row["name"]: row for row in chosen["arms"] if row["labels"] == labels}
    rated = json.loads((RESULTS / "linear-ratings.json").read_text())["models"]["ratings"]
    rows["linear-ratings"] = rated | {"over_seeds": None}
    points = []
    for name, shown in ARMS.items():
        row = rows[name]
        low_seeds, high_seeds = row["over_seeds"] or (None, None)
        low, high = row["over_texts"]
        points.append(
            {
                "series": shown, "y": row["accuracy"], "low": low, "high": high,
                "low_seeds": low_seeds, "high_seeds": high_seeds, "hint": shown,
            }
        )  # fmt: skip
    names = {shown: number for number, shown in enumerate(ARMS.values())}
    title = f"test accuracy with {labels:,} labels"
    drawn = charts.intervals(points, names, title)
    drawn = drawn.replace(charts.FAINT, "#dddddd").replace(charts.INK, "#222222")
    drawn = drawn.replace("<svg ", '<svg style="background:#fff" ', 1)
    (RESULTS / "first.svg").write_text(drawn + "\n", "utf-8")


if __name__ == "__main__":
    main()
