"""The vocabulary head on a GPU: chunk sizes and kernel shapes, and where a step's time goes.

python benchmarks/head.py --out docs/results/head-cuda.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import speed
import torch

from headswap.nn import cross_entropy, kernels

SHAPES = (
    (512, 8192, 16), (1024, 2048, 8), (2048, 8192, 16), (4096, 8192, 16), (4096, 2048, 8),
    (4096, 2048, 4), (4096, 1024, 4), (4096, 4096, 4), (8192, 2048, 8), (8192, 2048, 4),
    (16384, 2048, 8),
)  # fmt: skip


def head(rows: int, block: int, warps: int, repeats: int = 5) -> float:
    """Milliseconds for 32,768 positions of the course's shape, there and back."""
    count, width, tokens = 32_768, 200, 50_001
    x = torch.randn(count, width, device="cuda")
    weight = torch.randn(tokens, width, device="cuda") * 0.05
    bias = torch.randn(tokens, device="cuda") * 0.1
    targets = torch.randint(0, tokens, (count,), device="cuda")
    weights = torch.full((count,), 1 / count, device="cuda")
    cross_entropy.CHUNK_ROWS["cuda"] = rows
    kernels.BLOCK, kernels.WARPS = block, warps

    def once() -> None:
        cross_entropy._fused(x, weight, bias, targets, weights, 0.0, (True, True, True))

    once()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        once()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / repeats


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
    before = cross_entropy.CHUNK_ROWS["cuda"], kernels.BLOCK, kernels.WARPS
    sweep = [
        {"rows": rows, "block": block, "warps": warps, "milliseconds": head(rows, block, warps)}
        for rows, block, warps in SHAPES
    ]
    cross_entropy.CHUNK_ROWS["cuda"], kernels.BLOCK, kernels.WARPS = before
    steps = {name: profiled(name) for name in ("causal", "masked", "large")}
    options.out.write_text(json.dumps({"head": sweep, "steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
