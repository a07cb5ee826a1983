"""Make the base french-small, from text that anybody may use.

    HEADSWAP_DATA=… python benchmarks/french_small.py --out src/headswap/bases/french-small

Reads the files of french-text whose licences allow it (public domain, CC0, CC BY-SA), pretrains
the recipe ``mini`` on them, modern text more than the novels that there is most of, and writes
the run as english_small.py does. A few minutes on a GPU.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from english_small import pack, pretrain

from headswap.run import Run

TEXTS = {  # and how much of each is read
    "novels-eltec-core.txt.xz": 4,
    "mdn-fr.txt.xz": 1,
    "parliament-2013.txt.xz": 1,
    "commonvoice-sentences.txt.xz": 1,
}
TOLD = (
    "novels of 1840 to 1920 (ELTeC-fra, public domain), MDN Web Docs in French (Mozilla "
    "contributors, CC BY-SA 2.5), debates of the National Assembly of 2013 (official documents; "
    "encoding by nlegrand, CC BY 3.0), sentences of Common Voice (CC0)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the base")
    parser.add_argument("--runs", type=Path, default=Path("runs/french-small"))
    parser.add_argument("--tokens", type=int, default=300_000_000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    folder = Path(os.environ["HEADSWAP_DATA"]) / "french-text"
    base = Run(options.runs / "base")
    texts = [folder / name for name in TEXTS]
    weights = f"data.weights={list(TEXTS.values())}"
    pretrain(base, texts, options.tokens, options.device, "--set", weights)
    pack(base, options.out, list(TEXTS), TOLD, "french_small.py")


if __name__ == "__main__":
    main()
