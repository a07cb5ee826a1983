"""A model on several devices: whole on each (DDP), or a part of every tensor on each (FSDP2).

Losses are sums divided by the global batch's counts, so gradients are added up over the ranks
and never averaged. The rest of the program sees one model: ``whole`` and ``put`` turn parts of
tensors into tensors and back. Torch's own module for that takes half a second to import, which
only a training with ``shard`` pays.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headswap.nn.model import Model
from headswap.objectives import Batch, Objective, Term
from headswap.training.plan import Plan
from headswap.training.ranks import Ranks


class Forward(nn.Module):
    """The way from a batch to its losses as one module, which is what torch can wrap."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Objective, batch: Batch) -> dict[str, Term]:
        return objective.loss(self.model, batch)


def spread(model: Model, plan: Plan, ranks: Ranks) -> nn.Module:
    """The forward pass over all ranks. What learns must be decided before; with ``unfreeze``
    it changes on the way, and everything takes part."""
    forward = Forward(model)
    if ranks.alone:
        return forward
    if plan.shard:
        return _sharded(forward)
    # Parts of a model that a batch leaves out have to be looked for, which costs a little.
    sometimes = plan.unfreeze is not None or len(model.heads) > 1
    wrapped = DistributedDataParallel(forward, init_sync=False, find_unused_parameters=sometimes)
    wrapped.register_comm_hook(None, lambda _, bucket: _add(bucket.buffer()))
    return wrapped


def without_exchange(forward: nn.Module) -> AbstractContextManager[None]:
    """Inside, gradients stay where they are made: for all parts of a batch but its last. Parts
    of tensors are exchanged at once, since nobody has room for whole gradients."""
    if isinstance(forward, DistributedDataParallel):
        return forward.no_sync()
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every rank has to ask."""
    found: Tensor = tensor.full_tensor() if _is_cut(tensor) else tensor  # type: ignore[attr-defined]
    return found


def own(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds, in its own memory."""
    found: Tensor = tensor.to_local() if _is_cut(tensor) else tensor  # type: ignore[attr-defined]
    return found


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, cut and placed as another is."""
    value = value.to(like.device)
    if not _is_cut(like) or _is_cut(value) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def put(tensor: Tensor, value: Tensor) -> None:
    """Fill a tensor, or this rank's part of it, from a whole one or from one cut alike."""
    tensor.copy_(part_of(value, tensor))


def on_host(tensors: Mapping[str, Tensor], wanted: bool) -> dict[str, Tensor]:
    """Whole tensors in this process's memory, one after the other; every rank has to ask, and
    those that do not want them keep nothing."""
    found = {}
    for name, tensor in tensors.items():
        one = whole(tensor.detach())
        if wanted:
            found[name] = one.cpu().contiguous()
    return found


@contextmanager
def whole_model(model: Model) -> Iterator[Model]:
    """The model as one device can run it: itself, or a copy put together from all parts."""
    tensors = model.tensors()
    if not any(map(_is_cut, tensors.values())):
        yield model
        return
    specs: dict[str, Any] = {name: head.spec for name, head in model.heads.items()}
    copy = Model(model.backbone.stack, model.backbone.vocabulary, specs).to(model.device)
    for name, tensor in copy.tensors().items():
        put(tensor, whole(tensors[name].detach()))
    yield copy.train(model.training)


def _is_cut(tensor: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _sharded(forward: Forward) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(forward.model.device.type, (dist.get_world_size(),))
    # Nothing is changed in place on the way, so views are no danger.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    for name, module in forward.named_modules():
        if name.endswith(".cross"):  # a decoder's layer remembers the source before it runs
            fully_shard(module, mesh=mesh)
            register_fsdp_forward_method(module, "remember")
    for name, module in forward.named_modules():
        if name.split(".")[-2:-1] == ["layers"]:
            fully_shard(module, mesh=mesh)
    fully_shard(forward, mesh=mesh)
    for module in forward.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return forward


def _add(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Gradients are added where DDP would average them."""
    future: torch.futures.Future[Any] = dist.all_reduce(gradients, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
