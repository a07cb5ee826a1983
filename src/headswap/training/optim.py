"""Which parameters learn, how fast, and with which optimizer."""

from __future__ import annotations

import math
from typing import Any

import torch

from headswap.nn.model import Model
from headswap.training import parallel
from headswap.training.adamw import AdamW
from headswap.training.muon import Muon
from headswap.training.plan import Plan


def freeze(model: Model, plan: Plan, epoch: float = math.inf) -> None:
    """Switch learning off for the parts that the plan freezes at this point.

    With ``unfreeze`` the head learns first and one more layer every so many epochs, from the
    top (Howard and Ruder 2018, section 3.3).
    """
    backbone = model.backbone
    thawed = math.inf
    if plan.unfreeze is not None and epoch < math.inf:
        thawed = 1 + math.floor(epoch / plan.unfreeze + 1e-9)  # 0.3 / 0.1 is below 3
    for name, parameter in backbone.named_parameters():
        part = name.removeprefix("encoder.")
        embedding = part.startswith(("embedding.", "position_embedding."))
        low = part.startswith("layers.") and int(part.split(".")[1]) < plan.freeze_layers
        frozen = (
            plan.freeze == "backbone"
            or (plan.freeze == "embedding" and embedding)
            or (plan.freeze_layers > 0 and (embedding or low))
            or backbone.depth(name) >= thawed
        )
        parameter.requires_grad_(not frozen)


def make_optimizer(model: Model, plan: Plan, recorded: bool = True) -> torch.optim.Optimizer:
    """AdamW or Muon; matrices decay, vectors do not; deeper layers may learn more slowly.

    Each group remembers its ``scale`` of the schedule's rate (Howard and Ruder 2018,
    section 3.2, discriminative fine-tuning). Steps that a GPU is to replay have to be
    ``recorded``.
    """
    groups: dict[tuple[float, float, int], list[torch.nn.Parameter]] = {}
    for name, parameter in model.tensors().items():
        depth = model.backbone.depth(name.removeprefix("backbone.")) if "backbone" in name else 0
        decay = plan.weight_decay if parameter.ndim > 1 else 0.0
        parts = _matrices(name, parameter, model) if plan.optimizer == "muon" else 0
        key = (plan.layer_decay**depth, decay, parts)
        groups.setdefault(key, []).append(parameter)  # type: ignore[arg-type]
    tables: list[dict[str, Any]] = [
        {"params": parameters, "scale": scale, "weight_decay": decay, "parts": parts}
        for (scale, decay, parts), parameters in groups.items()
    ]
    gpu = recorded and model.device.type == "cuda"
    for table in tables if gpu else ():  # a rate that a recorded step can be given anew
        table["lr"] = torch.full((), plan.lr, device=model.device)
    betas = (plan.betas[0], plan.betas[1])
    if plan.optimizer == "muon":
        return Muon(tables, plan.lr, betas, plan.epsilon, plan.weight_decay)
    return AdamW(tables, lr=plan.lr, betas=betas, eps=plan.epsilon, fused=True, capturable=gpu)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["scale"])
        else:
            group["lr"] = rate * group["scale"]


def _matrices(name: str, parameter: torch.Tensor, model: Model) -> int:
    """How many square-ish matrices a layer's tensor stacks; 0 for all that is no matrix."""
    if ".layers." not in name or parameter.ndim != 2:
        return 0
    if name.endswith("qkv.weight"):
        return 3
    if name.endswith("cross.kv.weight"):
        return 2
    return 2 if name.endswith("feedforward.up.weight") and model.backbone.stack.gated else 1


class Average:
    """An average of the weights, to evaluate with and to keep: exponential, or of a few."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.tensors().items()}

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Let the weights of now count for this share."""
        now = [parallel.own(tensor.detach()) for tensor in self._model.tensors().values()]
        torch._foreach_lerp_(list(map(parallel.own, self.tensors.values())), now, weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights and the average, in place."""
        for name, tensor in self._model.tensors().items():
            held = tensor.detach().clone()
            tensor.copy_(self.tensors[name])
            self.tensors[name].copy_(held)
