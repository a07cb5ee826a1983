"""Charts as SVG to stand inside a page: Vega-Lite specs, drawn without a browser.

Colours are those of ``COLOURS``; the page's stylesheet maps each to a colour of its light or
dark theme. Every mark carries a sentence (``hint``) that the page shows on hover and that
screen readers read.

Without the library that draws, every chart is empty and ``missing`` says so: a page still holds
the tables, and work of hours does not end in an error.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headswap.types import Table

# Okabe and Ito's colours, told apart by people of every colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#777777")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke", "wedge")
INK, FAINT = "#123456", "#abcdef"
WIDTH, HEIGHT = 460, 240
LINE_HEIGHT = 15
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"

Series = Mapping[str, int]
"""The series of a chart in their order, each with the number of its colour and shape."""


def missing() -> str | None:
    """What to tell the user where the charts are empty; None where they can be drawn."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        return "the charts were not drawn: pip install vl-convert-python"
    return None


def lines(
    rows: Sequence[Table],
    names: Series,
    x: Table,
    y: Table,
    band: bool = True,
    dashed: Sequence[str] = (),
    marks: Mapping[str, float] | None = None,
) -> str:
    """Lines with points; ``rows`` have x, y, low, high, series and hint. ``marks`` are upright
    lines at places on the x axis, each in the colour of its series. A row with ``told`` is the
    only one of its series: a point with its interval, what is told of it, and a dashed line
    across, by which it is compared with the others."""
    encoding = {"x": {"field": "x", **x}, "color": _colour(names)}
    layers: list[Table] = []
    if band:
        layers.append(
            {
                "mark": {"type": "area", "opacity": 0.18, "aria": False},
                "transform": [{"filter": "datum.low !== null"}],
                "encoding": {
                    **encoding,
                    "y": {"field": "low", **y},
                    "y2": {"field": "high"},
                },
            }
        )
    layers.append(
        {
            "mark": {"type": "line", "aria": False, "strokeWidth": 2},
            "encoding": {
                **encoding,
                "y": {"field": "y", **y},
                "strokeDash": {
                    "field": "series",
                    "scale": {
                        "domain": list(names),
                        "range": [[5, 4] if name in dashed else [1, 0] for name in names],
                    },
                    "legend": None,
                },
            },
        }
    )
    layers += _alone(rows, encoding, y)
    layers.append(_points({**encoding, "y": {"field": "y", **y}}, names))
    if marks:
        layers.append(
            {
                "mark": {"type": "rule", "strokeDash": [2, 4], "strokeWidth": 1.5, "aria": False},
                "data": {"values": [{"x": at, "series": name} for name, at in marks.items()]},
                "encoding": encoding,
            }
        )
    return draw(rows, layers)


def intervals(rows: Sequence[Table], names: Series, title: str, zero: bool = False) -> str:
    """A row for every series: the point, a thick interval (over texts) and a thin one (over
    seeds). ``rows`` have y, low, high, low_seeds, high_seeds, series and hint."""
    domain = {"zero": zero, "nice": True}
    x = {"type": "quantitative", "scale": domain, "axis": {"title": title, "format": ".2f"}}
    y = {"field": "series", "type": "nominal", "sort": list(names), "axis": {"title": None}}
    colour = {**_colour(names), "legend": None}
    layers: list[Table] = [
        {
            "mark": {"type": "rule", "strokeWidth": 7, "opacity": 0.35, "aria": False},
            "encoding": {
                "x": {"field": "low", **x},
                "x2": {"field": "high"},
                "y": y,
                "color": colour,
            },
        },
        {
            "mark": {"type": "rule", "strokeWidth": 1.5, "aria": False},
            "transform": [{"filter": "datum.low_seeds !== null"}],
            "encoding": {
                "x": {"field": "low_seeds", **x},
                "x2": {"field": "high_seeds"},
                "y": y,
                "color": colour,
            },
        },
        _points({"x": {"field": "y", **x}, "y": y, "color": colour}, names),
    ]
    if zero:
        layers.insert(
            0,
            {
                "mark": {"type": "rule", "color": INK, "strokeDash": [3, 3], "aria": False},
                "data": {"values": [{"zero": 0}]},
                "encoding": {"x": {"field": "zero", **x}},
            },
        )
    return draw(rows, layers, height={"step": 34})


def reliability(rows: Sequence[Table], names: Series) -> str:
    """Confidence against accuracy, with the line on which both agree."""
    axis = {"type": "quantitative", "scale": {"zero": False, "nice": True}}
    x = {"field": "x", **axis, "axis": {"title": "confidence", "format": ".1f"}}
    y = {"field": "y", **axis, "axis": {"title": "share that was right", "format": ".1f"}}
    low = min([row["x"] for row in rows] + [row["y"] for row in rows])
    diagonal = [{"x": low, "y": low}, {"x": 1, "y": 1}]
    layers: list[Table] = [
        {
            "mark": {"type": "line", "color": INK, "strokeDash": [3, 3], "aria": False},
            "data": {"values": diagonal},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": {"type": "line", "aria": False},
            "encoding": {"x": x, "y": y, "color": _colour(names)},
        },
        _points({"x": x, "y": y, "color": _colour(names)}, names),
    ]
    return draw(rows, layers)


