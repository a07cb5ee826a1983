"""Draw the README's picture from a result file.

    python benchmarks/picture.py

It is docs/results/first.svg: the arms of the record on cls-books where docs/results has it, of
the demo otherwise, with their intervals.
"""

from __future__ import annotations

import json
from pathlib import Path

from headswap.report import charts

RESULTS = Path(__file__).parents[1] / "docs" / "results"
RECORD = "books: all"
ALONE = ("linear", "scratch")  # these may have more labels than the others


def main() -> None:
    records = RESULTS / "records.json"
    found = json.loads(records.read_text()) if records.exists() else {}
    chosen = found.get(RECORD) or json.loads((RESULTS / "transfer.json").read_text())["demo"]
    labels = max(row["labels"] for row in chosen["arms"] if row["name"] not in ALONE)
    rows = [row for row in chosen["arms"] if row["labels"] == labels]
    points = []
    for row in rows:
        low_seeds, high_seeds = row["over_seeds"] or (None, None)
        low, high = row["over_texts"]
        points.append(
            {
                "series": row["name"], "y": row["accuracy"], "low": low, "high": high,
                "low_seeds": low_seeds, "high_seeds": high_seeds, "hint": row["name"],
            }
        )  # fmt: skip
    names = {row["name"]: number for number, row in enumerate(rows)}
    title = f"test accuracy with {labels:,} labels"
    drawn = charts.intervals(points, names, title)
    drawn = drawn.replace(charts.FAINT, "#dddddd").replace(charts.INK, "#222222")
    drawn = drawn.replace("<svg ", '<svg style="background:#fff" ', 1)
    (RESULTS / "first.svg").write_text(drawn + "\n", "utf-8")


if __name__ == "__main__":
    main()
