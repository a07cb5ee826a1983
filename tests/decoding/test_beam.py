"""Beam search against brute force, greedy search and itself in other company."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from conftest import STACKS, causal_model, spread
from headswap.decoding.beam import Beam, _in_place, search
from headswap.decoding.stepper import Stepper
from headswap.decoding.strategies import Sampling, extend, gathered
from headswap.decoding.translation import Search, alignment, translate
from headswap.errors import UsageError
from headswap.nn.model import Model, new_model
from headswap.nn.spec import stack_from
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Translate
from headswap.objectives.translate import source_inputs

VOCABULARY, END = 40, 2
SHAPE = {"width": 16, "layers": 2, "decoder_layers": 2, "heads": 2, "feedforward": 24}
TRANSLATORS = {
    "classic": stack_from({"style": "classic", **SHAPE, "length": 64, "tied": True}),
    "modern": stack_from({"style": "modern", **SHAPE, "length": 64}),
    "own embeddings": stack_from(
        {"style": "classic", **SHAPE, "length": 64, "shared_embedding": False}
    ),
}


class Tokens:
    """As much of a tokenizer as decoding asks for."""

    pad, bos, eos, unk = 0, 1, 2, 3

    def special(self, name):
        return None


def translator(stack, vocabulary=VOCABULARY, seed=1) -> Model:
    return spread(new_model(stack, vocabulary, Translate().heads(stack, vocabulary), seed=seed))


def sources(count, longest=12, vocabulary=VOCABULARY, seed=0):
    draw = np.random.default_rng(seed)
    return [
        np.append(draw.integers(4, vocabulary, draw.integers(1, longest)), END)
        for _ in range(count)
    ]


@pytest.fixture(params=TRANSLATORS)
def model(request):
    return translator(TRANSLATORS[request.param])


def log_probability(model, source, target, ended=True):
    """Of a whole target, recomputed without any cache."""
    whole = [*target, END] if ended else list(target)
    ids = torch.tensor([[1, *whole[:-1]]])
    inputs = Inputs(ids, Visibility("causal"), source=source_inputs([source], Tokens()))
    with torch.no_grad():
        logits = model.heads["token"](model.backbone(inputs)[0]).float()
    logits[:, [0, 1, 3]] = float("-inf")
    return float(logits.log_softmax(-1)[range(len(whole)), whole].sum())


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_as_wide_as_the_space_is_brute_force(penalty):
    vocabulary, longest = 8, 3
    model = translator(TRANSLATORS["classic"], vocabulary, seed=5)
    for source in sources(5, 6, vocabulary, seed=3):
        words = range(4, vocabulary)
        every = [
            list(target)
            for length in range(longest)
            for target in itertools.product(words, repeat=length)
        ]
        exact = {
            tuple(t): log_probability(model, source, t) / (len(t) + 1) ** penalty for t in every
        }
        stepper = Stepper(
            model, [np.array([1])], longest, "token", source_inputs([source], Tokens())
        )
        (found,) = search(stepper, [longest], END, Beam(64, penalty, exact=True), (0, 1, 3))
        best = sorted(exact.items(), key=lambda item: -item[1])
        assert tuple(found[0].ids) == best[0][0]
        assert found[0].score == pytest.approx(best[0][1], abs=1e-4)
        ended = [hypothesis for hypothesis in found if len(hypothesis.ids) < longest]
        assert {tuple(hypothesis.ids) for hypothesis in ended} == set(exact)


def test_beam_one_is_greedy(model):
    some = sources(30)
    limits = [20] * 30
    start = [np.array([1])] * 30
    one = search(
        Stepper(model, start, 20, "token", source_inputs(some, Tokens())), limits, END, Beam(1)
    )
    greedy = extend(
        Stepper(model, start, 20, "token", source_inputs(some, Tokens())), 30, 20, END, Sampling()
    )
    assert [found[0].ids for found in one] == [row.ids for row in greedy]


def test_a_wider_beam_finds_no_worse(model):
    some = sources(40)
    narrow, wide = (
        translate(model, Tokens(), some, Search(Beam(width, 0.0), ratio=1.0, more=4))
        for width in (2, 12)
    )
    better = sum(b[0].score >= a[0].score - 1e-4 for a, b in zip(narrow, wide, strict=True))
    assert better >= 36


def test_scores_are_what_the_model_says(model):
    some = sources(8)
    for source, found in zip(
        some, translate(model, Tokens(), some, Search(Beam(4, 0.0))), strict=True
    ):
        for hypothesis in found:
            if len(hypothesis.ids) < Search().limit(len(source)):
                plain = log_probability(model, source, hypothesis.ids)
                assert hypothesis.score == pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize("width", [1, 4])
def test_batch_order_and_mates_change_nothing(width):
    model = translator(TRANSLATORS["classic"])
    some = sources(1000, seed=7)
    how = Search(Beam(width), ratio=0.5, more=4)
    whole = translate(model, Tokens(), some, how)
    turned = translate(model, Tokens(), some[::-1], how)[::-1]
    alone = [translate(model, Tokens(), [source], how)[0] for source in some[:60]]
    for one, two in [*zip(whole, turned, strict=True), *zip(whole[:60], alone, strict=True)]:
        assert [h.ids for h in one][:1] == [h.ids for h in two][:1]
        assert one[0].score == pytest.approx(two[0].score, abs=1e-4)


def test_a_causal_model_beams_through_the_same_code():
    model = causal_model(STACKS["modern"], VOCABULARY)
    prompts = [np.array([1, 5, 6]), np.array([1, 9])]
    found = search(Stepper(model, prompts, 6, "token"), [6, 6], END, Beam(3))
    greedy = search(Stepper(model, prompts, 6, "token"), [6, 6], END, Beam(1))
    for wide, narrow in zip(found, greedy, strict=True):
        assert len(wide) == 3 and len({tuple(one.ids) for one in wide}) == 3
        assert max(one.score for one in wide) >= narrow[0].score - 0.5


def test_forbidden_tokens_never_appear(model):
    some = sources(30)
    for found in translate(model, Tokens(), some, Search(Beam(5))):
        for hypothesis in found:
            assert not {0, 1, 2, 3} & set(hypothesis.ids)


def test_alignments_point_into_the_source(model):
    source = sources(1, 10)[0]
    target = [7, 8, 9, 10]
    places = alignment(model, Tokens(), source, target)
    assert len(places) == 4 and all(0 <= place < len(source) for place in places)
    assert alignment(model, Tokens(), source, []) == []


def test_impossible_wishes_are_refused():
    for wish in ({"width": 0}, {"penalty": -1.0}, {"penalty": float("nan")}):
        with pytest.raises(UsageError):
            Beam(**wish)
    with pytest.raises(UsageError, match="does not draw"):
        Search(Beam(4), Sampling(1.0))


def test_beams_stay_where_their_parents_are():
    parents = np.array([list(row) for row in itertools.product(range(3), repeat=3)])
    order = _in_place(parents)
    for row, places in zip(parents, order, strict=True):
        assert sorted(places) == [0, 1, 2], "every beam has a place"
        moved = row[places]
        assert all(moved[parent] == parent for parent in set(row)), "a first child stays put"


@pytest.mark.parametrize("going", list(itertools.product([False, True], repeat=5)))
def test_rows_that_go_on_are_gathered(going):
    going = np.array(going)
    rows = gathered(going)
    assert sorted(rows) == list(np.flatnonzero(going))
    staying = rows == np.arange(len(rows))
    assert (staying == going[: len(rows)]).all(), "only those beyond the others' number move"
