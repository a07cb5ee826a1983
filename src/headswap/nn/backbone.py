"""The backbone: ids to hidden states. It sees no answers and knows no task."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from headswap.errors import DataError
from headswap.nn.attention import Cache, Memory, Rotation, rotary
from headswap.nn.embedding import Embedding
from headswap.nn.layers import Layer, make_norm
from headswap.nn.mixers import MIXERS
from headswap.nn.spec import Stack
from headswap.nn.visibility import Inputs


class Backbone(nn.Module):
    """One stack of layers. With ``cross`` each layer also looks at a memory: a decoder."""

    def __init__(
        self,
        stack: Stack,
        vocabulary: int,
        embedding: Embedding | None = None,
        cross: bool = False,
    ) -> None:
        super().__init__()
        self.stack, self.vocabulary = stack, vocabulary
        self.embedding = embedding or Embedding(vocabulary, stack.width)
        if stack.positions == "learned":
            self.position_embedding = nn.Embedding(stack.length, stack.width)
        self.embedding_norm = make_norm(stack) if stack.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(stack.dropout)
        self.layers = nn.ModuleList(Layer(stack, index, cross) for index in range(stack.layers))
        self.final_norm = make_norm(stack) if stack.final_norm else nn.Identity()

    def forward(
        self, inputs: Inputs, cache: Cache | None = None, memory: Memory | None = None
    ) -> Tensor:
        """hidden_BTD. With a cache, ``inputs`` are the new tokens only."""
        ids_BT = inputs.ids_BT
        positions_BT = inputs.positions_BT
        if positions_BT is None:
            positions_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device)[None]
        visibility, queries = inputs.visibility, ids_BT.shape[1]
        places: Tensor | int | None = visibility.places_BT
        keys = queries if cache is None else cache.size
        if visibility.start is not None:
            places, keys = visibility.start, visibility.start + queries
        sees = MIXERS[self.stack.mixer].prepare(visibility, queries, keys, ids_BT.device)
        x_BTD = self.embed(ids_BT, positions_BT)
        rotation = self._rotation(positions_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, sees, rotation, cache, places, memory)
        hidden_BTD: Tensor = self.final_norm(x_BTD)
        return hidden_BTD

    def embed(self, ids_BT: Tensor, positions_BT: Tensor) -> Tensor:
        x_BTD: Tensor = self.embedding(ids_BT)
        if self.stack.scale_embedding:
            x_BTD = x_BTD * math.sqrt(self.stack.width)
        if self.stack.positions == "sinusoidal":
            x_BTD = x_BTD + sinusoid(positions_BT, self.stack.width).to(x_BTD.dtype)
        elif self.stack.positions == "learned":
            x_BTD = x_BTD + self.position_embedding(positions_BT)
        return self.dropout(self.embedding_norm(x_BTD))  # type: ignore[no-any-return]

    def check(self, ids_BT: Tensor) -> None:
        """Refuse ids outside the vocabulary before a GPU turns them into an assert."""
        if ids_BT.numel() and not 0 <= int(ids_BT.min()) <= int(ids_BT.max()) < self.vocabulary:
            raise DataError(
                f"a token id lies outside the vocabulary of {self.vocabulary}",
                fix="was this text encoded with another tokenizer?",
            )

    def depth(self, name: str) -> int:
        """How deep a parameter lies below the heads: 1 for the top layer and final norm."""
        if name.startswith("layers."):
            return self.stack.layers - int(name.split(".")[1])
        return 1 if name.startswith("final_norm") else self.stack.layers + 1

    def _rotation(self, positions_BT: Tensor) -> Rotation | None:
        if self.stack.positions != "rotary" or self.stack.mixer != "attention":
            return None
        head_width = self.stack.width // self.stack.heads
        return rotary(positions_BT, head_width, self.stack.rotary_base)


class EncoderDecoder(nn.Module):
    """Two stacks from the same layers (Vaswani et al. 2017, section 3.1): the encoder sees all
    of the source, the decoder its own past and, through cross-attention, the source.

    It is a backbone as well: ``Inputs`` with a source go in, the decoder's hidden states come
    out.
    """

    def __init__(self, stack: Stack, vocabulary: int) -> None:
        super().__init__()
        self.stack, self.vocabulary = stack, vocabulary
        self.embedding = Embedding(vocabulary, stack.width)
        shared = self.embedding if stack.shared_embedding else None
        self.encoder = Backbone(replace(stack, decoder_layers=0), vocabulary, shared)
        inner = replace(stack, layers=stack.decoder_layers, decoder_layers=0)
        self.decoder = Backbone(inner, vocabulary, self.embedding, cross=True)

    def forward(
        self, inputs: Inputs, cache: Cache | None = None, memory: Memory | None = None
    ) -> Tensor:
        """hidden_BTD of the target. Without a memory the source is encoded first."""
        if memory is None:
            assert inputs.source is not None
            memory = self.encode(inputs.source)
        hidden_BTD: Tensor = self.decoder(inputs, cache, memory)
        return hidden_BTD

    def encode(self, source: Inputs) -> Memory:
        """The source's keys and values for every layer of the decoder."""
        hidden_BSD = self.encoder(source)
        pairs = [layer.cross.remember(hidden_BSD) for layer in self.decoder.layers]  # type: ignore[operator, union-attr]
        keys, values = (list(part) for part in zip(*pairs, strict=True))
        return Memory(keys, values, source.visibility.from_elsewhere())

    def check(self, ids_BT: Tensor) -> None:
        self.encoder.check(ids_BT)

    def depth(self, name: str) -> int:
        """The decoder's layers lie above the encoder's."""
        part, _, rest = name.partition(".")
        if part == "decoder":
            return self.decoder.depth(rest)
        if part == "encoder":
            return self.stack.decoder_layers + self.encoder.depth(rest)
        return self.stack.decoder_layers + self.stack.layers + 1


def sinusoid(positions_BT: Tensor, width: int) -> Tensor:
    """Vaswani et al. 2017, section 3.5: sines at even places, cosines at odd ones."""
    steps = torch.arange(0, width, 2, device=positions_BT.device, dtype=torch.float32)
    angles = positions_BT[..., None].float() * torch.exp(steps * (-math.log(10_000.0) / width))
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return table[..., :width]
