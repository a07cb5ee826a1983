"""Masked language modelling: predict hidden tokens from both sides (Devlin et al. 2019).

With ``next_sentence`` the rows are pairs of sentences and a second head says whether the
second one really followed the first: section 3.1, tasks 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from headswap.errors import UsageError
from headswap.nn.heads import ClassifierSpec
from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, Stack
from headswap.nn.visibility import Inputs, Rule, Visibility
from headswap.objectives.base import Batch, Context, Objective, Targets, Term, pad_rows, register
from headswap.objectives.language import packed, scored, token_head, token_loss
from headswap.text.loader import Window
from headswap.text.tokenizer import MASK, SEP, Tokenizer
from headswap.types import Ids

TERM, PAIR = "masked", "pair"
SHORTEST_PAIR = 8


@register
@dataclass(frozen=True)
class Masked:
    """``rate`` of the tokens is hidden; with ``rate_end`` it moves there over the training.
    Of the hidden ones ``keep`` stay as they are, ``random`` become any token, and the rest
    become ``<mask>``. ``whole_words`` hides all pieces of a word together."""

    rate: float = 0.15
    rate_end: float | None = None
    keep: float = 0.1
    random: float = 0.1
    whole_words: bool = False
    next_sentence: bool = False

    name: ClassVar[str] = "masked"
    reads: ClassVar[type] = Window
    specials: ClassVar[tuple[str, ...]] = (MASK, SEP)

    def __post_init__(self) -> None:
        for name in ("rate", "rate_end"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise UsageError(f"masked.{name} must lie between 0 and 1, not {value}")
        if self.keep < 0 or self.random < 0 or self.keep + self.random > 1:
            raise UsageError("masked.keep and masked.random are shares that add up to at most 1")

    @property
    def scored(self) -> float:
        return self.rate

    @property
    def visibility(self) -> Rule:
        return "full"

    def heads(self, stack: Stack, vocabulary: int) -> dict[str, HeadSpec]:
        heads = token_head(stack, vocabulary)
        if self.next_sentence:
            heads[PAIR] = ClassifierSpec(stack.width, 2, "first", dense=True, bias=True)
        return heads

    def batch(self, examples: Sequence[Window], context: Context) -> Batch:
        if self.next_sentence:
            return self._pairs(examples, context)
        length = context.stack.length
        table = pad_rows([window.ids[:length] for window in examples], context.tokens.pad)
        visibility, positions = packed(table, context.tokens, "full")
        return self._hide(table, visibility, positions, context)

    def loss(self, model: Model, batch: Batch) -> dict[str, Term]:
        hidden_BTD = model.backbone(batch.inputs)
        terms = {TERM: token_loss(model, hidden_BTD, batch, TERM, 0.0)}
        if PAIR in batch.targets:
            target = batch.targets[PAIR]
            logits_BC = model.heads[PAIR](hidden_BTD, target.lengths_B).float()
            each_B = F.cross_entropy(logits_BC, target.answers_N, reduction="none")
            hits_B = logits_BC.detach().argmax(-1) == target.answers_N
            terms[PAIR] = Term(
                (each_B * target.weights_N).sum(), correct=(hits_B * target.weights_N).sum()
            )
        return terms

    def views(self) -> Sequence[Objective]:
        return [self]

    def _hide(
        self,
        table: Ids,
        visibility: Visibility,
        positions: torch.Tensor | None,
        context: Context,
    ) -> Batch:
        tokens, noise = context.tokens, context.noise
        flat = table.ravel()
        marks = np.array([tokens.pad, tokens.bos, tokens.eos, tokens.special(SEP)])
        free = np.flatnonzero(~np.isin(flat, marks))
        where = np.sort(self._choose(flat, free, context))
        hidden = flat.copy()
        fate = noise.random(len(where))
        changed = where[fate >= self.keep]
        mask = tokens.special(MASK)
        assert mask is not None
        hidden[changed] = mask
        drawn = where[(fate >= self.keep) & (fate < self.keep + self.random)]
        hidden[drawn] = noise.integers(0, tokens.size, len(drawn))
        inputs = Inputs(torch.from_numpy(hidden.reshape(table.shape)), visibility, positions)
        real = int((table != tokens.pad).sum())
        targets = {TERM: scored(flat[where], where, context)}
        return Batch(inputs, targets, {TERM: float(len(where))}, real)

    def _choose(self, flat: Ids, free: Ids, context: Context) -> Ids:
        """The hidden positions: exactly the rate's share of what may be hidden."""
        rate = self.rate
        if self.rate_end is not None:
            rate += (self.rate_end - self.rate) * context.progress
        wanted = min(len(free), max(1, round(rate * len(free))))
        if not self.whole_words:
            return context.noise.permutation(free)[:wanted]
        begins = context.tokens.word_starts()[flat[free]]
        begins |= np.diff(free, prepend=-2) != 1
        word_of = np.cumsum(begins) - 1
        turn = context.noise.permutation(int(word_of[-1]) + 1) if len(free) else np.zeros(0, int)
        order = np.argsort(turn[word_of], kind="stable")
        ends = np.cumsum(np.bincount(turn[word_of], minlength=len(turn)))
        enough = int(ends[np.searchsorted(ends, wanted)]) if len(ends) else 0
        return free[order[:enough]]

    def _pairs(self, examples: Sequence[Window], context: Context) -> Batch:
        """``<s> A <sep> B </s>``: A and B from one document, or B from another row's."""
        tokens, length = context.tokens, context.stack.length
        spans = [
            _longest_document(window.ids[:length], tokens)[: length - 3] for window in examples
        ]
        halves = [_split(span, tokens, context.noise) for span in spans]
        false = context.noise.random(len(halves)) < 0.5
        rows, whole = [], []
        for index, (first, second) in enumerate(halves):
            if false[index] and len(halves) > 1:
                other = index + 1 + int(context.noise.integers(0, len(halves) - 1))
                second = halves[other % len(halves)][1][: length - 3 - len(first)]
            else:
                false[index] = False
            separator = [tokens.special(SEP)]
            row = np.concatenate([[tokens.bos], first, separator, second, [tokens.eos]])
            rows.append(row.astype(np.int64))
            # A row that is alone could only be right: nothing is learnt from that.
            whole.append(float(len(first) > 0 and len(second) > 0 and len(halves) > 1))
        table = pad_rows(rows, tokens.pad, context.width(max(map(len, rows))))
        lengths_B = torch.tensor([len(row) for row in rows])
        visibility = Visibility.of_lengths("full", lengths_B, table.shape[1])
        made = self._hide(table, visibility, None, context)
        answers = torch.from_numpy((~false).astype(np.int64))
        weights = torch.tensor(whole)
        pair = Targets(answers, weights, lengths_B=lengths_B)
        return Batch(
            made.inputs,
            {**made.targets, PAIR: pair},
            {**made.counts, PAIR: float(weights.sum())},
            made.tokens,
        )


def pairs_sentences(objective: Objective) -> bool:
    """Whether an objective takes wrong sentences from other rows of a batch."""
    return bool(getattr(getattr(objective, "masked", objective), "next_sentence", False))


def _longest_document(ids: Ids, tokens: Tokenizer) -> Ids:
    """The longest run of a window that lies in one document, without its marks."""
    marks = np.isin(ids, [tokens.bos, tokens.eos, tokens.pad])
    edges = np.flatnonzero(np.concatenate([[True], marks, [True]]))
    widths = np.diff(edges)
    place = int(widths.argmax())
    return ids[edges[place] : edges[place + 1] - 1]


def _split(span: Ids, tokens: Tokenizer, noise: np.random.Generator) -> tuple[Ids, Ids]:
    """Cut a span in two at the end of a sentence near its middle, or in the middle."""
    if len(span) < SHORTEST_PAIR:
        return span, span[:0]
    ends = np.flatnonzero(tokens.sentence_ends()[span]) + 1
    ends = ends[(ends > len(span) // 4) & (ends < 3 * len(span) // 4)]
    cut = int(noise.choice(ends)) if len(ends) else len(span) // 2
    return span[:cut], span[cut:]
