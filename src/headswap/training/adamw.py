"""AdamW that begins at once. Torch's optimizers wrap their methods for its compiler, which takes
more than a second to load and is not used on them here: below are the same methods without."""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap

import torch
from torch.optim import Optimizer


class Unwrapped(Optimizer):
    """An optimizer that is never compiled."""

    add_param_group = unwrap(Optimizer.add_param_group)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)


class AdamW(Unwrapped, torch.optim.AdamW):
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        _step(self, closure)


_step = unwrap(torch.optim.AdamW.step)
