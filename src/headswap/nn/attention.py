"""Multi-head attention (Vaswani et al. 2017, section 3.2): over oneself, with a key-value cache,
and over a source."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headswap.nn.spec import Stack
from headswap.nn.visibility import KernelMask, Visibility

Rotation = tuple[Tensor, Tensor]
"""Cosines, and sines with the sign that the other half of a head comes with."""
ALIGNED_BYTES = 16
"""What GPU kernels read at once: heads whose width fills whole such pieces are quick."""


class Cache:
    """Keys and values of the positions decoded so far, in a buffer allocated once.

    The slot of a key is its position, so rows of different lengths live side by side: a
    query at position p looks at slots 0 to p, which are its own row's. Slots come first in
    the buffer, so that those in use are one piece of memory.
    """

    def __init__(self, stack: Stack, batch: int, size: int, like: Tensor) -> None:
        shape = (size, 2 * stack.layers, batch, stack.heads, stack.width // stack.heads)
        self.size, self._used = size, 0
        self._buffer = like.new_empty(shape)

    def append(
        self, layer: int, k_BHTK: Tensor, v_BHTK: Tensor, places: Tensor | int
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values at their places (of each row, or where all rows stand);
        return those of the layer that may be looked at."""
        end = self.size if isinstance(places, Tensor) else places + k_BHTK.shape[2]
        if end == self.size and self._used == 0:  # slots ahead are read, if without weight
            self._buffer.zero_()
        self._used = max(self._used, end)
        found = []
        for part, new_BHTK in enumerate((k_BHTK, v_BHTK)):
            slots_SBHK = self._buffer[:, 2 * layer + part]
            if isinstance(places, Tensor):
                rows_B1 = torch.arange(len(places), device=places.device)[:, None]
                slots_SBHK[places, rows_B1] = new_BHTK.transpose(1, 2).to(slots_SBHK.dtype)
            else:
                slots_SBHK[places:end] = new_BHTK.permute(2, 0, 1, 3)
            found.append(slots_SBHK[:end].permute(1, 2, 0, 3))
        return found[0], found[1]

    def select(self, rows_B: np.ndarray) -> None:
        """Keep these rows, in this order; a row may be kept several times."""
        old, used = self._buffer, self._used
        if len(rows_B) > old.shape[2]:
            size, parts, _, heads, width = old.shape
            self._buffer = old.new_empty(size, parts, len(rows_B), heads, width)
            rows = torch.from_numpy(rows_B).to(old.device)
            torch.index_select(old[:used], 2, rows, out=self._buffer[:used])
        else:
            move(old[:used], 2, rows_B)
            self._buffer = old[:, :, : len(rows_B)]


def move(rows: Tensor, dim: int, order_B: np.ndarray) -> None:
    """Put rows (along ``dim``) in this order, in their own memory; only those that change
    their place are copied."""
    (changed,) = np.nonzero(order_B != np.arange(len(order_B)))
    if len(changed):
        both = torch.from_numpy(np.stack([changed, order_B[changed]])).to(rows.device)
        first = rows.transpose(0, dim)
        first[both[0]] = first[both[1]]


