"""Whole experiments on real data, with no option but the file names (and a time limit).

    HEADSWAP_DATA=… python benchmarks/transfer.py --out docs/results/transfer.json

Runs the demo, SST-2 and SST-5 (pretrained on their own texts) and SST-2 on english-small, and
keeps what each report says. An experiment that is there already is only read.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from common import headswap

SETS = {
    "sst2": ("sst2", ()),
    "sst5": ("sst5", ()),
    "sst2-english-small": ("sst2", ("--from", "english-small")),
}


def summary(folder: Path, command: str) -> dict[str, object]:
    found = json.loads((folder / "report.json").read_text("utf-8"))
    names = ("name", "labels", "accuracy", "over_texts", "over_seeds", "macro_f1")
    return {
        "command": command,
        "verdict": found["verdict"],
        "seeds": found["seeds"],
        "test_texts": found["test_texts"],
        "arms": [{name: row[name] for name in names} for row in found["arms"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", default=",".join(["demo", *SETS]))
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only.split(","):
        out = options.runs / name
        if name == "demo":
            shown, arguments = "headswap demo", ["demo"]
        else:
            source, more = SETS[name]
            data = Path(os.environ["HEADSWAP_DATA"]) / "english-classification"
            files = [f"{source}.{role}.jsonl.gz" for role in ("train", "dev", "test")]
            arguments = ["transfer", data / files[0], "--valid", data / files[1]]
            arguments += ["--test", data / files[2], *more, "--minutes", options.minutes]
            extra = "".join(f" {word}" for word in more)
            shown = f"headswap transfer {files[0]} --valid {files[1]} --test {files[2]}{extra}"
            shown += f" --minutes {options.minutes:g}"
        if not (out / "report.json").exists():
            headswap(*arguments, "--out", out, quiet=False)
        results[name] = summary(out, shown)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(results[name]["verdict"], flush=True)


if __name__ == "__main__":
    main()
