"""Which parameters learn, how fast, and with which optimizer."""

from __future__ import annotations

import torch

from headswap.nn.model import Model
from headswap.training.plan import Plan


def freeze(model: Model, plan: Plan) -> None:
    """Switch learning off for the parts that the plan freezes."""
    backbone = model.backbone
    for name, parameter in backbone.named_parameters():
        embedding = name.startswith(("embedding", "position_embedding"))
        low = name.startswith("layers.") and int(name.split(".")[1]) < plan.freeze_layers
        frozen = (
            plan.freeze == "backbone"
            or (plan.freeze == "embedding" and embedding)
            or (plan.freeze_layers > 0 and (embedding or low))
        )
        parameter.requires_grad_(not frozen)


def make_optimizer(model: Model, plan: Plan) -> torch.optim.Optimizer:
    """AdamW; matrices decay, vectors do not; deeper layers may learn more slowly.

    Each group remembers its ``scale`` of the schedule's rate (Howard and Ruder 2018,
    section 3.2, discriminative fine-tuning).
    """
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in model.tensors().items():
        if not parameter.requires_grad:
            continue
        depth = model.backbone.depth(name.removeprefix("backbone.")) if "backbone" in name else 0
        decay = plan.weight_decay if parameter.ndim > 1 else 0.0
        key = (plan.layer_decay**depth, decay)
        groups.setdefault(key, []).append(parameter)  # type: ignore[arg-type]
    return torch.optim.AdamW(
        [
            {"params": parameters, "scale": scale, "weight_decay": decay}
            for (scale, decay), parameters in groups.items()
        ],
        lr=plan.lr,
        betas=(plan.betas[0], plan.betas[1]),
        eps=plan.epsilon,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
