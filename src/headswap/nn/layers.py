"""The Transformer layer: attention or another mixer, in a decoder attention over the source, and
a feed-forward, each with a norm and a shortcut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from headswap.nn.attention import Cache, CrossAttention, Memory, Rotation
from headswap.nn.mixers import MIXERS
from headswap.nn.spec import Stack

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's
    "silu": F.silu,
}


def make_norm(stack: Stack) -> nn.Module:
    if stack.norm == "layer":
        return nn.LayerNorm(stack.width, eps=stack.norm_epsilon)
    return nn.RMSNorm(stack.width, eps=stack.norm_epsilon)


class FeedForward(nn.Module):
    """Two linear layers; gated (Shazeer 2020, equation 6) when the stack says so."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.gated = stack.gated
        self.activation = ACTIVATIONS[stack.activation]
        inner = 2 * stack.feedforward if stack.gated else stack.feedforward
        self.up = nn.Linear(stack.width, inner, bias=stack.bias)
        self.down = nn.Linear(stack.feedforward, stack.width, bias=stack.bias)
        self.dropout = nn.Dropout(stack.inside)

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner = self.up(x_BTD)
        if self.gated:
            gate, value = inner.chunk(2, dim=-1)
            inner = self.activation(gate) * value
        else:
            inner = self.activation(inner)
        result: Tensor = self.down(self.dropout(inner))
        return result


class Layer(nn.Module):
    """Post-norm: norm(x + f(x)), as in 2017. Pre-norm: x + f(norm(x)), as in Llama."""

    def __init__(self, stack: Stack, index: int, cross: bool = False) -> None:
        super().__init__()
        mixer = MIXERS[stack.mixer]
        self.mixer = mixer.module
        self.add_module(mixer.module, mixer.build(stack, index))
        if cross:
            self.cross = CrossAttention(stack, index)
            self.cross_norm = make_norm(stack)
        self.feedforward = FeedForward(stack)
        self.attention_norm = make_norm(stack)
        self.feedforward_norm = make_norm(stack)
        self.dropout = nn.Dropout(stack.dropout)
        self.post = stack.norm_at == "post"

    def forward(
        self,
        x_BTD: Tensor,
        sees: Any,
        rotation: Rotation | None,
        cache: Cache | None,
        places: Tensor | int | None,
        memory: Memory | None = None,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            mixer = getattr(self, self.mixer)
            mixed: Tensor = self.dropout(mixer(x, sees, rotation, cache, places))
            return mixed

        def look(x: Tensor) -> Tensor:
            seen: Tensor = self.dropout(self.cross(x, memory))
            return seen

        def feed(x: Tensor) -> Tensor:
            fed: Tensor = self.dropout(self.feedforward(x))
            return fed

        if self.post:
            x_BTD = self.attention_norm(x_BTD + attend(x_BTD))
            if memory is not None:
                x_BTD = self.cross_norm(x_BTD + look(x_BTD))
            x_BTD = self.feedforward_norm(x_BTD + feed(x_BTD))
        else:
            x_BTD = x_BTD + attend(self.attention_norm(x_BTD))
            if memory is not None:
                x_BTD = x_BTD + look(self.cross_norm(x_BTD))
            x_BTD = x_BTD + feed(self.feedforward_norm(x_BTD))
        return x_BTD
