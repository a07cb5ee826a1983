"""What a thousand GPUs would take, on paper, for models of three sizes.

    python benchmarks/paper_plan.py            # plan, and write the file and the table
    python benchmarks/paper_plan.py --render   # write the table from the file
    python benchmarks/paper_plan.py --check    # fail when the table is out of date

Nothing is measured: one GPU's time is its data sheet's, and the price is a round number to
multiply with. The plans go to docs/results/paper-plan.json, the table to docs/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from common import headswap

DOCS = Path(__file__).parents[1] / "docs"
FILE, PAGE = DOCS / "results" / "paper-plan.json", DOCS / "scaling.md"
BEGIN, END = "<!-- benchmarks/paper_plan.py writes from here -->\n", "<!-- to here -->\n"
FLEET = "--device H100 --nodes 128 --gpus-per-node 8 --link 450 --price 2.5"
FABRICS = {"one port of 400 Gb/s a node": 50, "eight ports": 400}
SHOWN = (1, 8, 64, 256, 1_024)
GIB = 2**30


def shape(width: int, layers: int, heads: int, inner: int, length: int) -> str:
    sizes = {"width": width, "layers": layers, "heads": heads, "feedforward": inner}
    sizes["length"] = length
    changes = [f"--set model.{name}={size}" for name, size in sizes.items()]
    return " ".join([*changes, "--set tokenizer.vocabulary=32000"])


MODELS = {
    "`base`, 49 million parameters": "--batch 1024 --tokens 1_000_000_000",
    "1.3 billion parameters": f"{shape(2048, 24, 16, 5632, 1024)} --batch 2048 "
    "--tokens 26_000_000_000",
    "6.7 billion parameters": f"{shape(4096, 32, 32, 11008, 2048)} --batch 2048 "
    "--tokens 140_000_000_000",
}


def plans() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for model, changes in MODELS.items():
        for fabric, speed in FABRICS.items():
            command = f"plan base {FLEET} --fabric {speed} {changes}"
            done = headswap(*shlex.split(command), "--json")
            entry = {"command": f"headswap {command}", **json.loads(done.stdout)}
            found.setdefault(model, {})[fabric] = entry
    return found


def table(found: dict[str, Any]) -> str:
    lines: list[str] = []
    for model, fabrics in found.items():
        first = next(iter(fabrics.values()))
        lines += [
            f"### {model}",
            "",
            f"{first['parameters']:,} parameters, {first['steps']:,.0f} steps of "
            f"{first['tokens_a_step']:,} tokens; one {first['device']} would take "
            f"{first['step_seconds']:.3g} s a step.",
            "",
            "```text",
            first["command"],
            "```",
            "",
            "| GPUs | way | GiB a GPU | parts | fabric | GB a node sends a step | efficiency | "
            "hours | cost |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name, plan in fabrics.items():
            for row in plan["rows"]:
                alone = row["nodes"] == 1
                if row["gpus"] not in SHOWN or (alone and plan is not first):
                    continue
                held = f"{row['bytes'] / GIB:,.1f}"
                cells = [
                    f"{row['gpus']:,}",
                    row["way"],
                    held if row["fits"] else f"{held}, does not fit",
                    str(row["parts"]),
                    "–" if alone else name,
                    "–" if alone else f"{row['sent_between'] / 1e9:,.2f}",
                ]
                if row["fits"]:
                    cells += [f"{row['efficiency']:.0%}", f"{row['hours']:,.3g}"]
                    cells += [f"${row['cost']:,.0f}"]
                else:
                    cells += ["–", "–", "–"]
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += ["Assumed:", "", *(f"- {line}" for line in first["assumptions"])]
    return "\n".join(lines) + "\n"


def rendered(page: str, content: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--render", action="store_true", help="from the file alone")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    if not options.render and not options.check:
        FILE.write_text(json.dumps(plans(), indent=1) + "\n", "utf-8")
    page = PAGE.read_text("utf-8")
    new = rendered(page, table(json.loads(FILE.read_text("utf-8"))))
    if options.check and new != page:
        raise SystemExit(f"{PAGE} is out of date: run python {__file__} --render")
    PAGE.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
