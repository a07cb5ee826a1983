"""Mixers: the part of a layer through which positions hear of each other.

Attention, a recurrent and a convolutional layer are drop-in parts of the same stack. A new one
is a class with a ``forward``, an entry in ``MIXERS`` that says what it is made of and what it
costs, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from headswap.errors import UsageError
from headswap.nn.attention import Attention
from headswap.nn.spec import Cost, Dim, Dims, Stack
from headswap.nn.visibility import PADDING, Visibility


@dataclass(frozen=True)
class Mixer:
    """A kind of mixer as data. ``tensors`` are its parameters, ``costs`` the FLOPs of a token's
    forward pass in a sequence of this length; ``order`` is the cost of a layer, ``steps`` the
    operations that must follow each other, ``path`` how far apart two positions are (Vaswani
    et al. 2017, table 1). ``prepare`` turns a visibility into what ``forward`` is given."""

    module: str
    build: Callable[[Stack, int], nn.Module]
    tensors: Callable[[Stack], dict[str, Dims]]
    costs: Callable[[Stack, float], list[Cost]]
    order: str
    steps: str
    path: str
    prepare: Callable[[Visibility, int, int, torch.device], Any]


@dataclass(frozen=True)
class Pieces:
    """The documents of a batch, each a row of its own: ``places_SL`` are their positions in
    the flattened batch, ``lengths_S`` (on the CPU) how many are real. None where every row is
    one document and has no padding that could be seen. ``causal`` hides the future."""

    causal: bool
    places_SL: Tensor | None = None
    lengths_S: Tensor | None = None
    real_SL: Tensor | None = None

    @staticmethod
    def of(visibility: Visibility, queries: int, keys: int, device: torch.device) -> Pieces:
        causal = visibility.rule == "causal"
        if visibility.places_BT is not None or visibility.start is not None:
            raise UsageError(
                "only models of attention layers decode step by step",
                fix="train one with model.mixer=attention",
            )
        if visibility.documents_BS is None:
            return Pieces(causal)
        documents_BS = visibility.documents_BS.numpy(force=True)
        new_BS = np.ones_like(documents_BS, dtype=bool)
        new_BS[:, 1:] = documents_BS[:, 1:] != documents_BS[:, :-1]
        starts = np.flatnonzero(new_BS)
        lengths = np.diff(np.append(starts, documents_BS.size))
        kept = documents_BS.ravel()[starts] != PADDING
        starts, lengths = starts[kept], lengths[kept]
        inside_SL = np.arange(lengths.max(initial=1)) < lengths[:, None]
        places_SL = np.where(inside_SL, starts[:, None] + np.arange(inside_SL.shape[1]), 0)
        return Pieces(
            causal,
            torch.from_numpy(places_SL).to(device),
            torch.from_numpy(lengths),
            torch.from_numpy(inside_SL).to(device),
        )

    def cut(self, x_BTD: Tensor) -> Tensor:
        """Every document as a row, zeros after it."""
        if self.places_SL is None or self.real_SL is None:
            return x_BTD
        return x_BTD.flatten(0, 1)[self.places_SL] * self.real_SL[..., None]

    def join(self, y_SLD: Tensor, like_BTD: Tensor) -> Tensor:
        """The documents back in their places, zeros where there are none."""
        if self.places_SL is None:
            return y_SLD
        flat = torch.zeros_like(like_BTD, dtype=y_SLD.dtype).flatten(0, 1)
        flat[self.places_SL[self.real_SL]] = y_SLD[self.real_SL]
        return flat.view(like_BTD.shape)


class Recurrent(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber 1997), forwards, or with half the
    width in each direction."""

    def __init__(self, stack: Stack, both: bool) -> None:
        super().__init__()
        self.both = both
        width = stack.width // 2 if both else stack.width
        self.lstm = nn.LSTM(
            stack.width, width, bias=stack.bias, batch_first=True, bidirectional=both
        )

    def forward(self, x_BTD: Tensor, pieces: Pieces, *_: object) -> Tensor:
        if self.both and pieces.causal:
            raise UsageError(
                "a bidirectional LSTM sees the future, which a causal model must not",
                fix="use model.mixer=lstm, or another objective",
            )
        if pieces.lengths_S is None:
            whole: Tensor = self.lstm(x_BTD)[0]
            return whole
        packed = pack_padded_sequence(
            pieces.cut(x_BTD), pieces.lengths_S, batch_first=True, enforce_sorted=False
        )
        rows_SLD, _lengths = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return pieces.join(rows_SLD, x_BTD)


