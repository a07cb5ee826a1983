"""Beam search: the likeliest whole sequences, as far as a few at a time can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headswap.decoding.stepper import Stepper
from headswap.errors import UsageError

DEAD = float("-inf")
BLOCK = 64


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
        if self.penalty < 0:
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


def largest(values_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of each row and their places. A CPU finds them faster block by block:
    the largest few lie in the blocks whose largest are the largest few."""
    size = values_BV.shape[1]
    blocks = size // BLOCK
    if values_BV.device.type != "cpu" or blocks <= count:
        found, places = values_BV.topk(count, dim=1)
        return found, places
    whole_BNW = values_BV[:, : blocks * BLOCK].reshape(len(values_BV), blocks, BLOCK)
    tops_BC = whole_BNW.amax(-1).topk(count, dim=1).indices
    inside = tops_BC[..., None] * BLOCK + torch.arange(BLOCK)
    rest = torch.arange(blocks * BLOCK, size).expand(len(values_BV), -1)
    places_BM = torch.cat([inside.flatten(1), rest], dim=1)
    found, picks = values_BV.gather(1, places_BM).topk(count, dim=1)
    return found, places_BM.gather(1, picks)


def _worse(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


class _Search:
    def __init__(
        self, stepper: Stepper, limits: Sequence[int], end: int, beam: Beam, never: Sequence[int]
    ) -> None:
        self.stepper, self.limits, self.end, self.beam = stepper, limits, end, beam
        self.never = list(never)
        self.finished: list[list[Hypothesis]] = [[] for _ in limits]
        self.open: list[list[Hypothesis]] = [[] for _ in limits]
        self.sentences = list(range(len(limits)))
        self.device = stepper.logits_BV.device
        self.tokens_BKT = torch.zeros(len(limits), 1, 0, dtype=torch.long, device=self.device)
        self.scores_BK = torch.zeros(len(limits), 1, device=self.device)

    def run(self) -> list[list[Hypothesis]]:
        step = 0
        while self.sentences:
            step += 1
            self._extend(step)
        return [
            [*sorted(ended, key=_worse), *sorted(unended, key=_worse)][: self.beam.width]
            for ended, unended in zip(self.finished, self.open, strict=True)
        ]

    def _extend(self, step: int) -> None:
        """One more token for every sentence; finished sentences leave."""
        width = self.beam.width
        best_BKM, chosen_BKM = self._candidates()
        _, rows, few = best_BKM.shape
        all_BN = (self.scores_BK[..., None] + best_BKM).flatten(1)
        best_BN, places_BN = all_BN.topk(min(2 * width, all_BN.shape[1]), dim=1)
        parents_BN = places_BN // few
        chosen_BN = chosen_BKM.flatten(1).gather(1, places_BN)
        ends_BN = chosen_BN == self.end
        self._collect(best_BN, parents_BN, ends_BN, step)
        going_BN = best_BN.masked_fill(ends_BN, DEAD)
        if going_BN.shape[1] < width:  # a tiny vocabulary
            short = width - going_BN.shape[1]
            going_BN = torch.nn.functional.pad(going_BN, (0, short), value=DEAD)
            parents_BN = torch.nn.functional.pad(parents_BN, (0, short))
            chosen_BN = torch.nn.functional.pad(chosen_BN, (0, short))
        self.scores_BK, picks_BK = going_BN.topk(width, dim=1)
        parents_BK, chosen_BK = parents_BN.gather(1, picks_BK), chosen_BN.gather(1, picks_BK)
        history = self.tokens_BKT.gather(1, parents_BK[..., None].expand(-1, -1, step - 1))
        self.tokens_BKT = torch.cat([history, chosen_BK[..., None]], dim=2)
        stay = self._staying(step)
        if not stay:
            self.sentences = []
            return
        if rows == 1 and width > 1:
            self.stepper.widen(width)
            parents_BK = torch.zeros_like(parents_BK)
        self._move_on(parents_BK, chosen_BK, stay, width)

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """The likeliest next tokens of every row: twice as many as the beam is wide, so that
        enough go on however many end here. No others can be among the best of all rows."""
        logits_BV = self.stepper.logits_BV
        if self.never:
            logits_BV[:, self.never] = DEAD
        best_BM, chosen_BM = largest(logits_BV, min(2 * self.beam.width, logits_BV.shape[1]))
        # The scores are not needed again, so their sum is taken in their own memory.
        top_B1 = best_BM[:, :1]
        normal_B1 = logits_BV.sub_(top_B1).exp_().sum(-1, keepdim=True).log_() + top_B1
        sentences = len(self.sentences)
        return (
            (best_BM - normal_B1).view(sentences, -1, best_BM.shape[1]),
            chosen_BM.view(sentences, -1, best_BM.shape[1]),
        )

    def _collect(self, best_BN: Tensor, parents_BN: Tensor, ends_BN: Tensor, step: int) -> None:
        """Ended sequences among the first ``width`` candidates are finished."""
        width = self.beam.width
        within = ends_BN[:, :width] if not self.beam.exact else ends_BN
        for sentence, place in within.nonzero().tolist():
            score = float(best_BN[sentence, place])
            if score == DEAD:
                continue
            ids = self.tokens_BKT[sentence, int(parents_BN[sentence, place])].tolist()
            self._finish(self.sentences[sentence], ids, score, step)

    def _finish(self, sentence: int, ids: list[int], score: float, length: int) -> None:
        self.finished[sentence].append(Hypothesis(ids, score / length**self.beam.penalty))

    def _staying(self, step: int) -> list[int]:
        """The sentences that go on, by their place."""
        stay = []
        tops = self.scores_BK[:, 0].tolist()
        for place, sentence in enumerate(self.sentences):
            limit = self.limits[sentence]
            if step >= limit:
                self._take_unended(place, sentence, step)
            elif tops[place] == DEAD or self._settled(sentence, tops[place], step, limit):
                continue
            else:
                stay.append(place)
        return stay

    def _take_unended(self, place: int, sentence: int, step: int) -> None:
        """At the limit what is still open fills the places that nothing ended has taken."""
        room = self.beam.width - len(self.finished[sentence])
        scores, tokens = self.scores_BK[place].tolist(), self.tokens_BKT[place].tolist()
        for score, ids in list(zip(scores, tokens, strict=True))[: max(room, 0)]:
            if score != DEAD:
                self.open[sentence].append(Hypothesis(ids, score / step**self.beam.penalty))

    def _settled(self, sentence: int, best_open: float, step: int, limit: int) -> bool:
        done = self.finished[sentence]
        if len(done) < self.beam.width:
            return False
        bound = best_open / (limit if self.beam.exact else step) ** self.beam.penalty
        kept = sorted((hypothesis.score for hypothesis in done), reverse=True)
        return bool(kept[self.beam.width - 1] >= bound)

    def _move_on(self, parents_BK: Tensor, chosen_BK: Tensor, stay: list[int], width: int) -> None:
        """Reorder the rows to their parents and append what was chosen."""
        leaving = len(stay) < len(self.sentences)
        if leaving:
            kept = torch.tensor(stay, device=self.device)
            self.tokens_BKT = self.tokens_BKT.index_select(0, kept)
            self.scores_BK = self.scores_BK.index_select(0, kept)
            parents_BK = parents_BK.index_select(0, kept)
            chosen_BK = chosen_BK.index_select(0, kept)
            self.sentences = [self.sentences[place] for place in stay]
            starts = kept * width
        else:
            starts = torch.arange(len(stay), device=self.device) * width
        rows_B = (starts[:, None] + parents_BK).flatten()
        self.stepper.select(rows_B, leaving)
        self.stepper.step(chosen_BK.flatten())
