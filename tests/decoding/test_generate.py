from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
import torch

from conftest import STACKS, causal_model
from headswap.decoding.stepper import Stepper
from headswap.decoding.strategies import Sampling, extend
from headswap.errors import UsageError
from headswap.nn.visibility import Inputs, Visibility

VOCABULARY = 40
END = 2


def grown(*arguments, **given):
    return [row.ids for row in extend(*arguments, **given)]


def prompts(count, longest=12, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(3, VOCABULARY, draw.integers(1, longest + 1)) for _ in range(count)]


def slow(model, prompt, steps, end):
    """Greedy decoding that recomputes everything for each token."""
    ids = list(map(int, prompt))
    for _ in range(steps):
        with torch.no_grad():
            hidden = model.backbone(Inputs(torch.tensor([ids]), Visibility("causal")))
            chosen = int(model.heads["token"](hidden[:, -1]).argmax())
        if chosen == end:
            break
        ids.append(chosen)
    return ids[len(prompt) :]


def test_cached_logits_equal_uncached(stack):
    model = causal_model(stack, VOCABULARY)
    some = prompts(16)
    stepper = Stepper(model, some, 8, "token")
    rows = [list(map(int, prompt)) for prompt in some]
    for step in range(8):
        for row, ids in enumerate(rows):
            with torch.no_grad():
                hidden = model.backbone(Inputs(torch.tensor([ids]), Visibility("causal")))
                plain = model.heads["token"](hidden[:, -1])
            torch.testing.assert_close(stepper.logits_BV[row], plain[0], rtol=1e-4, atol=1e-4)
        chosen = torch.tensor([(step * 7 + row) % VOCABULARY for row in range(16)])
        for ids, token in zip(rows, chosen.tolist(), strict=True):
            ids.append(token)
        if step < 7:
            stepper.step(chosen)


@pytest.mark.parametrize("style", ["classic", "modern"])
def test_cached_decoding_equals_uncached_on_a_thousand_prompts(style):
    model = causal_model(STACKS[style], VOCABULARY)
    some = prompts(500, seed=sum(map(ord, style)))
    free = grown(Stepper(model, some, 10, "token"), len(some), 10, -1, Sampling())
    end = max(range(VOCABULARY), key=[row[5] for row in free].count)
    fast = grown(Stepper(model, some, 10, "token"), len(some), 10, end, Sampling())
    assert fast == [slow(model, prompt, 10, end) for prompt in some]
    assert any(len(row) < 10 for row in fast) and any(len(row) == 10 for row in fast)


def test_sampling_does_not_depend_on_batch_mates():
    model = causal_model(STACKS["modern"], VOCABULARY)
    some, sampling = prompts(5), Sampling(temperature=0.9, seed=4)
    whole = grown(Stepper(model, some, 9, "token"), 5, 9, END, sampling)
    first = grown(Stepper(model, some[:2], 9, "token"), 2, 9, END, sampling)
    assert whole[:2] == first
    other = grown(Stepper(model, some, 9, "token"), 5, 9, END, Sampling(0.9, seed=5))
    assert whole != other


def test_sampling_draws_by_the_probabilities():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    drawn = [int(Sampling(1.0, seed=seed).choose(logits, [0], 0)) for seed in range(2000)]
    shares = np.bincount(drawn, minlength=4) / 2000
    assert np.abs(shares - [0.5, 0.3, 0.15, 0.05]).max() < 0.04
    top = {int(Sampling(1.0, top_k=2, seed=seed).choose(logits, [0], 0)) for seed in range(200)}
    assert top == {0, 1}
    nucleus = {
        int(Sampling(1.0, top_p=0.75, seed=seed).choose(logits, [0], 0)) for seed in range(200)
    }
    assert nucleus == {0, 1}
    assert int(Sampling(0.0).choose(logits, [0], 0)) == 0


def test_forbidden_tokens_never_appear():
    model = causal_model(STACKS["modern"], VOCABULARY)
    some = prompts(20)
    free = grown(Stepper(model, some, 10, "token"), 20, 10, END, Sampling(2.0))
    common = max(range(VOCABULARY), key=lambda t: sum(row.count(t) for row in free))
    bound = grown(Stepper(model, some, 10, "token"), 20, 10, END, Sampling(2.0), never=(common,))
    assert common not in functools.reduce(operator.iadd, bound, [])


def test_impossible_wishes_are_refused():
    model = causal_model(STACKS["everything"], VOCABULARY)
    with pytest.raises(UsageError, match="do not fit in the model's 32 positions"):
        Stepper(model, [np.array([3] * 30)], 5, "token")
    with pytest.raises(UsageError, match="empty"):
        Stepper(model, [np.array([], dtype=int)], 5, "token")
    for wish in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 1.5}):
        with pytest.raises(UsageError):
            Sampling(**wish)


@pytest.mark.parametrize("temperature", [-1.0, 1e-300, float("nan"), float("inf")])
def test_impossible_temperatures_are_refused(temperature):
    with pytest.raises(UsageError, match="temperature"):
        Sampling(temperature)
