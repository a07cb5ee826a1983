"""The report as one HTML page that opens from disk, needs no network and runs no script but
its own: the content policy names the hashes of the one script and the one stylesheet."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from markupsafe import Markup

from headswap.errors import ResourceError
from headswap.report import charts
from headswap.types import Table
from headswap.wording import counted

STEPS = 5
KINDS = {
    "gained": "Right only with pretraining",
    "lost": "Wrong only with pretraining",
    "sure and wrong": "Wrong with confidence",
}


def render(found: Table) -> str:
    """The page of a transfer experiment."""
    return fill(
        "report.html",
        found,
        dict(_charts(found)),
        names=_names(found),
        kinds=KINDS,
        strength=_strength,
        main=[row for row in found["arms"] if row["labels"] == found["main"]],
        epochs=sorted({band["epoch"] for row in found["epochs"] for band in row["valid"]}),
    )


def fill(
    template: str,
    found: Table,
    drawn: Mapping[str, str],
    *,
    script: str = "report.js",
    **more: Any,
) -> str:
    """A template with findings and charts, under the one stylesheet and one script."""
    try:
        import jinja2
    except ImportError as error:
        raise ResourceError("the report needs jinja2", fix="pip install jinja2") from error
    style, code = _file("report.css") + _theme(), _file(script)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "number": _number,
        "accuracy": _accuracy,
        "span": _span,
        "counted": counted,
    }
    return environment.from_string(_file(template)).render(
        found=found,
        charts={name: Markup(chart) for name, chart in drawn.items()},
        style=Markup(style),
        script=Markup(code),
        undrawn=charts.missing() if drawn else None,
        policy=(
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(code)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        **{name: Markup(value) if name == "data" else value for name, value in more.items()},
    )


def _names(found: Table) -> list[str]:
    return list(dict.fromkeys(row["name"] for row in found["arms"]))


def _charts(found: Table) -> Iterator[tuple[str, str]]:
    arms = {name: number for number, name in enumerate(_names(found))}
    main = [row for row in found["arms"] if row["labels"] == found["main"]]
    yield "arms", charts.intervals([_dot(row) for row in main], arms, "test accuracy")
    gains = [_gain_dot(row) for row in found["differences"] if row["labels"] == found["main"]]
    told = {row["series"]: arms[row["arm"]] for row in gains}
    yield "gains", charts.intervals(gains, told, "difference in accuracy", zero=True)
    neural = {row["arm"]: arms[row["arm"]] for row in found["epochs"]}
    points = [point for row in found["epochs"] for point in _by_epoch(row, "valid")]
    yield "epochs", charts.lines(points, neural, EPOCH, accuracy_axis("validation accuracy"))
    pair = [row for row in found["epochs"] if row["arm"] in (found["scratch"], found["winner"])]
    both = [p for row in pair for kind in ("valid", "train") for p in _by_epoch(row, kind)]
    told = {point["series"]: arms[point["arm"]] for point in both}
    dashed = [name for name in told if name not in arms]
    axis = accuracy_axis("accuracy")
    yield "overfit", charts.lines(both, told, EPOCH, axis, band=False, dashed=dashed)
    trained = {name: number for name, number in arms.items() if name not in _probes(found)}
    if len(found["sizes"]) + len(found["reach"]) > 1:
        points = [{**_dot(row), "x": row["labels"]} for row in found["arms"]]
        points = [point for point in points if point["series"] in trained]
        tell_alone(points, "labels", 3)
        axis = accuracy_axis("test accuracy")
        sizes = labels_axis(found["sizes"] + found["reach"])
        yield "curve", charts.lines(points, trained, sizes, axis)
    drawn = [point for row in main if row["name"] in trained for point in _bins(row)]
    yield "calibration", charts.reliability(drawn, trained)


EPOCH = {"type": "quantitative", "axis": {"title": "epoch", "tickMinStep": 1, "format": "d"}}


def accuracy_axis(title: str) -> Table:
    scale = {"zero": False, "nice": True}
    return {"type": "quantitative", "scale": scale, "axis": {"title": title, "format": ".2f"}}


def tell_alone(points: list[Table], unit: str, digits: int) -> None:
    """Let those points speak that are the only ones of their series."""
    counts = Counter(point["series"] for point in points)
    for point in points:
        if counts[point["series"]] == 1:
            point["told"] = f"{point['series']}, {point['x']:,} {unit}: {point['y']:.{digits}f}"


def labels_axis(sizes: list[int]) -> Table:
    return {
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 24},
        "axis": {"title": "labels", "values": sizes, "format": ",d"},
    }


def _probes(found: Table) -> set[str]:
    return {row["name"] for row in found["arms"] if row["kind"] == "probe"}


def _bins(row: Table) -> Iterator[Table]:
    for part in row["reliability"]:
        yield {
            "x": part["confidence"],
            "y": part["accuracy"],
            "series": row["name"],
            "hint": f"{row['name']}: {counted(part['texts'], 'prediction')} of confidence "
            f"{part['confidence']:.2f}, {part['accuracy']:.2f} right",
        }


def _dot(row: Table) -> Table:
    series = row["name"]
    low, high = row["over_texts"]
    seeds = row["over_seeds"] or (None, None)
    return {
        "series": series,
        "y": row["accuracy"],
        "low": low,
        "high": high,
        "low_seeds": seeds[0],
        "high_seeds": seeds[1],
        "hint": f"{series}, {row['labels']:,} labels: {row['accuracy']:.3f} "
        f"[{low:.3f}, {high:.3f} over texts]",
    }


def _gain_dot(row: Table) -> Table:
    series = f"{row['to']} − {row['from']}"
    texts, seeds = row["over_texts"], row["over_seeds"] or {"low": None, "high": None}
    return {
        "series": series,
        "arm": row["to"],
        "y": row["gain"],
        "low": texts["low"],
        "high": texts["high"],
        "low_seeds": seeds["low"],
        "high_seeds": seeds["high"],
        "hint": f"{series}: {row['gain']:+.3f} "
        f"[{texts['low']:.3f}, {texts['high']:.3f} over texts]",
    }


def _by_epoch(row: Table, split: str) -> Iterator[Table]:
    name = row["arm"] if split == "valid" else f"{row['arm']}, training"
    for band in row[split]:
        yield {
            "x": band["epoch"],
            "y": band["mean"],
            "low": band["low"],
            "high": band["high"],
            "series": name,
            "arm": row["arm"],
            "hint": f"{name}, epoch {band['epoch']}: {band['mean']:.3f} "
            f"({band['low']:.3f} to {band['high']:.3f} over seeds)",
        }


def _strength(weight: float, words: list[Table]) -> str:
    """A class for a word: for the prediction or against it, and how much."""
    most = max(abs(word["weight"]) for word in words) or 1.0
    step = min(STEPS, round(STEPS * abs(weight) / most))
    return "" if not step else f"{'for' if weight > 0 else 'against'}-{step}"


def _theme() -> str:
    """Rules that give each colour of the charts its place in the theme."""
    rules = []
    for index, colour in enumerate([*charts.COLOURS, charts.INK, charts.FAINT]):
        for kind in ("fill", "stroke"):
            rules.append(f'svg [{kind}="{colour}"]{{{kind}:var(--c{index})}}')
    return "\n".join(rules) + "\n"


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _file(name: str) -> str:
    return (resources.files("headswap") / "report" / "templates" / name).read_text("utf-8")


def _number(value: Any) -> str:
    if isinstance(value, float) and (abs(value) >= 1e6 or 0 < abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}"


def _accuracy(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _span(bounds: Any) -> str:
    if bounds is None:
        return "no seed interval"
    low, high = (bounds["low"], bounds["high"]) if isinstance(bounds, dict) else bounds
    return f"{low:.3f} to {high:.3f}"
