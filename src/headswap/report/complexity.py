"""The cost of a layer by the length of its sequence, in words and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from headswap.report import charts
from headswap.report import page as pages
from headswap.types import Table


def verdict(found: Table) -> str:
    """Where attention stops being the cheaper layer."""
    parts = []
    for row in found["crossings"]:
        if row["n"] is not None:
            parts.append(
                f"longer than {row['mixer']} from about {row['n']:,.0f} tokens on (by FLOPs from "
                f"{row['n_by_flops']:,.0f})"
            )
        elif row["attention_slower_at_first"]:
            parts.append(f"longer than {row['mixer']} at every length")
        else:
            parts.append(f"less than {row['mixer']} at every length")
    return f"At width {found['width']}, attention takes {', '.join(parts)}."


def lines(found: Table) -> Iterator[str]:
    yield f"one layer of width {found['width']} on {found['device']}, forward and backward"
    header = "".join(f"{n:>10,}" for n in found["lengths"])
    yield f"  {'milliseconds at n =':22}{header}   exponent  order       steps  path"
    for facts in found["mixers"]:
        mine = [row for row in found["points"] if row["mixer"] == facts["mixer"]]
        times = "".join(f"{1e3 * row['seconds']:>10.2f}" for row in mine)
        yield (
            f"  {facts['mixer']:22}{times}   {facts['time_exponent']:8.2f}  {facts['order']:11} "
            f"{facts['steps']:6} {facts['path']}"
        )
    yield verdict(found)


def charts_of(found: Table) -> dict[str, str]:
    """Time and memory over the length, as SVG."""
    return dict(_charts(found, {f["mixer"]: number for number, f in enumerate(found["mixers"])}))


def page(found: Table) -> str:
    told: Table = {
        "title": "The cost of a layer",
        "kicker": f"width {found['width']} · kernel {found['kernel']} · {found['device']}",
        "verdict": verdict(found),
        "sections": [
            {
                "title": "Time",
                "chart": "time",
                "note": "Forward and backward of one sequence, both axes logarithmic; medians.",
                "rows": [],
            },
            {
                "title": "Memory",
                "chart": "memory",
                "note": "What is kept for the backward pass. Fused attention keeps no n × n table.",
                "rows": [],
            },
            {
                "title": "Formulas and exponents",
                "chart": None,
                "note": "n tokens, width d, kernel k. Exponents of n are fitted to the last three "
                "lengths. Steps must follow each other; the path is how far apart two positions "
                "are (Vaswani et al. 2017, table 1).",
                "columns": ["layer", "order", "steps", "path", "FLOPs", "time", "memory"],
                "rows": [
                    [
                        facts["mixer"],
                        facts["order"],
                        facts["steps"],
                        facts["path"],
                        f"n^{facts['flops_exponent']:.2f}",
                        f"n^{facts['time_exponent']:.2f}",
                        f"n^{facts['memory_exponent']:.2f}",
                    ]
                    for facts in found["mixers"]
                ],
            },
        ],
    }
    return pages.fill("figures.html", told, charts_of(found))


def _charts(found: Table, names: dict[str, int]) -> Iterator[tuple[str, str]]:
    marks = {row["mixer"]: row["n"] for row in found["crossings"] if row["n"] is not None}
    for key, field, unit, scale in (
        ("time", "seconds", "milliseconds", 1e3),
        ("memory", "bytes", "MiB", 1 / 2**20),
    ):
        points = [
            {
                "x": row["n"],
                "y": row[field] * scale,
                "low": None,
                "high": None,
                "series": row["mixer"],
                "hint": f"{row['mixer']}, {row['n']:,} tokens: {row[field] * scale:,.3g} {unit}",
            }
            for row in found["points"]
        ]
        x = {
            "type": "quantitative",
            "scale": {"type": "log", "nice": False},
            "axis": {"title": "tokens", "values": found["lengths"], "format": ",d"},
        }
        y = {
            "type": "quantitative",
            "scale": {"type": "log"},
            "axis": {"title": unit, "format": "~g"},
        }
        rules = marks if key == "time" else {}
        yield key, charts.lines(points, names, x, y, band=False, marks=rules)