class Convolution(nn.Module):
    """Every position from the ``kernel`` positions around it, or up to it when causal."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.kernel = stack.kernel
        self.convolution = nn.Conv1d(stack.width, stack.width, stack.kernel, bias=stack.bias)

    def forward(self, x_BTD: Tensor, pieces: Pieces, *_: object) -> Tensor:
        reach = self.kernel - 1
        before = reach if pieces.causal else reach // 2
        rows_SDL = F.pad(pieces.cut(x_BTD).transpose(1, 2), (before, reach - before))
        return pieces.join(self.convolution(rows_SDL).transpose(1, 2), x_BTD)


def _attention_tensors(stack: Stack) -> dict[str, Dims]:
    d = stack.width
    found = {
        **linear("qkv", Dim("d", d), Dim("3d", 3 * d), stack.bias),
        **linear("out", Dim("d", d), Dim("d", d), stack.bias),
    }
    if stack.qk_norm:
        width = Dim("d/h", d // stack.heads)
        found |= {"q_norm.weight": (width,), "k_norm.weight": (width,)}
    return found


def _attention_costs(stack: Stack, length: float) -> list[Cost]:
    d = stack.width
    return [
        Cost("queries, keys, values", "2·3d²", 6 * d * d),
        Cost("scores and mixing", "4·n·d", 4 * length * d),
        Cost("output", "2·d²", 2 * d * d),
    ]


def _lstm_tensors(stack: Stack, both: bool) -> dict[str, Dims]:
    d = stack.width
    width = Dim("d/2", d // 2) if both else Dim("d", d)
    gates = Dim("2d", 2 * d) if both else Dim("4d", 4 * d)
    found: dict[str, Dims] = {}
    for end in ("", "_reverse") if both else ("",):
        found |= {
            f"lstm.weight_ih_l0{end}": (gates, Dim("d", d)),
            f"lstm.weight_hh_l0{end}": (gates, width),
        }
        if stack.bias:
            found |= {f"lstm.bias_{which}_l0{end}": (gates,) for which in ("ih", "hh")}
    return found


def _lstm_costs(stack: Stack, length: float, both: bool) -> list[Cost]:
    d = stack.width
    if both:
        return [Cost("gates of both directions", "2·2(2d²+d²)", 12 * d * d)]
    return [Cost("gates", "2(4d²+4d²)", 16 * d * d)]


def _convolution_tensors(stack: Stack) -> dict[str, Dims]:
    d = Dim("d", stack.width)
    found: dict[str, Dims] = {"convolution.weight": (d, d, Dim("k", stack.kernel))}
    return found | ({"convolution.bias": (d,)} if stack.bias else {})


def _convolution_costs(stack: Stack, length: float) -> list[Cost]:
    return [Cost("convolution", "2·k·d²", 2 * stack.kernel * stack.width**2)]


def linear(name: str, inputs: Dim, outputs: Dim, bias: bool) -> dict[str, Dims]:
    """The tensors of a linear layer."""
    found: dict[str, Dims] = {f"{name}.weight": (outputs, inputs)}
    return found | ({f"{name}.bias": (outputs,)} if bias else {})


def _kernel(visibility: Visibility, queries: int, keys: int, device: torch.device) -> Any:
    return visibility.kernel(queries, keys, device)


MIXERS: Mapping[str, Mixer] = {
    "attention": Mixer(
        "attention", Attention, _attention_tensors, _attention_costs,
        "n²·d + n·d²", "1", "1", _kernel,
    ),
    "lstm": Mixer(
        "recurrent", lambda stack, _: Recurrent(stack, both=False),
        lambda stack: _lstm_tensors(stack, both=False),
        lambda stack, length: _lstm_costs(stack, length, both=False),
        "n·d²", "n", "n", Pieces.of,
    ),
    "bilstm": Mixer(
        "recurrent", lambda stack, _: Recurrent(stack, both=True),
        lambda stack: _lstm_tensors(stack, both=True),
        lambda stack, length: _lstm_costs(stack, length, both=True),
        "n·d²", "n", "n", Pieces.of,
    ),
    "convolution": Mixer(
        "convolving", lambda stack, _: Convolution(stack),
        _convolution_tensors, _convolution_costs,
        "k·n·d²", "1", "n/k", Pieces.of,
    ),
}  # fmt: skip
