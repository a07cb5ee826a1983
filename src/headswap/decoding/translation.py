"""Translating many sentences: sorted by length, a batch at a time, given back in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from headswap.decoding.beam import Beam, Hypothesis, search
from headswap.decoding.stepper import Stepper
from headswap.decoding.strategies import Sampling, extend
from headswap.errors import UsageError
from headswap.nn.attention import CrossAttention
from headswap.nn.backbone import EncoderDecoder
from headswap.nn.model import Model
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives.base import pad_rows
from headswap.objectives.language import HEAD
from headswap.objectives.translate import source_inputs
from headswap.text.tokenizer import MASK, SEP, Tokenizer
from headswap.types import Ids

BATCH_TOKENS = {"cpu": 4_000, "cuda": 24_000}


@dataclass(frozen=True)
class Search:
    """How a translation is looked for: a beam, greedily (``width`` 1), or drawn (a
    ``sampling`` with a temperature). A translation has at most ``ratio`` times its source's
    tokens and ``more`` beside them. Without ``scored`` a greedy one has no score, and is
    found faster."""

    beam: Beam = field(default_factory=Beam)
    sampling: Sampling = field(default_factory=Sampling)
    ratio: float = 2.0
    more: int = 20
    scored: bool = True

    def __post_init__(self) -> None:
        if self.sampling.temperature and self.beam.width > 1:
            raise UsageError("a beam does not draw", fix="use --beam 1 with --temperature")

    def limit(self, source: int) -> int:
        return int(self.ratio * source) + self.more


@torch.no_grad()
def translate(
    model: Model, tokens: Tokenizer, sources: Sequence[Ids], how: Search = Search()
) -> list[list[Hypothesis]]:
    """The hypotheses for each source (its ids as the encoder reads them), best first."""
    found: list[list[Hypothesis]] = [[] for _ in sources]
    never = [tokens.pad, tokens.bos, tokens.unk, tokens.special(MASK), tokens.special(SEP)]
    forbidden = tuple(token for token in never if token not in (None, tokens.eos))
    stack = model.backbone.stack
    most = stack.length - 1 if stack.positions == "learned" else 10**9
    for group in _batches([len(source) for source in sources], _room(model, how)):
        some = [sources[i] for i in group]
        limits = [min(how.limit(len(source)), most) for source in some]
        start = [np.array([tokens.bos]) for _ in some]
        stepper = Stepper(model, start, max(limits), HEAD, source_inputs(some, tokens))
        if how.beam.width > 1:
            results = search(stepper, limits, tokens.eos, how.beam, forbidden)
        else:
            ids = extend(
                stepper,
                len(some),
                limits,
                tokens.eos,
                how.sampling,
                forbidden,
                names=group,
                scored=how.scored,
            )
            power = how.beam.penalty
            results = [[Hypothesis(row.ids, row.score / row.length**power)] for row in ids]
        for i, hypotheses in zip(group, results, strict=True):
            found[i] = hypotheses
    return found


def _room(model: Model, how: Search) -> int:
    return max(1, BATCH_TOKENS.get(model.device.type, 1_500) // max(1, how.beam.width // 2))


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices by similar length, the longest first, in batches of so many padded tokens."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and (len(group) + 1) * lengths[group[0]] > tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


@torch.no_grad()
def alignment(model: Model, tokens: Tokenizer, source: Ids, target: Sequence[int]) -> list[int]:
    """For each target token the source token it looked at most: the mean over the heads of
    the last layer but one of the decoder's cross-attention."""
    backbone = model.backbone
    assert isinstance(backbone, EncoderDecoder)
    if not len(target):
        return []
    memory = backbone.encode(source_inputs([source], tokens).to(model.device))
    layers = list(backbone.decoder.layers)
    cross = layers[max(0, len(layers) - 2)].cross
    assert isinstance(cross, CrossAttention)
    seen: list[torch.Tensor] = []
    hook = cross.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        read = pad_rows([np.array([tokens.bos, *target])], tokens.pad)
        ids = torch.from_numpy(read).to(model.device)
        backbone(Inputs(ids, Visibility("causal")), None, memory)
    finally:
        hook.remove()
    weights_HTS = cross.weights(seen[0], memory)[0]
    # The weights at the position that reads a token belong to the token it predicts next.
    best: list[int] = weights_HTS.mean(0)[: len(target)].argmax(-1).tolist()
    return best