class HeadNorm(nn.RMSNorm):
    """Of queries and keys, in their own precision: torch has one kernel for that, and none for
    two precisions at once."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Self-attention; one matrix makes queries, keys and values."""

    def __init__(self, stack: Stack, layer: int) -> None:
        super().__init__()
        self.heads, self.layer, self.dropout = stack.heads, layer, stack.inside
        self.qkv = nn.Linear(stack.width, 3 * stack.width, bias=stack.bias)
        self.out = nn.Linear(stack.width, stack.width, bias=stack.bias)
        head_width = stack.width // stack.heads
        if stack.qk_norm:
            self.q_norm: nn.Module = HeadNorm(head_width, eps=stack.norm_epsilon)
            self.k_norm: nn.Module = HeadNorm(head_width, eps=stack.norm_epsilon)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(
        self,
        x_BTD: Tensor,
        mask: KernelMask,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        places: Tensor | int | None = None,
    ) -> Tensor:
        room = self._room(x_BTD.dtype) if x_BTD.is_cuda and self._plain else 0
        if room and rotation is None and cache is None:
            return self._aligned(x_BTD, mask, room)
        q_BHTK, k_BHSK, v_BHSK = self.project(x_BTD, rotation)
        if cache is not None:
            assert places is not None
            k_BHSK, v_BHSK = cache.append(self.layer, k_BHSK, v_BHSK, places)
        result: Tensor = self.out(self._mixed(q_BHTK, k_BHSK, v_BHSK, mask))
        return result

    def _mixed(
        self,
        q_BHTK: Tensor,
        k_BHSK: Tensor,
        v_BHSK: Tensor,
        mask: KernelMask,
        scale: float | None = None,
    ) -> Tensor:
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BHSK,
            v_BHSK,
            attn_mask=mask.mask_B1TS,
            is_causal=mask.causal,
            dropout_p=self.dropout if self.training else 0.0,
            scale=scale,
        )
        return mixed_BHTK.transpose(1, 2).flatten(2)

    def _room(self, kind: torch.dtype) -> int:
        """How many numbers every head lacks to a width that GPU kernels take as it is."""
        if torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
        return -(self.out.in_features // self.heads) % (ALIGNED_BYTES // kind.itemsize)

    @property
    def _plain(self) -> bool:
        return isinstance(self.q_norm, nn.Identity)

    def _aligned(self, x_BTD: Tensor, mask: KernelMask, room: int) -> Tensor:
        """The same with zeros at the end of every head: they come with the weights, which are
        small, and not with copies of queries, keys and values, there and back."""
        width, count = self.out.in_features // self.heads, 3 * self.heads
        weight = F.pad(self.qkv.weight.view(count, width, -1), (0, 0, 0, room)).flatten(0, 1)
        bias: Tensor | None = self.qkv.bias
        if bias is not None:
            bias = F.pad(bias.view(count, width), (0, room)).flatten()
        made_BTCK = F.linear(x_BTD, weight, bias).view(*x_BTD.shape[:2], count, width + room)
        q, k, v = (part.transpose(1, 2) for part in made_BTCK.chunk(3, dim=2))
        mixed = self._mixed(q, k, v, mask, scale=1 / math.sqrt(width))
        out = F.pad(self.out.weight.view(-1, self.heads, width), (0, room)).flatten(1)
        return F.linear(mixed, out, self.out.bias)

    def weights(
        self,
        x_BTD: Tensor,
        mask: KernelMask,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        places: Tensor | int | None = None,
    ) -> Tensor:
        """How much each position looks at each other, by head: what ``forward``, given the
        same, mixes the values with."""
        q_BHTK, k_BHTK, _ = self.project(x_BTD, rotation)
        scores = q_BHTK @ k_BHTK.transpose(-1, -2) / math.sqrt(q_BHTK.shape[-1])
        if mask.mask_B1TS is not None:
            scores = scores.masked_fill(~mask.mask_B1TS, float("-inf"))
        elif mask.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        return scores.softmax(-1)

    def project(self, x_BTD: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, with their positions rotated in."""
        made, width = self.qkv(x_BTD), self.out.in_features
        if rotation is not None and self._plain:  # at once: a small model's time is in operations
            both, v = made.split((2 * width, width), dim=-1)
            q, k = rotate(self._by_head(both), rotation).chunk(2, dim=1)
            return q, k, self._by_head(v)
        q, k, v = map(self._by_head, made.chunk(3, dim=-1))
        q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q, k, v

    def _by_head(self, x_BTD: Tensor) -> Tensor:
        head_width = self.out.in_features // self.heads
        return x_BTD.view(*x_BTD.shape[:2], -1, head_width).transpose(1, 2)


class Memory:
    """What a decoder looks at: a source's keys and values for each of its layers, made once,
    and who may see them. One row a sentence, however many beams look at it."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], visibility: Visibility) -> None:
        self._keys, self._values = keys, values
        self.mask: KernelMask = visibility.kernel(1, keys[0].shape[2], keys[0].device)
        if self.mask.mask_B1TS is not None:  # in the form that the kernel would make each time
            added = torch.zeros(
                self.mask.mask_B1TS.shape, device=keys[0].device, dtype=keys[0].dtype
            )
            added.masked_fill_(~self.mask.mask_B1TS, float("-inf"))
            self.mask = KernelMask(added, causal=False)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self._keys[index], self._values[index]

    def select(self, rows_B: np.ndarray) -> None:
        """Keep these sentences, in this order."""
        mask = [] if self.mask.mask_B1TS is None else [self.mask.mask_B1TS]
        for part in (*self._keys, *self._values, *mask):
            move(part, 0, rows_B)
        count = len(rows_B)
        self._keys = [keys[:count] for keys in self._keys]
        self._values = [values[:count] for values in self._values]
        if mask:
            self.mask = KernelMask(mask[0][:count], causal=False)


class CrossAttention(nn.Module):
    """Queries from the target, keys and values from the source."""

    def __init__(self, stack: Stack, layer: int) -> None:
        super().__init__()
        self.heads, self.layer, self.dropout = stack.heads, layer, stack.inside
        self.q = nn.Linear(stack.width, stack.width, bias=stack.bias)
        self.kv = nn.Linear(stack.width, 2 * stack.width, bias=stack.bias)
        self.out = nn.Linear(stack.width, stack.width, bias=stack.bias)

    def forward(self, x_BTD: Tensor, memory: Memory) -> Tensor:
        """Rows of the target may outnumber the source's: as many beams look at each sentence.
        They are then queries of one row, and the source is not copied for them."""
        k_BHSK, v_BHSK = memory.layer(self.layer)
        q_BHTK = self._queries(x_BTD, len(k_BHSK))
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BHSK,
            v_BHSK,
            attn_mask=memory.mask.mask_B1TS,
            dropout_p=self.dropout if self.training else 0.0,
        )
        mixed_BTD = mixed_BHTK.transpose(1, 2).flatten(2).reshape(x_BTD.shape)
        result: Tensor = self.out(mixed_BTD)
        return result

    def remember(self, source_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of a source."""
        k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.kv(source_BSD).chunk(2, dim=-1)
        )
        return k, v

    def weights(self, x_BTD: Tensor, memory: Memory) -> Tensor:
        """How much each target position looks at each source position, by head."""
        k_BHSK, _ = memory.layer(self.layer)
        q_BHTK = self._queries(x_BTD, len(k_BHSK))
        scores = q_BHTK @ k_BHSK.transpose(-1, -2) / math.sqrt(q_BHTK.shape[-1])
        if memory.mask.mask_B1TS is not None:
            scores = scores + memory.mask.mask_B1TS
        return scores.softmax(-1)

    def _queries(self, x_BTD: Tensor, sentences: int) -> Tensor:
        q_BTD: Tensor = self.q(x_BTD)
        head_width = q_BTD.shape[-1] // self.heads
        return q_BTD.reshape(sentences, -1, self.heads, head_width).transpose(1, 2)


def rotary_angles(positions_BT: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines for Su et al. 2021, equation 34, in the half-split layout of Llama."""
    steps = torch.arange(0, head_width, 2, device=positions_BT.device, dtype=torch.float32)
    frequencies = base ** (-steps / head_width)
    angles = positions_BT[:, None, :, None].float() * frequencies
    return angles.cos(), angles.sin()


def rotary(positions_BT: Tensor, head_width: int, base: float) -> Rotation:
    cos, sin = rotary_angles(positions_BT, head_width, base)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Both halves at once: few operations, since a small model's time on a GPU is in their
    number."""
    if torch.is_grad_enabled() and x.requires_grad:
        rotated: Tensor = _Rotate.apply(x, *rotation)  # type: ignore[no-untyped-call]
        return rotated
    return _rotated(x, *rotation)


class _Rotate(torch.autograd.Function):
    """What turned forward turns back: half of what autograd would do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(gradient, cos, sin, -1), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, way: int = 1) -> Tensor:
    """In fp32, the sines'."""
    other = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, other, sin, value=way).to(x.dtype)
