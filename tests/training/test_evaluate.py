from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import STACKS, classifier
from headswap.errors import ResourceError
from headswap.objectives import Classify
from headswap.text.loader import Labelled
from headswap.training import evaluate as module
from headswap.training import machine
from headswap.training.evaluate import evaluate


def test_batches_are_halved_where_memory_is_short(tokens, monkeypatch):
    objective = Classify(("a", "b"))
    model = classifier(STACKS["modern"], tokens.size, objective)
    draw = np.random.default_rng(0)
    texts = [Labelled(draw.integers(4, tokens.size, 3 + i % 9), i % 2) for i in range(13)]
    found, sizes = module._found, []

    def short(model, examples, tokens, precision, turns):
        sizes.append(max(len(group) for _, _, group in turns))
        if sizes[-1] > room:
            return None
        return found(model, examples, tokens, precision, turns)

    whole = evaluate(model, objective, texts, tokens, 16, torch.float32, most=10_000)
    monkeypatch.setattr(module, "_found", short)
    room = 3
    parts = evaluate(model, objective, texts, tokens, 16, torch.float32, most=10_000)
    assert sizes == [13, 8, 4, 2]
    np.testing.assert_allclose(parts.logits_NC, whole.logits_NC, rtol=1e-4, atol=1e-5)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)
    room = 0
    with pytest.raises(ResourceError, match="too small to evaluate"):
        evaluate(model, objective, texts, tokens, 16, torch.float32, most=10_000)


def test_a_lack_of_memory_is_noticed(tokens, monkeypatch):
    objective = Classify(("a", "b"))
    model = classifier(STACKS["modern"], tokens.size, objective)

    def none_left(*given):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(Classify, "loss", none_left)
    texts = [Labelled(np.arange(4, 9), 0)]
    with pytest.raises(ResourceError, match="too small to evaluate"):
        evaluate(model, objective, texts, tokens, 4, torch.float32)


def test_cudnn_attends_only_where_shapes_are_few():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for few in (False, True):
            machine.plan_attention(torch.device("cuda"), few)
            assert torch.backends.cuda.cudnn_sdp_enabled() == few
            machine.plan_attention(torch.device("cpu"), not few)  # nothing to do with it
            assert torch.backends.cuda.cudnn_sdp_enabled() == few
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
