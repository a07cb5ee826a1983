"""A model is a backbone and named heads; the heads can be swapped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headswap.nn.backbone import Backbone, EncoderDecoder
from headswap.nn.heads import LanguageModelHead
from headswap.nn.spec import HeadSpec, Stack
from headswap.randomness import derive
from headswap.wording import counted

COURSE_RANGE = 0.1
NORMAL_SCALE = 0.02


class Model(nn.Module):
    def __init__(self, stack: Stack, vocabulary: int, heads: Mapping[str, HeadSpec]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # torch's own first weights are thrown away
            kind = EncoderDecoder if stack.decoder_layers else Backbone
            self.backbone: Backbone | EncoderDecoder = kind(stack, vocabulary)
            self.heads = nn.ModuleDict(
                {name: spec.build(self.backbone.embedding) for name, spec in heads.items()}
            )

    @property
    def device(self) -> torch.device:
        return self.backbone.embedding.weight.device

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter once, by name: a tied weight belongs to the embedding."""
        return dict(self.named_parameters(remove_duplicate=True))


@dataclass(frozen=True)
class Carried:
    """What a head swap kept and what it made anew. A new head may have no weights of its own
    but the embedding's."""

    tensors: int
    parameters: int
    new_tensors: int
    new_parameters: int
    heads: bool = False

    def __str__(self) -> str:
        kept = f"carried over {counted(self.tensors, 'tensor')} ({self.parameters:,} parameters)"
        if self.new_tensors:
            return f"{kept}; new: {self.new_tensors} ({self.new_parameters:,} parameters)"
        return f"{kept}, the head included" if self.heads else f"{kept}; the head is new"


def swap_head(
    model: Model, heads: Mapping[str, HeadSpec], *, seed: int = 0, keep: Sequence[str] = ()
) -> tuple[Model, Carried]:
    """The same backbone, byte for byte, under new heads drawn from ``seed``.

    A head named in ``keep`` goes along when the old model has it in the same shape.
    """
    backbone = model.backbone
    swapped = Model.__new__(Model)
    nn.Module.__init__(swapped)
    swapped.backbone = backbone
    swapped.heads = nn.ModuleDict()
    names, new = {f"backbone.{name}" for name, _ in backbone.named_parameters()}, 0
    for name, spec in heads.items():
        old = model.heads[name] if name in keep and name in model.heads else None
        if old is not None and old.spec == spec:
            swapped.heads[name] = old
            names |= {f"heads.{name}.{part}" for part, _ in old.named_parameters()}
        else:
            new += 1
            with torch.random.fork_rng(devices=[]):
                swapped.heads[name] = spec.build(backbone.embedding).to(model.device)
    kept = {name: tensor for name, tensor in swapped.tensors().items() if name in names}
    fresh = {name: tensor for name, tensor in swapped.tensors().items() if name not in names}
    _initialise(fresh, backbone.stack, seed)
    return swapped, Carried(
        len(kept),
        sum(tensor.numel() for tensor in kept.values()),
        len(fresh),
        sum(tensor.numel() for tensor in fresh.values()),
        heads=not new,
    )


def warm_start(
    base: Model, stack: Stack, heads: Mapping[str, HeadSpec], *, seed: int
) -> tuple[Model, Carried]:
    """A translator whose encoder and embedding are a base's; the rest is drawn from ``seed``."""
    model = new_model(stack, base.backbone.vocabulary, heads, seed=seed).to(base.device)
    tensors = model.tensors()
    kept: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, tensor in base.backbone.named_parameters():
            for target in (f"backbone.{name}", f"backbone.encoder.{name}"):
                if target in tensors:
                    tensors[target].copy_(tensor[: len(tensors[target])])
                    kept[target] = tensor
    fresh = {name: tensor for name, tensor in tensors.items() if name not in kept}
    return model, Carried(
        len(kept),
        sum(tensor.numel() for tensor in kept.values()),
        len(fresh),
        sum(tensor.numel() for tensor in fresh.values()),
    )


def grow_vocabulary(model: Model, vocabulary: int, *, seed: int) -> Model:
    """The same model with more tokens: old rows byte for byte, new ones drawn from ``seed``."""
    stack = model.backbone.stack
    specs = {
        name: replace(head.spec, vocabulary=vocabulary)
        if isinstance(head, LanguageModelHead)
        else head.spec
        for name, head in model.heads.items()
    }
    grown = new_model(stack, vocabulary, specs, seed=seed)  # type: ignore[arg-type]
    old = model.tensors()
    with torch.no_grad():
        for name, tensor in grown.tensors().items():
            tensor[: len(old[name])].copy_(old[name])
    return grown


def new_model(stack: Stack, vocabulary: int, heads: Mapping[str, HeadSpec], *, seed: int) -> Model:
    """A model with random weights; each tensor's are a function of (seed, its name)."""
    model = Model(stack, vocabulary, heads)
    _initialise(model.tensors(), stack, seed)
    return model


@torch.no_grad()
def _initialise(tensors: Mapping[str, Tensor], stack: Stack, seed: int) -> None:
    for name, tensor in tensors.items():
        draw = torch.Generator().manual_seed(derive(seed, "init", name))
        bound = _uniform_bound(name, tensor, stack) if stack.init == "course" else None
        if ".recurrent." in name or ".convolving." in name:  # torch's own first weights
            width = stack.width // 2 if stack.mixer == "bilstm" else stack.width
            bound = 1 / math.sqrt(width * (stack.kernel if stack.mixer == "convolution" else 1))
        if "norm" in name:
            values = torch.full(tensor.shape, 0.0 if name.endswith("bias") else 1.0)
        elif bound is not None:
            values = torch.empty(tensor.shape).uniform_(-bound, bound, generator=draw)
        elif name.endswith("bias"):
            values = torch.zeros(tensor.shape)
        else:
            scale = NORMAL_SCALE
            if name.endswith(("attention.out.weight", "cross.out.weight", "down.weight")):
                scale /= math.sqrt(2 * (stack.layers + stack.decoder_layers))
            values = torch.empty(tensor.shape).normal_(0, scale, generator=draw)
        tensor.copy_(values)


def _uniform_bound(name: str, tensor: Tensor, stack: Stack) -> float | None:
    """The ranges of the course's code; inside layers those of torch.nn's own layers."""
    if "embedding" in name:
        return COURSE_RANGE
    if name.startswith("heads."):
        return None if name.endswith("bias") else COURSE_RANGE
    if name.endswith(("qkv.weight", "cross.q.weight", "cross.kv.weight")):
        return math.sqrt(6 / (4 * stack.width))  # of all three matrices together
    if (".attention." in name or ".cross." in name) and name.endswith("bias"):
        return None
    fan_in = stack.feedforward if ".down." in name else stack.width
    return 1 / math.sqrt(fan_in)
