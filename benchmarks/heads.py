"""What each attention head of trained runs is worth: a result file and pictures.

    python benchmarks/heads.py "name=RUN=FILES" … --out docs/results/heads.json

FILES are what `headswap inspect RUN --heads` takes, separated by commas. A picture of each run
is drawn beside the result file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headswap import load
from headswap.looking.attention import heads_worth
from headswap.progress import reporter
from headswap.report import look


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", help="name=RUN=FILE,FILE")
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for given in options.runs:
        name, run, files = given.split("=")
        heads = heads_worth(load(run), [Path(file) for file in files.split(",")], reporter())
        rows = [vars(row) for row in heads.rows]
        found[name] = {"figure": heads.figure, "whole": heads.whole, "rows": rows}
        picture = options.out.with_name(f"heads-{name.replace(' ', '-')}.svg")
        picture.write_text(look.worth(found[name]) + "\n")
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
