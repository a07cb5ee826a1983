"""From sentences to translated sentences, with a translator and its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headswap.decoding.beam import Beam
from headswap.decoding.translation import Search, alignment, translate
from headswap.nn.model import Model
from headswap.objectives import Translate
from headswap.report import bleu
from headswap.text.pairs import PairText
from headswap.text.tokenizer import Tokenizer
from headswap.types import Table

GREEDY = Search(Beam(1), scored=False)


@dataclass(frozen=True)
class Translation:
    """A text, its score (the log-probability over the length to the penalty's power), and on
    request which source piece each of its pieces looked at."""

    text: str
    score: float
    alignment: list[tuple[str, str]] | None = None


class Translator:
    """A model that translates, one direction at a time. ``cut_off`` counts the texts whose end
    it did not read."""

    def __init__(self, model: Model, tokens: Tokenizer, objective: Translate) -> None:
        self.model, self.tokens, self.objective = model, tokens, objective
        self.cut_off = 0

    def __call__(
        self,
        texts: Sequence[str],
        how: Search = Search(),
        *,
        backwards: bool = False,
        aligned: bool = False,
    ) -> list[list[Translation]]:
        """The translations of each text, best first; of an empty text an empty one."""
        places = [index for index, text in enumerate(texts) if text.strip()]
        encoded = self.tokens.encode([texts[index] for index in places])
        self.cut_off += sum(len(ids) > self.room for ids in encoded)
        sources = [
            self.objective.source(ids[: self.room], self.tokens, backwards) for ids in encoded
        ]
        found: list[list[Translation]] = [[Translation("", 0.0)] for _ in texts]
        training = self.model.training
        self.model.eval()
        for index, source, some in zip(
            places, sources, translate(self.model, self.tokens, sources, how), strict=True
        ):
            found[index] = [
                Translation(
                    self.tokens.decode(hypothesis.ids),
                    hypothesis.score,
                    self._aligned(source, hypothesis.ids) if aligned else None,
                )
                for hypothesis in some
            ]
        self.model.train(training)
        return found

    @property
    def room(self) -> int:
        """How many tokens of a sentence the encoder reads."""
        return self.model.backbone.stack.length - 2

    def _aligned(self, source: np.ndarray, ids: Sequence[int]) -> list[tuple[str, str]]:
        places = alignment(self.model, self.tokens, source, ids)
        read, written = self.tokens.pieces(source.tolist()), self.tokens.pieces(ids)
        return [(piece, read[place]) for piece, place in zip(written, places, strict=True)]


def judge_of(
    tokens: Tokenizer, objective: Translate, pairs: Sequence[PairText]
) -> Callable[[Model], dict[str, float]]:
    """A function that scores a model's greedy translations while it trains."""

    def judge(model: Model) -> dict[str, float]:
        found = Translator(model, tokens, objective)([pair.source for pair in pairs], GREEDY)
        said = [some[0].text for some in found]
        return {"bleu": bleu.quick(said, [pair.target for pair in pairs])}

    return judge


def judged(
    model: Model, tokens: Tokenizer, objective: Translate, pairs: Sequence[PairText]
) -> tuple[str, Table]:
    """The translations of a split, one JSON line each, and their scores."""
    found = Translator(model, tokens, objective)([pair.source for pair in pairs])
    said = [some[0] for some in found]
    texts, right = [one.text for one in said], [pair.target for pair in pairs]
    return lines(pairs, said), bleu.scores(texts, right, objective.language)


def lines(pairs: Sequence[PairText], said: Sequence[Translation]) -> str:
    rows = [
        {
            "index": index,
            "source": pair.source,
            "target": pair.target,
            "translation": one.text,
            "score": one.score,
        }
        for index, (pair, one) in enumerate(zip(pairs, said, strict=True))
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
