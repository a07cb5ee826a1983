"""How the next token is chosen: the likeliest, or drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headswap.decoding.stepper import Stepper
from headswap.errors import UsageError
from headswap.randomness import generator

BLOCK = 64
COLDEST = 1e-3
CROWDED = 0.75  # finished rows leave when so few are still open


@dataclass(frozen=True)
class Sampling:
    """``temperature`` 0 is greedy. ``top_k`` and ``top_p`` cut off the unlikely tail
    (Holtzman et al. 2020, section 3.1). The draw of a row depends on (seed, row, step) only,
    never on its batch mates."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature and not COLDEST <= self.temperature < math.inf:
            raise UsageError(
                f"the temperature cannot be {self.temperature}", fix=f"use 0, or {COLDEST} and more"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k cannot be {self.top_k}", fix="use 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top-p cannot be {self.top_p}", fix="use a share above 0, up to 1")
        if not self.temperature and (self.top_k is not None or self.top_p is not None):
            raise UsageError("top-k and top-p need a temperature above 0", fix="0.8, say")

    def choose(self, logits_BV: Tensor, rows: Sequence[int] | np.ndarray, step: int) -> Tensor:
        if self.temperature == 0:
            return largest(logits_BV, 1)[1][:, 0]
        scaled = (logits_BV / self.temperature).double()
        order = torch.sort(scaled, dim=-1, descending=True, stable=True).indices
        chances = scaled.gather(1, order).softmax(-1)
        if self.top_k is not None:
            chances[:, self.top_k :] = 0
        if self.top_p is not None:
            before = chances.cumsum(-1) - chances
            chances = chances.where(before < self.top_p, 0)
        mass = (chances / chances.sum(-1, keepdim=True)).cumsum(-1)
        draws = [generator(self.seed, "sample", int(row), step).random() for row in rows]
        points = torch.tensor(draws, device=logits_BV.device, dtype=mass.dtype)[:, None]
        last = (chances > 0).sum(-1, keepdim=True) - 1
        places = torch.searchsorted(mass, points, right=True).minimum(last)
        return order.gather(1, places)[:, 0]


@dataclass(frozen=True)
class Extension:
    """New tokens of one row, the sum of their log-probabilities (the end's too), and how many
    those are."""

    ids: list[int]
    score: float
    length: int


def extend(
    stepper: Stepper,
    rows: int,
    limits: int | Sequence[int],
    end: int,
    sampling: Sampling,
    never: tuple[int, ...] = (),
    names: Sequence[int] | None = None,
    scored: bool = True,
) -> list[Extension]:
    """New tokens for each row, ended by ``end`` or by its limit; finished rows leave.

    ``names`` number the rows for the draws, when they are a part of a larger set. Without
    ``scored`` no log-probabilities are added up, which saves a pass over the vocabulary.
    """
    most = np.full(rows, limits) if isinstance(limits, int) else np.array(limits)
    name = np.arange(rows) if names is None else np.array(names)
    tokens = np.full((rows, int(most.max(initial=0))), end)
    lengths, totals = np.zeros(rows, dtype=int), np.zeros(rows)
    alive = np.arange(rows)  # the row that each of the stepper's is
    going = np.ones(rows, dtype=bool)  # of those, the ones that are not finished
    forbidden = torch.tensor(never, dtype=torch.long, device=stepper.logits_BV.device)
    for step in range(tokens.shape[1]):
        logits_BV = stepper.logits_BV
        if never:
            logits_BV.index_fill_(1, forbidden, float("-inf"))
        chosen_B = sampling.choose(logits_BV, name[alive], step)
        chosen = chosen_B.numpy(force=True)
        open_rows = alive[going]
        if scored:
            picked_B = logits_BV.gather(1, chosen_B[:, None])[:, 0]
            logs = (picked_B - logits_BV.logsumexp(-1)).numpy(force=True)
            totals[open_rows] += logs[going]
        tokens[open_rows, step] = chosen[going]
        lengths[open_rows] += 1
        going &= (chosen != end) & (step + 1 < most[alive])
        if not going.any():
            break
        if going.mean() <= CROWDED:
            kept = gathered(going)
            stepper.select(kept)
            chosen_B = torch.from_numpy(chosen[kept]).to(chosen_B.device)
            alive, going = alive[kept], going[kept]
        stepper.step(chosen_B)
    return [
        Extension([int(token) for token in row[:length] if token != end], float(total), int(length))
        for row, length, total in zip(tokens, lengths, totals, strict=True)
    ]


def gathered(going_B: np.ndarray) -> np.ndarray:
    """The rows that go on, those far back put where others have left, so that few move."""
    count = int(going_B.sum())
    rows = np.arange(count)
    rows[~going_B[:count]] = count + np.flatnonzero(going_B[count:])
    return rows


def largest(values_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of each row and their places. A CPU finds them faster block by block:
    the largest few lie in the blocks whose largest are the largest few."""
    size = values_BV.shape[1]
    blocks = size // BLOCK
    if values_BV.device.type != "cpu" or blocks <= count:
        found, places = values_BV.topk(count, dim=1)
        return found, places
    whole_BNW = values_BV[:, : blocks * BLOCK].reshape(len(values_BV), blocks, BLOCK)
    tops_BC = whole_BNW.amax(-1).topk(count, dim=1).indices
    inside = tops_BC[..., None] * BLOCK + torch.arange(BLOCK)
    rest = torch.arange(blocks * BLOCK, size).expand(len(values_BV), -1)
    places_BM = torch.cat([inside.flatten(1), rest], dim=1)
    found, picks = values_BV.gather(1, places_BM).topk(count, dim=1)
    return found, places_BM.gather(1, picks)
