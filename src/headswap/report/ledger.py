"""The ledger as a page."""

from __future__ import annotations

from headswap.report import page as pages
from headswap.types import Table


def page(facts: Table) -> str:
    total, flops, held = facts["parameters"]["total"], facts["flops"], facts["bytes"]
    rows = []
    for row in facts["tree"]:
        times = f"{row['times']} × " if row["times"] > 1 else ""
        rows.append(
            [
                "\u2003" * row["depth"] + row["name"],
                times + row["formula"] if "formula" in row else "",
                times + f"({row['numbers']})" if "numbers" in row else "",
                f"{row['count']:,}",
                f"{row['share']:.1%}",
                _learning(row) if "formula" in row else "",
            ]
        )
    told: Table = {
        "title": f"{facts['what']}: the ledger",
        "kicker": f"{facts['objective']} · {facts['vocabulary']:,} tokens",
        "verdict": f"{total:,} parameters; {flops['inference_a_token'] / 1e6:,.2f} million FLOPs a "
        f"token to run, {flops['training_a_token'] / 1e6:,.2f} million to train.",
        "sections": [
            {
                "title": "Parameters",
                "chart": None,
                "note": "Tied weights are counted once.",
                "columns": ["part", "formula", "numbers", "parameters", "share", "learns"],
                "rows": rows,
            },
            {
                "title": f"FLOPs of a token at {flops['length']:,} tokens",
                "chart": None,
                "note": "The forward pass; training costs three times as much.",
                "columns": ["part", "formula", "times", "FLOPs"],
                "rows": [
                    [
                        f"{line['of']}: {line['part']}",
                        line["formula"],
                        line["times"],
                        f"{line['times'] * line['flops']:,.0f}",
                    ]
                    for line in flops["lines"]
                ],
            },
            {
                "title": "Bytes",
                "chart": None,
                "note": "Activations are what autograd keeps for the backward pass, in fp32.",
                "columns": ["what", "bytes"],
                "rows": [
                    [name.replace("_", " "), f"{held[name]:,.0f}"]
                    for name in held
                    if name != "formulas"
                ],
            },
        ],
    }
    return pages.fill("figures.html", told, {})


def _learning(row: Table) -> str:
    if row["trainable"] and row["frozen"]:
        return f"{row['times'] - row['frozen']} of {row['times']}"
    return "yes" if row["trainable"] else "frozen"
