"""Multi-head attention (Vaswani et al. 2017, section 3.2) and its key-value cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headswap.nn.spec import Stack
from headswap.nn.visibility import KernelMask

Rotation = tuple[Tensor, Tensor]


class Cache:
    """Keys and values of the positions decoded so far, in buffers allocated once.

    The slot of a key is its position, so rows of different lengths live side by side: a
    query at position p looks at slots 0 to p, which are its own row's.
    """

    def __init__(
        self, stack: Stack, batch: int, size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (batch, stack.heads, size, stack.width // stack.heads)
        self.size = size
        self._keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(stack.layers)]
        self._values = [torch.zeros_like(keys) for keys in self._keys]

    def append(
        self, layer: int, k_BHTK: Tensor, v_BHTK: Tensor, places_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values at their places; return all of the layer's."""
        keys, values = self._keys[layer], self._values[layer]
        rows_B1 = torch.arange(len(places_BT), device=places_BT.device)[:, None]
        keys[rows_B1, :, places_BT] = k_BHTK.transpose(1, 2).to(keys.dtype)
        values[rows_B1, :, places_BT] = v_BHTK.transpose(1, 2).to(values.dtype)
        return keys, values

    def select(self, rows_B: Tensor) -> None:
        """Keep these rows, in this order."""
        self._keys = [keys[rows_B] for keys in self._keys]
        self._values = [values[rows_B] for values in self._values]


class Attention(nn.Module):
    """Self-attention; one matrix makes queries, keys and values."""

    def __init__(self, stack: Stack, layer: int) -> None:
        super().__init__()
        self.heads, self.layer, self.dropout = stack.heads, layer, stack.dropout
        self.qkv = nn.Linear(stack.width, 3 * stack.width, bias=stack.bias)
        self.out = nn.Linear(stack.width, stack.width, bias=stack.bias)
        head_width = stack.width // stack.heads
        if stack.qk_norm:
            self.q_norm: nn.Module = nn.RMSNorm(head_width, eps=stack.norm_epsilon)
            self.k_norm: nn.Module = nn.RMSNorm(head_width, eps=stack.norm_epsilon)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(
        self,
        x_BTD: Tensor,
        mask: KernelMask,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        places_BT: Tensor | None = None,
    ) -> Tensor:
        q_BHTK, k_BHSK, v_BHSK = self.project(x_BTD, rotation)
        if cache is not None:
            assert places_BT is not None
            k_BHSK, v_BHSK = cache.append(self.layer, k_BHSK, v_BHSK, places_BT)
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BHSK,
            v_BHSK,
            attn_mask=mask.mask_B1TS,
            is_causal=mask.causal,
            dropout_p=self.dropout if self.training else 0.0,
        )
        result: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return result

    def project(self, x_BTD: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, with their positions rotated in."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x_BTD).chunk(3, dim=-1)
        )
        q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q, k, v


def rotary_angles(positions_BT: Tensor, head_width: int, base: float) -> Rotation:
    """Cosines and sines for Su et al. 2021, equation 34, in the half-split layout of Llama."""
    steps = torch.arange(0, head_width, 2, device=positions_BT.device, dtype=torch.float32)
    frequencies = base ** (-steps / head_width)
    angles = positions_BT[:, None, :, None].float() * frequencies
    return angles.cos(), angles.sin()


def rotate(x_BHTK: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    a, b = x_BHTK.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x_BHTK.dtype)
