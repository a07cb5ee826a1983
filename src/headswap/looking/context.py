"""One word in several sentences: how far its meanings lie apart, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headswap.errors import UsageError
from headswap.looking.reading import Read, read
from headswap.nn.backbone import EncoderDecoder
from headswap.use import Trained


@dataclass(frozen=True)
class Meanings:
    """``distances_LNN`` are cosine distances between the word's vectors in N sentences: of
    the static embedding first, where they are all zero when the pieces are the same, then
    after each layer."""

    word: str
    sentences: list[str]
    distances_LNN: np.ndarray

    @property
    def by_layer(self) -> list[float]:
        """The mean distance between two sentences, layer by layer."""
        count = len(self.sentences)
        upper = np.triu_indices(count, 1)
        return [float(table[upper].mean()) for table in self.distances_LNN]


def meanings(trained: Trained, word: str, sentences: Sequence[str]) -> Meanings:
    """The vectors of a word in its sentences, compared."""
    if len(sentences) < 2:
        raise UsageError("a word has no context alone", fix="give two sentences or more")
    found = [_vectors(trained, word, sentence) for sentence in sentences]
    vectors_LND = np.stack(found, axis=1)
    norms = np.linalg.norm(vectors_LND, axis=-1, keepdims=True)
    unit = vectors_LND / np.maximum(norms, 1e-12)
    distances = np.clip(1 - unit @ unit.transpose(0, 2, 1), 0, 2)
    return Meanings(word, list(sentences), distances)


def _vectors(trained: Trained, word: str, sentence: str) -> np.ndarray:
    """One vector a layer: the mean over the word's pieces, the embedding's first."""
    reading = read(trained, sentence)
    places = _where(trained, word, reading)
    if not places:
        raise UsageError(f"{word!r} is not in {sentence!r}", fix="give sentences that hold it")
    backbone = trained.model.eval().backbone
    stack = backbone.encoder if isinstance(backbone, EncoderDecoder) else backbone
    caught: list[torch.Tensor] = []
    watched = [stack.embedding, *stack.layers]
    handles = [
        part.register_forward_hook(lambda module, given, result: caught.append(result[0]))
        for part in watched
    ]
    try:
        with torch.no_grad():
            stack(reading.inputs.source or reading.inputs)
    finally:
        for handle in handles:
            handle.remove()
    return np.stack([hidden_TD[places].float().mean(0).cpu().numpy() for hidden_TD in caught])


def _where(trained: Trained, word: str, reading: Read) -> list[int]:
    """The places of the word's pieces: the first that spell it and nothing more, and are no part
    of a longer word."""
    tokens, inputs = trained.tokens, reading.inputs.source or reading.inputs
    ids: list[int] = inputs.ids_BT[0].tolist()
    ends = [len(tokens.decode(ids[:count])) for count in range(len(ids) + 1)]
    text = tokens.decode(ids)
    alone = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    for found in re.finditer(alone, text, re.IGNORECASE):
        places = [
            place
            for place in range(len(ids))
            if ends[place] < found.end() and ends[place + 1] > found.start()
        ]
        spelled = text[ends[places[0]] : ends[places[-1] + 1]] if places else ""
        if spelled.strip() == found[0]:
            return places
    return []
