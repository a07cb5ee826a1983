"""The kept gradient is autograd's, to the bit."""

from __future__ import annotations

import pytest
import torch

import headswap as api
from conftest import review_rows, write_jsonl
from headswap.nn.embedding import Embedding
from headswap.training import step


def test_the_same_gradients_step_by_step():
    torch.manual_seed(0)
    plain, kept = Embedding(50, 8), Embedding(50, 8)
    kept.load_state_dict(plain.state_dict())
    kept.keep_gradient()
    assert torch.equal(kept.weight.grad, torch.zeros(50, 8))
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in (plain, kept)]
    for turn in range(5):
        batches = [torch.randint(0, 50, (3, 1 + turn)) for _ in range(2)]  # two parts a step
        noise = [torch.randn(3, 1 + turn, 8) for _ in batches]
        for one in (plain, kept):
            for ids, weights in zip(batches, noise, strict=True):
                (one(ids) * weights).sum().backward()
        assert torch.equal(plain.weight.grad, kept.weight.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        kept.clear_gradient()
        assert not kept.weight.grad.any() and torch.equal(plain.weight, kept.weight)
    with torch.no_grad():
        kept(torch.tensor([1, 2]))
    kept.drop_gradient()
    assert kept.weight.grad is None
    kept(torch.tensor([3])).sum().backward()
    assert kept.weight.grad[3].eq(1).all() and kept.weight.grad.sum() == 8


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_ends_at_the_same_bytes(tmp_path, monkeypatch, accumulate):
    data = tmp_path / "reviews.jsonl"
    write_jsonl(data, review_rows(60, 1))
    changes = ["model.width=16", "model.heads=2", "model.layers=1", "model.feedforward=16"]
    changes += ["tokenizer.vocabulary=330", "train.epochs=2", f"train.accumulate={accumulate}"]
    kept = step.kept_tables
    used = []
    for name in ("kept", "made"):
        if name == "made":
            monkeypatch.setattr(step, "kept_tables", lambda *given: [])
        else:
            monkeypatch.setattr(
                step, "kept_tables", lambda *given: used.extend(kept(*given)) or kept(*given)
            )
        api.train("classify", data, out=tmp_path / name, recipe="tiny", changes=changes)
    assert len(used) == 1
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("kept", "made")]
    assert files[0] == files[1]


def test_a_tied_head_is_left_to_autograd(tmp_path):
    data = tmp_path / "text.txt"
    data.write_text("some words of a text\n" * 200)
    model = api.train(
        "causal",
        data,
        out=tmp_path / "run",
        recipe="tiny",
        changes=["model.tied=true", "train.steps=2", "tokenizer.vocabulary=300"],
    )
    plan = model.settings.train
    assert step.kept_tables(model.model, plan, step.ALONE) == []
