"""The weights of linear layers in the precision of the products, all cast at once.

Autocast casts every tensor by an operation of its own, and its gradient back by another: in a
small model's step a quarter of all that a GPU is asked to begin. The numbers are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headswap.objectives import Batch, Objective, Term

MOST = 50_000_000
"""Numbers. In larger models operations are larger too, and their gradients, which wait for each
other here, would take memory that is wanted elsewhere."""


def linear_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What autocast would cast, of all that learns; nothing in large models."""
    found: dict[str, Tensor] = {
        f"{name}.{part}": tensor
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
        for part, tensor in layer.named_parameters(recurse=False)
        if tensor.requires_grad
    }
    return found if sum(tensor.numel() for tensor in found.values()) <= MOST else {}


def forward_cast(
    forward: nn.Module,
    tensors: dict[str, Tensor],
    precision: torch.dtype,
    objective: Objective,
    batch: Batch,
) -> dict[str, Term]:
    """A forward pass with these tensors in another precision."""
    cast = _Cast.apply(precision, *tensors.values())  # type: ignore[no-untyped-call]
    terms: dict[str, Term] = functional_call(
        forward, dict(zip(tensors, cast, strict=True)), (objective, batch)
    )
    return terms


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, precision: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a head that was not asked learns nothing
        return tuple(_copied([*tensors], precision))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        made = iter(_copied([some for some in gradients if some is not None], torch.float32))
        return (None, *(None if some is None else next(made) for some in gradients))


def _copied(tensors: list[Tensor], precision: torch.dtype) -> list[Tensor]:
    made = [torch.empty_like(tensor, dtype=precision) for tensor in tensors]
    torch._foreach_copy_(made, tensors)
    return made
