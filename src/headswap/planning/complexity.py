"""What a layer costs by the length of its sequence: formulas beside measurements."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from headswap.errors import UsageError
from headswap.nn.backbone import Backbone
from headswap.nn.mixers import MIXERS
from headswap.nn.spec import Stack
from headswap.nn.visibility import Visibility
from headswap.progress import Reporter
from headswap.types import Table

LENGTHS = {"cpu": (32, 64, 128, 256, 512, 1024, 2048, 4096), "cuda": (64, 256, 1024, 4096, 16384)}
REPEATS = 5
TAIL = 3  # points from which an exponent is fitted


def measure(width: int, device: torch.device, report: Reporter) -> Table:
    """Forward and backward of one sequence through one mixer of each kind."""
    if width < 8 or width % 8:
        raise UsageError(f"a width of {width}", fix="give a multiple of 8")
    lengths = LENGTHS.get(device.type, LENGTHS["cpu"])
    heads = max(1, width // 64)
    while width % heads or (width // heads) % 2:
        heads -= 1
    rows: list[Table] = []
    report.begin("measuring")
    for number, mixer in enumerate(MIXERS):
        shape = {"width": width, "heads": heads, "layers": 1, "feedforward": 8}
        stack = Stack(**shape, length=max(lengths), positions="none", mixer=mixer)  # type: ignore[arg-type]
        with torch.random.fork_rng(devices=[]):
            layer = getattr(Backbone(stack, 8).layers[0], MIXERS[mixer].module).to(device)
        for place, length in enumerate(lengths):
            rows.append({"mixer": mixer, "n": length, **_once(layer, stack, length, device)})
            share = (number + (place + 1) / len(lengths)) / len(MIXERS)
            report.update(share, f"{mixer}, {length:,} tokens")
    report.end()
    found: Table = {
        "device": str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "CPU",
        "width": width,
        "kernel": stack.kernel,
        "lengths": list(lengths),
        "points": rows,
        "mixers": [_facts(name, width, rows) for name in MIXERS],
        "crossings": _crossings(rows, width),
    }
    return found


def _once(layer: torch.nn.Module, stack: Stack, length: int, device: torch.device) -> Table:
    x_BTD = torch.randn(1, length, stack.width, device=device, requires_grad=True)
    sees = MIXERS[stack.mixer].prepare(Visibility("full"), length, length, device)
    kept: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def work() -> None:
        layer(x_BTD, sees, None, None, None).square().mean().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    flops = length * sum(cost.flops for cost in MIXERS[stack.mixer].costs(stack, length))
    return {"seconds": statistics.median(times), "bytes": sum(kept.values()), "flops": 3 * flops}


def _facts(name: str, width: int, rows: Sequence[Table]) -> Table:
    mine = [row for row in rows if row["mixer"] == name][-TAIL:]
    mixer = MIXERS[name]
    return {
        "mixer": name,
        "order": mixer.order,
        "steps": mixer.steps,
        "path": mixer.path,
        "time_exponent": exponent([(row["n"], row["seconds"]) for row in mine]),
        "flops_exponent": exponent([(row["n"], row["flops"]) for row in mine]),
        "memory_exponent": exponent([(row["n"], row["bytes"]) for row in mine]),
    }


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of a straight line through logarithms (least squares)."""
    xs, ys = ([math.log(value) for value in some] for some in zip(*points, strict=True))
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - mean_x) ** 2 for x in xs)


def _equal_flops(name: str, width: int) -> float:
    """The length at which attention's formula passes another's: both are straight lines."""
    stack = Stack(width=width, heads=1, mixer=name)
    other = sum(cost.flops for cost in MIXERS[name].costs(stack, 0))
    start, later = (sum(c.flops for c in MIXERS["attention"].costs(stack, n)) for n in (0, 1))
    return max(0.0, (other - start) / (later - start))


def _crossings(rows: Sequence[Table], width: int) -> list[Table]:
    """Where attention begins to take longer than another mixer."""
    found = []
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        curves.setdefault(row["mixer"], {})[row["n"]] = row["seconds"]
    for name, curve in curves.items():
        if name == "attention":
            continue
        place = None
        lengths = sorted(curve)
        for before, after in pairwise(lengths):
            one, two = (math.log(curves["attention"][n] / curve[n]) for n in (before, after))
            if one <= 0 < two:
                share = -one / (two - one)
                place = math.exp(math.log(before) + share * math.log(after / before))
        slower = curves["attention"][lengths[0]] > curve[lengths[0]]
        by_flops = _equal_flops(name, width)
        found.append(
            {
                "mixer": name,
                "n": place,
                "n_by_flops": by_flops,
                "attention_slower_at_first": slower,
            }
        )
    return found
