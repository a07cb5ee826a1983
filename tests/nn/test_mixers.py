"""Every mixer in a stack: what it may see, and that the company it is in changes nothing."""

from __future__ import annotations

import pytest
import torch

import headswap as api
from conftest import review_rows, write_jsonl
from headswap.errors import UsageError
from headswap.nn.backbone import Backbone
from headswap.nn.mixers import MIXERS
from headswap.nn.spec import Stack
from headswap.nn.visibility import PADDING, Inputs, Visibility


@pytest.fixture(params=sorted(MIXERS))
def backbone(request):
    torch.manual_seed(0)
    stack = Stack(width=16, layers=2, heads=2, feedforward=24, length=32, mixer=request.param)
    return Backbone(stack, 30).eval()


@torch.no_grad()
def test_documents_of_one_row_do_not_hear_each_other(backbone):
    one, two = torch.randint(1, 30, (1, 5)), torch.randint(1, 30, (1, 7))
    rule = "full" if backbone.stack.mixer == "bilstm" else "causal"
    positions = torch.cat([torch.arange(5), torch.arange(7), torch.zeros(2)]).long()[None]
    packed = Inputs(
        torch.cat([one, two, torch.zeros(1, 2, dtype=torch.long)], 1),
        Visibility(rule, torch.tensor([[0] * 5 + [1] * 7 + [PADDING] * 2])),
        positions,
    )
    together = backbone(packed)[0]
    for ids, part in ((one, slice(0, 5)), (two, slice(5, 12))):
        alone = backbone(Inputs(ids, Visibility(rule)))[0]
        torch.testing.assert_close(together[part], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_padding_changes_nothing(backbone):
    ids = torch.randint(1, 30, (2, 9))
    lengths = torch.tensor([9, 4])
    full = backbone(Inputs(ids, Visibility.of_lengths("full", lengths, 9)))
    alone = backbone(Inputs(ids[1:, :4], Visibility("full")))
    torch.testing.assert_close(full[1, :4], alone[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_causal_model_cannot_see_the_future(backbone):
    ids = torch.randint(1, 30, (1, 12))
    changed = ids.clone()
    changed[0, 8:] = 0
    if backbone.stack.mixer == "bilstm":
        with pytest.raises(UsageError, match="sees the future"):
            backbone(Inputs(ids, Visibility("causal")))
        return
    one, two = (backbone(Inputs(some, Visibility("causal"))) for some in (ids, changed))
    torch.testing.assert_close(one[:, :8], two[:, :8])
    assert not torch.allclose(one[:, 8:], two[:, 8:])


@pytest.mark.parametrize("mixer", ["lstm", "bilstm", "convolution"])
def test_each_learns_from_labels_and_from_text(tmp_path, corpus_file, mixer):
    shape = ["model.width=32", "model.layers=1", "model.length=32", f"model.mixer={mixer}"]
    shape += ["tokenizer.vocabulary=330"]
    table = write_jsonl(tmp_path / "train.jsonl", review_rows(200, 1))
    test = write_jsonl(tmp_path / "test.jsonl", review_rows(60, 2))
    model = api.train(
        "classify", table, test=test, out=tmp_path / "run", device="cpu",
        changes=[*shape, "train.epochs=6", "train.lr=0.01"],
    )  # fmt: skip
    assert model.run.scores()["test"]["accuracy"] > 0.8
    if mixer == "bilstm":
        with pytest.raises(UsageError, match="sees the future"):
            api.train("causal", corpus_file, out=tmp_path / "lm", changes=shape)
        return
    language = api.train(
        "causal", corpus_file, out=tmp_path / "lm", device="cpu",
        changes=[*shape, "train.steps=4"],
    )  # fmt: skip
    with pytest.raises(UsageError, match="decode step by step"):
        language.generate(["the"])


def test_what_cannot_be_built_is_refused():
    with pytest.raises(UsageError, match="made of attention"):
        Stack(mixer="lstm", decoder_layers=2)
    with pytest.raises(UsageError, match="odd width"):
        Stack(mixer="bilstm", width=15, heads=1)
    with pytest.raises(UsageError, match="odd number"):
        Stack(kernel=4)
