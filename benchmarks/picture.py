"""Draw the README's pictures from result files.

    python benchmarks/picture.py

docs/results/first.svg: the arms of the record on cls-books with their intervals, and the linear
model that was given the same ratings. docs/results/imdb.svg: the label curves of IMDb.
"""

from __future__ import annotations

import json
from pathlib import Path

from headswap.report import charts, page

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ARMS = {
    "linear": "linear model",
    "scratch": "Transformer from scratch",
    "text": "pretrained on text",
    "linear-ratings": "linear model, given ratings too",
    "text-and-ratings": "pretrained on text, then on ratings",
    "text-and-ratings-of-others": "the same without Amazon's ratings",
}


CURVES = {
    "linear": "linear model",
    "scratch": "Transformer from scratch",
    "pretrained": "pretrained on reviews without labels",
}


def main() -> None:
    draw("first", arms())
    draw("imdb", label_curve())


def draw(name: str, drawn: str) -> None:
    drawn = drawn.replace(charts.FAINT, "#dddddd").replace(charts.INK, "#222222")
    drawn = drawn.replace("<svg ", '<svg style="background:#fff" ', 1)
    (RESULTS / f"{name}.svg").write_text(drawn + "\n", "utf-8")


def label_curve() -> str:
    rows = json.loads((RESULTS / "records.json").read_text())["imdb: all"]["arms"]
    sizes = sorted({row["labels"] for row in rows})
    points = [
        {
            "series": CURVES[row["name"]], "x": row["labels"], "y": row["accuracy"],
            "low": row["over_texts"][0], "high": row["over_texts"][1],
            "hint": f"{CURVES[row['name']]}, {row['labels']:,} labels: {row['accuracy']:.3f}",
        }
        for row in rows
    ]  # fmt: skip
    names = {shown: number for number, shown in enumerate(CURVES.values())}
    labels = page.labels_axis(sizes)
    return charts.lines(points, names, labels, page.accuracy_axis("test accuracy"))


def arms() -> str:
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
    return charts.intervals(points, names, f"test accuracy with {labels:,} labels")


if __name__ == "__main__":
    main()
