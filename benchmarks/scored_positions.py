"""How much faster training is when only the hidden positions reach the vocabulary head.

    python benchmarks/scored_positions.py --out docs/results/scored-positions.json

Whole training steps (batch, forward, backward, optimizer) at the course's shape, causal and
masked in turns, on the same windows of random tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from headswap import settings
from headswap.nn.model import new_model
from headswap.objectives import Causal, Context, Masked, Objective
from headswap.text.loader import Window
from headswap.training import optim

OBJECTIVES: dict[str, Objective] = {"causal": Causal(), "masked, 15%": Masked(rate=0.15)}


class Tokens:
    """As much of a tokenizer as a batch of random ids needs."""

    size, pad, bos, eos, unk = 50_001, 1, 0, 2, 3

    def special(self, name: str) -> int:
        return {"<mask>": 4, "<sep>": 5}[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    chosen = settings.resolve("causal", "course")
    stack, batch, tokens = chosen.model, chosen.train.batch, Tokens()
    draw = np.random.default_rng(0)
    windows = [Window(draw.integers(6, tokens.size, stack.length + 1)) for _ in range(batch)]
    steps = {}
    for name, objective in OBJECTIVES.items():
        model = new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0)
        optimizer = optim.make_optimizer(model, chosen.train)

        def step(model=model, optimizer=optimizer, objective=objective) -> None:
            made = objective.batch(windows, Context(stack, tokens, draw, training=True))
            terms = objective.loss(model, made)
            sum(term.total / made.counts[key] for key, term in terms.items()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.train.clip)
            optimizer.step()
            optimizer.zero_grad()

        steps[name] = step
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(options.repeats + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if turn:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
    result = {
        "command": f"python benchmarks/scored_positions.py --repeats {options.repeats}",
        "repeats": options.repeats,
        "threads": torch.get_num_threads(),
        "tokens_per_second": {
            name: batch * stack.length / statistics.median(times) for name, times in seconds.items()
        },
        "seconds": seconds,
    }
    print(json.dumps(result["tokens_per_second"], indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
