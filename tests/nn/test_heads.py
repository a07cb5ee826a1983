from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from conftest import STACKS
from headswap.nn import cross_entropy
from headswap.nn.heads import LanguageModelHead, LanguageModelSpec, pool


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_chunked_loss_and_gradient_equal_plain(smoothing, bias, rows, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK_ROWS, "cpu", rows)
    monkeypatch.setattr(cross_entropy, "CACHED_ROWS", 2)
    torch.manual_seed(0)
    head = LanguageModelHead(LanguageModelSpec(8, 31, bias, False), None).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    x = torch.randn(10, 8, dtype=torch.double, requires_grad=True)
    targets = torch.randint(0, 31, (10,))
    weights = torch.rand(10, dtype=torch.double)
    total, each = head.losses(x, targets, weights, smoothing)
    (total * 0.3).backward()
    found = [x.grad.clone(), *(p.grad.clone() for p in head.parameters())]
    x.grad = None
    head.zero_grad()
    plain = F.cross_entropy(head(x), targets, reduction="none", label_smoothing=smoothing)
    (plain @ weights * 0.3).backward()
    torch.testing.assert_close(total.double(), plain @ weights, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(each.double(), plain, rtol=1e-5, atol=1e-6)
    expected = [x.grad, *(p.grad for p in head.parameters())]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_no_more_than_one_chunk_of_logits_exists(monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK_ROWS, "cpu", 4)
    sizes = []
    plain = torch.mm

    def watched(*arguments, out):
        sizes.append(out.numel())
        return plain(*arguments, out=out)

    monkeypatch.setattr(cross_entropy.torch, "mm", watched)
    head = LanguageModelHead(LanguageModelSpec(8, 31, False, False), None)
    torch.nn.init.normal_(head.weight)
    head.losses(torch.randn(50, 8), torch.zeros(50, dtype=torch.long), torch.ones(50))
    assert len(sizes) == 13 and max(sizes) == 4 * 31


def test_pools_read_real_tokens_only():
    hidden = torch.randn(2, 5, 4)
    lengths = torch.tensor([3, 5])
    for how in ("first", "last", "mean", "max", "concat"):
        damaged = hidden.clone()
        damaged[0, 3:] = 1e9
        assert torch.equal(pool(hidden, lengths, how), pool(damaged, lengths, how))
    assert torch.equal(pool(hidden, lengths, "last")[0], hidden[0, 2])
    torch.testing.assert_close(pool(hidden, lengths, "mean")[0], hidden[0, :3].mean(0))
    assert torch.equal(pool(hidden, lengths, "max")[1], hidden[1].amax(0))
    assert pool(hidden, lengths, "concat").shape == (2, 12)


def test_a_tied_head_is_the_embedding():
    from conftest import causal_model

    model = causal_model(STACKS["everything"], 40)
    assert model.heads["token"].weight is model.backbone.embedding.weight
    assert "heads.token.weight" not in model.tensors()
