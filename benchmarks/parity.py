"""Exports against the runs they were made from, on real texts.

    python benchmarks/parity.py "name=RUN=FILE" … --out docs/results/parity.json

FILE has a text a line; the first 200 are used. Each run is exported to every target that fits
it; what the check of the export found is collected.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from headswap.errors import HeadswapError
from headswap.export.folder import Target, export

TARGETS: tuple[tuple[Target, bool], ...] = (
    ("hf", False),
    ("onnx", False),
    ("onnx", True),
    ("ctranslate2", False),
    ("ctranslate2", True),
)
COUNT = 200


def lines(path: Path) -> list[str]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return [line for line in text.decode("utf-8").splitlines() if line.strip()][:COUNT]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", help="name=RUN=FILE")
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for given in options.runs:
        name, run, file = given.split("=")
        for target, int8 in TARGETS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    out = Path(folder) / "out"
                    parity = export(Path(run), target, out, int8=int8, texts=lines(Path(file)))
                except HeadswapError as error:
                    parity = {"refused": str(error).replace(str(run), name)}
            key = f"{target} int8" if int8 else target
            found.setdefault(name, {})[key] = parity
            print(name, key, parity, flush=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
