"""Fine-tuning steps a second on a GPU, by precision and by how many models train at once.

    python benchmarks/tuning_steps.py --out docs/results/tuning-steps.json
    python benchmarks/tuning_steps.py --count --out docs/results/tuning-operations.json

Each model has a stream of its own and replays its recorded step on random tokens; one process
launches them all. A step that is hundreds of small kernels is bound by their number, whatever
they compute. With ``--count``, on any machine: how many operations a step in bf16 asks for, when
autocast casts each weight by itself and when they are cast at once.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed import Tokens
from torch.utils._python_dispatch import TorchDispatchMode

from headswap import settings
from headswap.nn.model import new_model
from headswap.objectives import Batch, Context
from headswap.text.loader import Labelled
from headswap.training import casting, machine, optim
from headswap.training.step import Step

SHAPES = {"course": (8, 144, 50_001), "small": (16, 144, 8_000)}
"""By recipe: texts, tokens a text, vocabulary."""
REPEATS = 5


def prepared(recipe: str, precision: str, seed: int, device: str) -> tuple[Step, list[Batch]]:
    """A model's step, and a batch for it."""
    batch, length, vocabulary = SHAPES[recipe]
    labels = {"classify": {"labels": ["no", "yes"], "label_smoothing": 0.0}}
    made = settings.resolve("classify", recipe, [labels, {"train": {"batch": batch}}])
    heads = made.objective.heads(made.model, vocabulary)
    model = new_model(made.model, vocabulary, heads, seed=seed).to(device).train()
    optimizer = optim.make_optimizer(model, made.train)
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    step = Step(model, made.objective, optimizer, made.train, kind, print)
    draw = np.random.default_rng(seed)
    tokens: Any = Tokens(vocabulary)
    texts = [Labelled(draw.integers(5, vocabulary, length - 2), i % 2) for i in range(batch)]
    context = Context(made.model, tokens, draw, 0, 0.5, training=True, few_shapes=True)
    return step, [made.objective.batch(texts, context)]


def recorded(recipe: str, precision: str, seed: int) -> torch.cuda.CUDAGraph:
    """A model's step on one batch, to be replayed again and again."""
    step, parts = prepared(recipe, precision, seed, "cuda")
    parts = [part.map(torch.Tensor.pin_memory) for part in parts]
    for _ in range(3):  # launched, recorded, replayed
        step(parts, 1e-4, seed)
    (recording,) = step._known.values()
    assert recording is not None
    recording.graph.step = step  # type: ignore[attr-defined]  # what it needs lives on with it
    return recording.graph


class Counting(TorchDispatchMode):
    """Counts the operations that compute or copy, and not those that only look."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: Any = (), options: Any = None
    ) -> Any:
        found = operation(*given, **(options or {}))
        name = operation.overloadpacket.__name__
        looks = operation.is_view or name.startswith(("empty", "_record_function", "detach"))
        self.count += not looks
        return found


def operations(recipe: str, at_once: bool) -> int:
    """How many operations a step in bf16 asks for, on a CPU."""
    step, parts = prepared(recipe, "bf16", 0, "cpu")
    for table in step._tables:  # a GPU keeps no gradients
        table.drop_gradient()
    step._tables = []
    if at_once:
        step._linear = casting.linear_tensors(step.forward)
    step(parts, 1e-4, 0)
    with Counting() as counting:
        step(parts, 1e-4, 1)
    return counting.count


def kernels_of(graph: torch.cuda.CUDAGraph) -> int:
    """How many kernels and copies a replayed step is."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages())


def rate(graphs: list[torch.cuda.CUDAGraph], rounds: int) -> float:
    """Steps a second of all together: the median of a few timings."""
    streams = [torch.cuda.Stream() for _ in graphs]
    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(rounds):
            for stream, graph in zip(streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        found.append(rounds * len(graphs) / (time.perf_counter() - began))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--models", type=int, nargs="+", default=[1, 4, 12])
    parser.add_argument("--recipes", nargs="+", default=list(SHAPES))
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--count", action="store_true", help="count operations instead")
    options = parser.parse_args()
    if options.count:
        ways = {"each by itself": False, "at once": True}
        counted = {
            recipe: {name: operations(recipe, way) for name, way in ways.items()}
            for recipe in options.recipes
        }
        print(counted)
        options.out.write_text(json.dumps(counted, indent=1) + "\n")
        return
    machine.plan_attention(torch.device("cuda"), few_shapes=False)
    kinds = list(product(options.recipes, options.precisions))
    rows: list[dict[str, Any]] = []
    for recipe, precision in kinds:
        graphs = [recorded(recipe, precision, seed) for seed in range(max(options.models))]
        texts, length, _ = SHAPES[recipe]
        row = {"recipe": recipe, "texts": texts, "length": length, "precision": precision}
        row["steps_a_second"] = {
            n: rate(graphs[:n], max(5, options.rounds // n)) for n in options.models
        }
        rows.append(row)
        print(row, flush=True)
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        del graphs
        gc.collect()
        torch.cuda.empty_cache()
    for row in rows:  # last, since a profiler may slow down what comes after it
        row["kernels"] = kernels_of(recorded(row["recipe"], row["precision"], 0))
    print([row["kernels"] for row in rows])
    found = {"device": torch.cuda.get_device_name(), "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
