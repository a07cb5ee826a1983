"""Muon (Jordan et al. 2024): momentum whose matrices are made orthogonal before each step.

Matrices of one shape are orthogonalised together, as one batched product: looping over them
costs more than the arithmetic. Everything that is not a matrix of a layer learns by AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from headswap.training.adamw import Unwrapped

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
MOMENTUM = 0.95
RMS = 0.2


class Muon(Unwrapped):
    """Groups with ``parts`` above 0 hold matrices that are stacks of so many (a joint matrix
    for queries, keys and values is 3); the others are plain AdamW groups."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "parts": 0}
        super().__init__(list(groups), defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        matrices: dict[tuple[int, ...], list[tuple[Tensor, Tensor, dict[str, Any]]]] = {}
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not group["parts"]:
                self._adamw(group, learning)
                continue
            for parameter in learning:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - MOMENTUM)
                ahead = parameter.grad.lerp(state["momentum"], MOMENTUM)
                views = zip(
                    parameter.chunk(group["parts"]), ahead.chunk(group["parts"]), strict=True
                )
                for target, change in views:
                    matrices.setdefault(tuple(target.shape), []).append((target, change, group))
        for shape, entries in matrices.items():
            changes = orthogonal(torch.stack([change for _, change, _ in entries]))
            for (target, _, group), change in zip(entries, changes, strict=True):
                # The size that AdamW's steps have, so that one rate serves both (Liu et al. 2025).
                scale = RMS * max(shape) ** 0.5
                target.mul_(1 - group["lr"] * group["weight_decay"])
                target.sub_(change.to(target.dtype) * (group["lr"] * scale))

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters],  # type: ignore[misc]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            capturable=parameters[0].is_cuda,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def orthogonal(matrices: Tensor) -> Tensor:
    """Near the closest orthogonal matrices, by a quintic Newton-Schulz iteration; bf16 on a
    GPU, fp32 on a CPU, where bf16 products may be many times slower."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    result: Tensor = x.mT if tall else x
    return result