def heat(rows: Sequence[Table], size: int) -> str:
    """A matrix: ``rows`` have x, y ("003 name": the number orders, the name is shown), value
    from 0 to 1 and hint."""
    names = {"title": None, "labelExpr": "slice(datum.label, 4)", "grid": False}
    layers: list[Table] = [
        {
            "mark": {"type": "rect", "stroke": FAINT, "strokeWidth": 0.5},
            "encoding": {
                "x": {
                    "field": "x",
                    "type": "ordinal",
                    "axis": {**names, "orient": "top", "labelAngle": -90},
                },
                "y": {"field": "y", "type": "ordinal", "axis": names},
                "fill": {"value": COLOURS[0]},
                "fillOpacity": {"field": "value", "type": "quantitative", "scale": None},
                "description": {"field": "hint"},
            },
        }
    ]
    return draw(rows, layers, {"step": size}, {"step": size})


def bars(rows: Sequence[Table], title: str) -> str:
    """A bar a row; ``rows`` have x ("003 name"), y and hint; those below zero in a second
    colour."""
    names = {"title": None, "labelExpr": "slice(datum.label, 4)", "labelAngle": -60}
    colour = {"condition": {"test": "datum.y < 0", "value": COLOURS[1]}, "value": COLOURS[0]}
    layers: list[Table] = [
        {
            "mark": {"type": "bar"},
            "encoding": {
                "x": {"field": "x", "type": "ordinal", "axis": names},
                "y": {"field": "y", "type": "quantitative", "axis": {"title": title}},
                "color": colour,
                "description": {"field": "hint"},
            },
        }
    ]
    return draw(rows, layers, HEIGHT, {"step": 24})


def _alone(rows: Sequence[Table], encoding: Table, y: Table) -> list[Table]:
    """The layers of rows that are the only ones of their series."""
    lonely = sorted((row for row in rows if "told" in row), key=lambda row: float(row["y"]))
    if not lonely:
        return []
    end = max(row["x"] for row in rows)
    values = [row[name] for row in rows for name in ("y", "low", "high") if row[name] is not None]
    apart = LINE_HEIGHT / HEIGHT * (max(values) - min(values))
    drawn: list[Table] = []
    for row in lonely:  # what is told of two points must not lie on each other
        lowest = drawn[-1]["place"] + apart if drawn else row["y"]
        drawn.append({**row, "end": end, "place": max(row["y"], lowest)})
    rule = {"type": "rule", "aria": False}
    text = {"type": "text", "align": "left", "dx": 10, "dy": -7, "fontSize": 12, "aria": False}
    upright = {"y": {"field": "low", **y}, "y2": {"field": "high"}}
    across = {"y": {"field": "y", **y}, "x2": {"field": "end"}}
    written = {
        "x": encoding["x"],
        "y": {"field": "place", **y},
        "text": {"field": "told"},
        "color": {"value": INK},
    }
    layers = [
        {"mark": {**rule, "strokeWidth": 7, "opacity": 0.35}, "encoding": {**encoding, **upright}},
        {"mark": {**rule, "strokeDash": [4, 4]}, "encoding": {**encoding, **across}},
        {"mark": text, "encoding": written},
    ]
    return [{**layer, "data": {"values": drawn}} for layer in layers]


def _points(encoding: Table, names: Series) -> Table:
    return {
        "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
        "encoding": {
            **encoding,
            "shape": {
                "field": "series",
                "scale": {"domain": list(names), "range": _picked(SHAPES, names)},
                "legend": None if encoding["color"].get("legend", 1) is None else _legend(),
            },
            "description": {"field": "hint"},
        },
    }


def _colour(names: Series) -> Table:
    scale = {"domain": list(names), "range": _picked(COLOURS, names)}
    return {"field": "series", "type": "nominal", "scale": scale, "legend": _legend()}


def _legend() -> Table:
    return {"title": None, "orient": "top", "labelLimit": 240, "symbolOpacity": 1, "columns": 4}


def _picked(values: Sequence[str], names: Series) -> list[str]:
    return [values[number % len(values)] for number in names.values()]


def draw(
    rows: Sequence[Table], layers: Sequence[Table], height: Any = HEIGHT, width: Any = WIDTH
) -> str:
    """One chart as an SVG element; nothing where the library is missing."""
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": None,
        "padding": {"left": 16, "right": 8, "top": 4, "bottom": 4},
        "width": width,
        "height": height,
        "data": {"values": list(rows)},
        "layer": list(layers),
        "config": {
            "font": FONT,
            "view": {"stroke": None},
            "axis": {
                "labelColor": INK,
                "titleColor": INK,
                "gridColor": FAINT,
                "domainColor": FAINT,
                "tickColor": FAINT,
                "labelFontSize": 12,
                "titleFontSize": 12.5,
                "titleFontWeight": "normal",
                "labelLimit": 220,
                "labelFlush": False,
                "tickCount": 7,
            },
            "legend": {"labelColor": INK, "labelFontSize": 12, "symbolSize": 80},
        },
    }
    return "" if missing() else _render(json.dumps(spec, sort_keys=True))


@functools.cache
def _render(spec: str) -> str:
    import vl_convert

    drawn = str(vl_convert.vegalite_to_svg(json.loads(spec)))
    return drawn.replace("<svg ", '<svg role="group" ', 1)
