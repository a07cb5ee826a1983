"""How the next token is chosen: the likeliest, or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headswap.decoding.stepper import Stepper
from headswap.errors import UsageError
from headswap.randomness import generator


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
        if self.temperature < 0:
            raise UsageError(f"the temperature cannot be {self.temperature}", fix="use 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k cannot be {self.top_k}", fix="use 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top-p cannot be {self.top_p}", fix="use a share above 0, up to 1")

    def choose(self, logits_BV: Tensor, rows: list[int], step: int) -> Tensor:
        if self.temperature == 0:
            return logits_BV.argmax(-1)
        scaled = (logits_BV / self.temperature).double()
        order = torch.sort(scaled, dim=-1, descending=True, stable=True).indices
        chances = scaled.gather(1, order).softmax(-1)
        if self.top_k is not None:
            chances[:, self.top_k :] = 0
        if self.top_p is not None:
            before = chances.cumsum(-1) - chances
            chances = chances.where(before < self.top_p, 0)
        mass = (chances / chances.sum(-1, keepdim=True)).cumsum(-1)
        draws = [generator(self.seed, "sample", row, step).random() for row in rows]
        points = torch.tensor(draws, device=logits_BV.device, dtype=mass.dtype)[:, None]
        last = (chances > 0).sum(-1, keepdim=True) - 1
        places = torch.searchsorted(mass, points, right=True).minimum(last)
        return order.gather(1, places)[:, 0]


@dataclass
class Extension:
    """New tokens of one row, the sum of their log-probabilities (the end's too), and how many
    those are."""

    ids: list[int] = field(default_factory=list)
    score: float = 0.0
    length: int = 0


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
    most = [limits] * rows if isinstance(limits, int) else list(limits)
    results = [Extension() for _ in range(rows)]
    alive = list(range(rows))
    forbidden = list(never)
    for step in range(max(most, default=0)):
        logits_BV = stepper.logits_BV
        if forbidden:
            logits_BV[:, forbidden] = float("-inf")
        drawn = [names[row] for row in alive] if names is not None else alive
        chosen_B = sampling.choose(logits_BV, drawn, step)
        logs = [0.0] * len(alive)
        if scored:
            picked_B = logits_BV.gather(1, chosen_B[:, None])[:, 0]
            logs = (picked_B - logits_BV.logsumexp(-1)).tolist()
        going = []
        for place, (token, log) in enumerate(zip(chosen_B.tolist(), logs, strict=True)):
            row = alive[place]
            results[row].score += log
            results[row].length += 1
            if token == end:
                continue
            results[row].ids.append(token)
            if step + 1 < most[row]:
                going.append(place)
        if not going:
            break
        if len(going) < len(alive):
            kept = torch.tensor(going, device=chosen_B.device)
            stepper.select(kept)
            chosen_B = chosen_B[kept]
            alive = [alive[place] for place in going]
        stepper.step(chosen_B)
    return results
