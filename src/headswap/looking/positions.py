"""How a model tells places apart: the table of its positions and how alike two of them are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from headswap.nn.attention import rotary_angles
from headswap.nn.backbone import Backbone, EncoderDecoder, sinusoid
from headswap.use import Trained


@dataclass(frozen=True)
class Positions:
    """``table_TD`` holds a row a position; ``alike`` the mean similarity (a cosine) of two
    positions by their distance. A model without positions has an empty table."""

    kind: str
    table_TD: np.ndarray
    alike: list[float]


def positions(trained: Trained, most: int = 256) -> Positions:
    backbone = trained.model.backbone
    stack = backbone.encoder if isinstance(backbone, EncoderDecoder) else backbone
    assert isinstance(stack, Backbone)
    kind, size = stack.stack.positions, min(most, stack.stack.length)
    places = torch.arange(size)[None]
    if kind == "sinusoidal":
        table = sinusoid(places, stack.stack.width)[0].numpy()
    elif kind == "learned":
        table = stack.position_embedding.weight.detach().float().cpu().numpy()[:size]
    elif kind == "rotary":
        head = stack.stack.width // stack.stack.heads
        cosines, sines = rotary_angles(places, head, stack.stack.rotary_base)
        table = torch.cat([cosines, sines], -1)[0, 0].numpy()
    else:
        table = np.zeros((size, 0), dtype=np.float32)
    return Positions(kind, table, alike(table))


def alike(table_TD: np.ndarray) -> list[float]:
    """The mean cosine of two rows by how far apart they are."""
    if not table_TD.shape[1]:
        return []
    norms = np.linalg.norm(table_TD, axis=1, keepdims=True)
    unit = table_TD / np.maximum(norms, 1e-12)
    cosines = unit @ unit.T
    return [float(np.diagonal(cosines, distance).mean()) for distance in range(len(table_TD))]
