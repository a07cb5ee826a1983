"""The cost of a layer by the length of its sequence, as a result file and a chart.

    python benchmarks/complexity.py --device cpu

Writes docs/results/complexity-DEVICE.json and the chart beside it; the same as
`headswap inspect --complexity`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from headswap.planning import complexity
from headswap.progress import reporter
from headswap.report import complexity as drawing

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--draw", action="store_true", help="only draw the chart of a result file")
    options = parser.parse_args()
    path = options.out / f"complexity-{options.device}.json"
    if not options.draw:
        found = complexity.measure(options.width, torch.device(options.device), reporter())
        path.write_text(json.dumps(found, indent=1) + "\n")
        print("\n".join(drawing.lines(found)))
        if options.device != "cpu":
            return
    found = json.loads(path.read_text())
    path.with_suffix(".svg").write_text(drawing.charts_of(found)["time"] + "\n")


if __name__ == "__main__":
    main()
