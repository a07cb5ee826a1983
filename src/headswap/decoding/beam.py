"""Beam search: the likeliest whole sequences, as far as a few at a time can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headswap.decoding.stepper import Stepper
from headswap.decoding.strategies import CROWDED, gathered, largest
from headswap.errors import UsageError

DEAD = float("-inf")


@dataclass(frozen=True)
class Beam:
    """``width`` sequences are followed at a time. A finished one scores its log-probability
    over its length to the power of ``penalty`` (Wu et al. 2016, section 7): 0 prefers short
    sequences, 1 takes the mean a token. The search for a sentence ends when ``width`` have
    finished and the best open one scores less than they do; with ``exact``, when it could not
    even catch up by growing to its limit."""

    width: int = 4
    penalty: float = 1.0
    exact: bool = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise UsageError(f"a beam of {self.width}", fix="use 1 or more")
        if not 0 <= self.penalty < math.inf:
            raise UsageError(f"a length penalty of {self.penalty}", fix="use 0 or more")


@dataclass(frozen=True)
class Hypothesis:
    ids: list[int]
    score: float


def search(
    stepper: Stepper, limits: Sequence[int], end: int, beam: Beam, never: Sequence[int] = ()
) -> list[list[Hypothesis]]:
    """For each row of a fresh stepper its hypotheses, best first, each of at most so many
    tokens as its limit says; those that reached it without an end come last."""
    return _Search(stepper, limits, end, beam, never).run()


class _Search:
    """The scores stay on the device; what they mean is worked out here, in numpy, from the few
    best candidates of each sentence, which are fetched once a step.

    S counts the sentences still in the stepper, K the width of the beam, N candidates.
    """

    def __init__(
        self, stepper: Stepper, limits: Sequence[int], end: int, beam: Beam, never: Sequence[int]
    ) -> None:
        self.stepper, self.end, self.beam = stepper, end, beam
        device = stepper.logits_BV.device
        self.never = torch.tensor(list(never), dtype=torch.long, device=device)
        self.limits = np.array(limits)
        self.ended: list[list[Hypothesis]] = [[] for _ in limits]
        self.unended: list[list[Hypothesis]] = [[] for _ in limits]
        self.sentences = np.arange(len(limits))  # the sentence of each of the stepper's
        self.going_S = np.ones(len(limits), dtype=bool)
        self.tokens_SKT = np.zeros((len(limits), beam.width, int(self.limits.max(initial=0))), int)
        self.scores_SK = np.zeros((len(limits), 1))
        self.finished_SK = np.full((len(limits), beam.width), DEAD)  # the best that ended, sorted

    def run(self) -> list[list[Hypothesis]]:
        step = 0
        while self.going_S.any():
            step += 1
            self._extend(step)
        return [
            [*sorted(ended, key=_worse), *sorted(unended, key=_worse)][: self.beam.width]
            for ended, unended in zip(self.ended, self.unended, strict=True)
        ]

    def _extend(self, step: int) -> None:
        """One more token for every sentence."""
        width = self.beam.width
        first = self.scores_SK.shape[1] == 1
        values_SN, parents_SN, chosen_SN = self._candidates()
        ends_SN = chosen_SN == self.end
        self._collect(values_SN, parents_SN, ends_SN, step)
        # Candidates are sorted: the first that do not end go on.
        open_SN = np.where(ends_SN, DEAD, values_SN)
        picks_SK = np.argsort(ends_SN, axis=1, kind="stable")[:, :width]
        scores_SK, parents_SK, chosen_SK = (
            np.take_along_axis(part, picks_SK, 1) for part in (open_SN, parents_SN, chosen_SN)
        )
        if not first:
            order_SK = _in_place(parents_SK)
            scores_SK, parents_SK, chosen_SK = (
                np.take_along_axis(part, order_SK, 1) for part in (scores_SK, parents_SK, chosen_SK)
            )
        self.scores_SK = scores_SK
        past = self.tokens_SKT[:, :, : step - 1]
        past[:] = np.take_along_axis(past, parents_SK[..., None], 1)
        self.tokens_SKT[:, :, step - 1] = chosen_SK
        self._close(step)
        if self.going_S.any():
            self._move_on(parents_SK, chosen_SK, first)

    def _candidates(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each sentence's likeliest continuations, best first: log-probability, beam, token.

        Of every row twice as many as the beam is wide are looked at, so that enough go on
        however many end here; no others can be among the best of all rows.
        """
        logits_BV = self.stepper.logits_BV
        if len(self.never):
            logits_BV.index_fill_(1, self.never, DEAD)
        best_BM, chosen_BM = largest(logits_BV, min(2 * self.beam.width, logits_BV.shape[1]))
        # The scores are not needed again, so their sum is taken in their own memory.
        top_B1 = best_BM[:, :1]
        normal_B1 = logits_BV.sub_(top_B1).exp_().sum(-1, keepdim=True).log_() + top_B1
        packed = torch.stack([(best_BM - normal_B1).double(), chosen_BM.double()])
        logs, chosen = packed.numpy(force=True)
        sentences, rows = self.scores_SK.shape
        few = logs.shape[1]
        all_SN = (self.scores_SK[..., None] + logs.reshape(sentences, rows, few)).reshape(
            sentences, -1
        )
        count = max(2 * self.beam.width, self.beam.width)
        if all_SN.shape[1] < count:  # a tiny vocabulary
            short = count - all_SN.shape[1]
            all_SN = np.pad(all_SN, ((0, 0), (0, short)), constant_values=DEAD)
        places_SN = np.argsort(-all_SN, axis=1, kind="stable")[:, :count]
        known_SN = np.minimum(places_SN, rows * few - 1)
        chosen_SN = np.take_along_axis(chosen.reshape(sentences, -1), known_SN, 1).astype(int)
        return np.take_along_axis(all_SN, places_SN, 1), known_SN // few, chosen_SN

    def _collect(
        self, values_SN: np.ndarray, parents_SN: np.ndarray, ends_SN: np.ndarray, step: int
    ) -> None:
        """Ended sequences among the first ``width`` candidates are finished."""
        width, power = self.beam.width, self.beam.penalty
        within_SN = ends_SN & (values_SN > DEAD) & self.going_S[:, None]
        if not self.beam.exact:
            within_SN[:, width:] = False
        if not within_SN.any():
            return
        scores_SN = np.where(within_SN, values_SN / step**power, DEAD)
        for place, candidate in zip(*np.nonzero(within_SN), strict=True):
            ids = self.tokens_SKT[place, parents_SN[place, candidate], : step - 1].tolist()
            self.ended[self.sentences[place]].append(
                Hypothesis(ids, float(scores_SN[place, candidate]))
            )
        every = np.concatenate([self.finished_SK, scores_SN], axis=1)
        self.finished_SK = -np.sort(-every, axis=1)[:, :width]

    def _close(self, step: int) -> None:
        """Find the sentences that are done: at their limit, or because nothing open can still
        be better than what has ended."""
        limits_S = self.limits[self.sentences]
        best_S = self.scores_SK.max(1)
        reach_S = limits_S if self.beam.exact else np.full(len(limits_S), step)
        settled_S = self.finished_SK[:, -1] >= best_S / reach_S**self.beam.penalty
        at_limit_S = step >= limits_S
        for place in np.flatnonzero(self.going_S & at_limit_S):
            self._take_unended(int(place), step)
        self.going_S &= ~(at_limit_S | (best_S == DEAD) | settled_S)

    def _take_unended(self, place: int, step: int) -> None:
        """At the limit what is still open fills the places that nothing ended has taken."""
        sentence = self.sentences[place]
        room = self.beam.width - len(self.ended[sentence])
        for row in np.argsort(-self.scores_SK[place], kind="stable")[: max(room, 0)]:
            score = self.scores_SK[place, row]
            if score > DEAD:
                ids = self.tokens_SKT[place, row, :step].tolist()
                self.unended[sentence].append(Hypothesis(ids, score / step**self.beam.penalty))

    def _move_on(self, parents_SK: np.ndarray, chosen_SK: np.ndarray, first: bool) -> None:
        """Put every row where its parent's past is, and append what was chosen. Sentences that
        are done leave when enough of them are."""
        width = self.beam.width
        if first:
            self.stepper.widen(width)
            parents_SK = np.broadcast_to(np.arange(width), parents_SK.shape)
        kept = np.arange(len(self.sentences))
        if self.going_S.mean() <= CROWDED:
            kept = gathered(self.going_S)
            self.sentences, self.going_S = self.sentences[kept], self.going_S[kept]
            self.tokens_SKT, self.scores_SK = self.tokens_SKT[kept], self.scores_SK[kept]
            self.finished_SK = self.finished_SK[kept]
        self.stepper.select((kept[:, None] * width + parents_SK[kept]).ravel())
        device = self.stepper.logits_BV.device
        self.stepper.step(torch.from_numpy(chosen_SK[kept].ravel()).to(device))


def _in_place(parents_SK: np.ndarray) -> np.ndarray:
    """An order of the beams in which as many as can be stay where their parent is: the first
    child of each takes its place, the others those of parents without children."""
    sentences, width = parents_SK.shape
    first_SK = np.ones_like(parents_SK, dtype=bool)
    for beam in range(1, width):
        first_SK[:, beam] = ~(parents_SK[:, :beam] == parents_SK[:, beam : beam + 1]).any(1)
    rows_S1 = np.arange(sentences)[:, None]
    taken_SK = np.zeros_like(first_SK)
    taken_SK[rows_S1, parents_SK] = True
    free_SK = np.argsort(taken_SK, axis=1, kind="stable")
    spare_SK = np.take_along_axis(free_SK, np.maximum((~first_SK).cumsum(1) - 1, 0), 1)
    places_SK = np.where(first_SK, parents_SK, spare_SK)
    return np.argsort(places_SK, axis=1)


def _worse(hypothesis: Hypothesis) -> float:
    return -hypothesis.score
