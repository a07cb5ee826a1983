"""What sees what, for every stack: the properties that masks, packing and caches rest on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import STACKS, causal_model
from headswap.errors import DataError
from headswap.nn.backbone import sinusoid
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives.language import packed

VOCABULARY = 50
BOS, PAD = 1, 0


class Marks:
    bos, pad = BOS, PAD


def hidden(model, ids, visibility, positions=None):
    with torch.no_grad():
        return model.backbone(Inputs(torch.as_tensor(ids), visibility, positions))


def test_a_future_token_never_changes_a_past_vector(stack):
    model = causal_model(stack, VOCABULARY)
    ids = torch.randint(2, VOCABULARY, (4, 12))
    before = hidden(model, ids, Visibility("causal"))
    for place in range(1, 12):
        changed = ids.clone()
        changed[:, place] = (changed[:, place] + 7) % (VOCABULARY - 2) + 2
        after = hidden(model, changed, Visibility("causal"))
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.allclose(before[:, place], after[:, place])


def test_with_full_visibility_a_future_token_does_matter(stack):
    model = causal_model(stack, VOCABULARY)
    ids = torch.randint(2, VOCABULARY, (1, 8))
    changed = ids.clone()
    changed[0, -1] = (changed[0, -1] + 7) % (VOCABULARY - 2) + 2
    full = Visibility("full")
    assert not torch.allclose(hidden(model, ids, full)[:, 0], hidden(model, changed, full)[:, 0])


@pytest.mark.parametrize("rule", ["causal", "full"])
def test_a_packed_document_equals_the_same_document_alone(stack, rule):
    model = causal_model(stack, VOCABULARY)
    draw = np.random.default_rng(0)
    documents = [
        np.concatenate([[BOS], draw.integers(2, VOCABULARY, size)]) for size in (4, 9, 1, 6)
    ]
    row = np.concatenate([*documents, [PAD, PAD]])[None]
    visibility, positions = packed(row, Marks, rule)
    together = hidden(model, row, visibility, positions)
    start = 0
    for document in documents:
        alone = hidden(model, document[None], Visibility(rule))
        part = together[:, start : start + len(document)]
        torch.testing.assert_close(part, alone, rtol=1e-4, atol=1e-5)
        start += len(document)


@pytest.mark.parametrize("rule", ["causal", "full"])
def test_padding_changes_nothing(stack, rule):
    model = causal_model(stack, VOCABULARY)
    ids = torch.randint(2, VOCABULARY, (3, 9))
    lengths = torch.tensor([9, 5, 1])
    table = ids.clone()
    for row, length in enumerate(lengths):
        table[row, length:] = PAD
    padded = hidden(model, table, Visibility.of_lengths(rule, lengths, 9))
    for row, length in enumerate(lengths):
        alone = hidden(model, ids[row : row + 1, :length], Visibility(rule))
        torch.testing.assert_close(padded[row : row + 1, :length], alone, rtol=1e-4, atol=1e-5)


def test_without_positions_a_full_encoder_cannot_tell_the_order():
    model = causal_model(STACKS["no positions"], VOCABULARY)
    ids = torch.randint(2, VOCABULARY, (1, 10))
    order = torch.randperm(10)
    plain = hidden(model, ids, Visibility("full"))
    shuffled = hidden(model, ids[:, order], Visibility("full"))
    torch.testing.assert_close(plain[:, order], shuffled, rtol=1e-4, atol=1e-5)
    other = causal_model(STACKS["classic"], VOCABULARY)
    plain = hidden(other, ids, Visibility("full"))
    assert not torch.allclose(plain[:, order], hidden(other, ids[:, order], Visibility("full")))


def test_sinusoid_follows_the_paper():
    table = sinusoid(torch.arange(6)[None], 8)[0]
    for position in range(6):
        for pair in range(4):
            angle = torch.tensor(position / 10_000 ** (2 * pair / 8))
            torch.testing.assert_close(table[position, 2 * pair], angle.sin())
            torch.testing.assert_close(table[position, 2 * pair + 1], angle.cos())


def test_ids_outside_the_vocabulary_are_refused(stack):
    backbone = causal_model(stack, VOCABULARY).backbone
    with pytest.raises(DataError, match="outside the vocabulary"):
        backbone.check(torch.tensor([[VOCABULARY]]))
