"""The vocabulary head on a GPU: chunk sizes and kernel shapes, and where a step's time goes.

python benchmarks/head.py --out docs/results/head-cuda.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import speed
import torch

from headswap.nn import cross_entropy, kernels

SHAPES = (
    (512, 1024), (2048, 1024), (4096, 1024), (4096, 512), (8192, 1024), (8192, 512), (8192, 256),
    (16384, 1024),
)  # fmt: skip
JOINED = (
    (128, 64, 16, 4), (128, 64, 32, 4), (128, 64, 16, 8), (128, 64, 32, 8), (128, 128, 8, 8),
    (128, 128, 16, 8), (64, 64, 16, 4), (64, 64, 32, 4),
)  # fmt: skip
"""Rows and columns of a tile, tiles a strip, warps."""


def head(rows: int, lanes: int, repeats: int = 5) -> float:
    """Milliseconds for 32,768 positions of the course's shape, there and back."""
    count, width, tokens = 32_768, 200, 50_001
    x = torch.randn(count, width, device="cuda")
    weight = torch.randn(tokens, width, device="cuda") * 0.05
    bias = torch.randn(tokens, device="cuda") * 0.1
    targets = torch.randint(0, tokens, (count,), device="cuda")
    weights = torch.full((count,), 1 / count, device="cuda")
    cross_entropy.CHUNK_ROWS["cuda"] = rows
    kernels.LANES = lanes

    def once() -> None:
        cross_entropy._fused(x, weight, bias, targets, weights, 0.0, (True, True, True))

    once()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        once()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / repeats


def kernel(lanes: int | None, repeats: int = 7) -> float:
    """Milliseconds for one chunk of logits; without lanes, for a copy of it: the limit."""
    rows, tokens, columns = 8_192, 50_001, 50_048
    source = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    logits = source.clone()
    targets = torch.randint(0, tokens, (rows,), device="cuda")
    weights, losses = torch.ones(rows, device="cuda"), torch.empty(rows, device="cuda")
    kernels.LANES = lanes or kernels.LANES
    times = []
    for _ in range(repeats + 1):
        logits.copy_(source)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if lanes:
            kernels.softmax_gradient(logits, targets, weights, losses, tokens, 0.0, True)
        else:
            logits.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[1:])


def joined(shape: tuple[int, ...] | None) -> float:
    """Milliseconds for one chunk from x to its gradient: by the joined kernel of a shape, or
    without one, by a product and the kernel that follows it."""
    rows, width, tokens, columns = 8_192, 208, 50_001, 50_048
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    weight = 0.05 * torch.randn(columns, width, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(0, tokens, (rows,), device="cuda")
    weights = torch.full((rows,), 1 / rows, device="cuda")
    losses, shares = torch.empty_like(weights), torch.empty_like(weights)
    out = weight.new_empty((rows, columns))

    def once() -> None:
        if shape:
            kernels.joined(x, weight, targets, weights, losses, shares, out, tokens)
        else:
            torch.mm(x, weight.T, out=out)
            kernels.softmax_gradient(out, targets, weights, losses, tokens, 0.0, True)

    before = kernels.TILE, kernels.ACROSS, kernels.STRIP, kernels.WARPS
    if shape:
        kernels.TILE, kernels.ACROSS, kernels.STRIP, kernels.WARPS = shape
    found = speed_of(once)
    kernels.TILE, kernels.ACROSS, kernels.STRIP, kernels.WARPS = before
    return found


def speed_of(once: Callable[[], None], repeats: int = 9) -> float:
    """The median time of a call, in milliseconds."""
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        once()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[2:])


def profiled(workload: str) -> dict[str, Any]:
    """A training step's kernels, by the milliseconds they take."""
    from torch.profiler import ProfilerActivity, profile

    shape = speed.SHAPES[workload, "cuda"]
    kind = "masked" if workload == "masked" else "causal"
    run = speed.headswap(kind, shape, torch.device("cuda"))
    run(1, 5)
    step = run(20, 20) / 20
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        run(50, 2)
    rows = sorted(watched.key_averages(), key=lambda row: -row.device_time_total)[:60]
    return {
        "milliseconds_a_step": 1e3 * step,
        "kernels": [
            {"name": r.key[:100], "times": r.count // 2, "milliseconds": r.device_time_total / 2e3}
            for r in rows
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    options = parser.parse_args()
    before = cross_entropy.CHUNK_ROWS["cuda"], kernels.LANES
    alone = [{"lanes": lanes, "milliseconds": kernel(lanes)} for lanes in (256, 512, 1024)]
    alone.append({"copy": True, "milliseconds": kernel(None)})
    sweep = [
        {"rows": rows, "lanes": lanes, "milliseconds": head(rows, lanes)} for rows, lanes in SHAPES
    ]
    cross_entropy.CHUNK_ROWS["cuda"], kernels.LANES = before
    joins = [{"shape": shape, "milliseconds": joined(shape)} for shape in (None, *JOINED)]
    steps = {name: profiled(name) for name in ("causal", "masked", "large")}
    options.out.write_text(
        json.dumps({"kernel": alone, "head": sweep, "joined": joins, "steps": steps}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
