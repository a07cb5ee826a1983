"""What a model is made of, as data. No torch: the ledger counts from these alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from headswap import config
from headswap.errors import UsageError, did_you_mean
from headswap.types import Table

if TYPE_CHECKING:
    from torch import nn


class Dim(NamedTuple):
    """A dimension as a formula and as a number: ("3d", 600)."""

    symbol: str
    size: int


Dims = tuple[Dim, ...]


class Cost(NamedTuple):
    """FLOPs of one token's forward pass in a part of a layer, as a formula and a number."""

    part: str
    formula: str
    flops: float


@dataclass(frozen=True)
class Stack:
    """A stack of Transformer layers; its variations are these fields, not subclasses. With
    ``decoder_layers`` there are two: ``layers`` encode a source, and those translate it.

    ``dropout`` falls on the embeddings and on what every sub-layer adds; ``inner_dropout`` on
    attention weights and inside feed-forwards. Unset it is the same, as in torch's own layers;
    the paper of 2017 has none. ``mixer`` may put a recurrent or convolutional layer (of
    ``kernel`` positions) in the attention's place."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    feedforward: int = 1024
    length: int = 256
    norm: Literal["layer", "rms"] = "rms"
    norm_at: Literal["pre", "post"] = "pre"
    norm_epsilon: float = 1e-6
    final_norm: bool = True
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "rotary"
    rotary_base: float = 10_000.0
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "silu"
    gated: bool = True
    bias: bool = False
    qk_norm: bool = False
    scale_embedding: bool = False
    embedding_norm: bool = False
    tied: bool = False
    head_bias: bool = False
    dropout: float = 0.0
    inner_dropout: float | None = None
    init: Literal["normal", "course"] = "normal"
    mixer: str = "attention"
    kernel: int = 5
    decoder_layers: int = 0
    shared_embedding: bool = True

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "feedforward", "length"):
            if getattr(self, name) < 1:
                raise UsageError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if self.mixer == "attention" and self.width % self.heads:
            raise UsageError(
                f"model.width {self.width} is not a multiple of model.heads {self.heads}",
                fix="change one of them",
            )
        if self.mixer != "attention" and self.decoder_layers:
            raise UsageError("a translator is made of attention layers", fix="leave model.mixer")
        if self.mixer == "bilstm" and self.width % 2:
            raise UsageError(f"a bidirectional LSTM of an odd width, {self.width}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise UsageError(f"model.kernel must be an odd number, not {self.kernel}")
        if (
            self.mixer == "attention"
            and self.positions == "rotary"
            and (self.width // self.heads) % 2
        ):
            raise UsageError(
                f"rotary positions need an even head width, not {self.width // self.heads}"
            )
        if self.decoder_layers < 0:
            raise UsageError(f"model.decoder_layers cannot be {self.decoder_layers}")
        for name in ("dropout", "inner_dropout"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise UsageError(f"model.{name} must be in [0, 1), not {getattr(self, name)}")

    @property
    def inside(self) -> float:
        """The dropout inside sub-layers."""
        return self.dropout if self.inner_dropout is None else self.inner_dropout


STYLES: Mapping[str, Mapping[str, Any]] = {
    # The course's model: torch.nn.TransformerEncoder's layer, Vaswani et al. 2017.
    "classic": {
        "norm": "layer",
        "norm_at": "post",
        "norm_epsilon": 1e-5,
        "final_norm": False,
        "positions": "sinusoidal",
        "activation": "relu",
        "gated": False,
        "bias": True,
        "scale_embedding": True,
        "tied": False,
        "head_bias": True,
        "init": "course",
    },
    # The block of Llama (causal) and EuroBERT (full): Touvron et al. 2023, section 2.2.
    "modern": {
        "norm": "rms",
        "norm_at": "pre",
        "norm_epsilon": 1e-6,
        "final_norm": True,
        "positions": "rotary",
        "activation": "silu",
        "gated": True,
        "bias": False,
        "scale_embedding": False,
        "tied": False,
        "head_bias": False,
        "init": "normal",
    },
}


def stack_from(table: Table) -> Stack:
    """A stack from a table whose optional ``style`` supplies the defaults."""
    style = table.get("style", "modern")
    if style not in STYLES:
        raise UsageError(f"unknown model.style {style!r}", fix=did_you_mean(str(style), STYLES))
    fields = {key: value for key, value in table.items() if key != "style"}
    return config.build(Stack, {**STYLES[style], **fields}, "model")


Pool = Literal["first", "last", "mean", "max", "concat"]


class HeadSpec(Protocol):
    """A head as data: the tensors it has, what it costs when a ``scored`` share of positions
    reaches it, and how it is built. ``embedding`` is the backbone's, for heads that share its
    weights."""

    def tensors(self) -> dict[str, Dims]: ...
    def costs(self, scored: float) -> list[Cost]: ...
    def build(self, embedding: nn.Embedding) -> nn.Module: ...
