"""Counted equals summed: the ledger against real tensors, over random stacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headswap import ledger
from headswap.inspection import facts
from headswap.nn.mixers import MIXERS
from headswap.nn.model import Model, new_model
from headswap.nn.spec import STYLES, Stack
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Causal, Classify, Translate
from headswap.training import optim
from headswap.training.plan import Plan


def math_attention():
    """On a CPU the counter reads nothing of fused attention."""
    return sdpa_kernel(SDPBackend.MATH)


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    heads = draw(st.integers(1, 4))
    return Stack(
        **{
            **STYLES[draw(st.sampled_from(sorted(STYLES)))],
            "width": heads * 2 * draw(st.integers(1, 6)),
            "heads": heads,
            "layers": draw(st.integers(1, 3)),
            "feedforward": draw(st.integers(1, 40)),
            "length": draw(st.integers(1, 30)),
            "positions": draw(st.sampled_from(["sinusoidal", "learned", "rotary", "none"])),
            "norm": draw(st.sampled_from(["layer", "rms"])),
            "gated": draw(st.booleans()),
            "bias": draw(st.booleans()),
            "qk_norm": draw(st.booleans()),
            "embedding_norm": draw(st.booleans()),
            "final_norm": draw(st.booleans()),
            "tied": draw(st.booleans()),
            "head_bias": draw(st.booleans()),
            "decoder_layers": draw(st.integers(0, 2)),
            "shared_embedding": draw(st.booleans()),
        }
    )


@st.composite
def mixed(draw: st.DrawFn) -> Stack:
    """Any stack, with any mixer where there is no decoder."""
    stack = draw(stacks())
    if stack.decoder_layers:
        return stack
    mixer = draw(st.sampled_from(sorted(MIXERS)))
    return replace(stack, mixer=mixer, kernel=draw(st.sampled_from([1, 3, 5])))


@settings(max_examples=50, deadline=None)
@given(mixed(), st.integers(2, 90), st.booleans(), st.data())
def test_counted_equals_summed(stack, vocabulary, causal, data):
    if causal and stack.mixer != "bilstm":
        objective = Causal()
    else:
        objective = Classify(
            ("a", "b", "c"),
            sees=data.draw(st.sampled_from(["causal", "full"])),
            pool=data.draw(st.sampled_from(["first", "last", "mean", "max", "concat"])),
        )
    heads = objective.heads(stack, vocabulary)
    tensors = Model(stack, vocabulary, heads).tensors()
    listed = {entry.name: entry.shape for entry in ledger.entries(stack, vocabulary, heads)}
    assert listed == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    counted = ledger.parameters(stack, vocabulary, heads)["total"]
    assert counted == sum(tensor.numel() for tensor in tensors.values())


def test_the_courses_counts():
    language_model = facts("course", None, None)["parameters"]
    assert language_model["total"] == 21_018_401
    assert language_model["heads"]["token"] == 10_050_201
    assert language_model["each"]["layer"] == {
        "total": 242_000,
        "attention": 160_800,
        "feedforward": 80_400,
        "norms": 800,
    }
    classifier = facts("course", "classify", 2)["parameters"]
    assert classifier["total"] == 10_968_602
    assert classifier["heads"]["label"] == 402


def test_the_base_transformers_count():
    assert facts("transformer-base", "translate", None)["parameters"]["total"] == 63_082_496


class Cells(torch.nn.Module):
    """An LSTM unrolled into cells: the counter sees nothing of torch's own."""

    def __init__(self, lstm: torch.nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x_BTD, *_):
        outs = []
        for end in ("", "_reverse") if self.lstm.bidirectional else ("",):
            w_ih, w_hh = (getattr(self.lstm, f"weight_{part}_l0{end}") for part in ("ih", "hh"))
            h = c = x_BTD.new_zeros(len(x_BTD), w_hh.shape[1])
            steps = []
            for x in x_BTD.flip(1).unbind(1) if end else x_BTD.unbind(1):
                i, f, g, o = (x @ w_ih.T + h @ w_hh.T).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                steps.append(h)
            outs.append(torch.stack(steps[::-1] if end else steps, 1))
        return torch.cat(outs, -1)


@pytest.mark.parametrize("mixer", sorted(MIXERS))
@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("training", [False, True])
def test_flops_are_those_that_torch_counts(mixer, style, training):
    shape = {"width": 64, "layers": 2, "heads": 4, "feedforward": 96, "length": 96, "bias": False}
    stack = Stack(**{**STYLES[style], **shape, "mixer": mixer})
    heads = Causal().heads(stack, 200)
    model = Model(stack, 200, heads)
    for layer in model.backbone.layers:
        if layer.mixer == "recurrent":
            layer.recurrent = Cells(layer.recurrent.lstm)
    rows, length = 3, 96
    ids = torch.randint(0, 200, (rows, length))
    rule = "full" if mixer == "bilstm" else "causal"
    with math_attention(), FlopCounterMode(display=False) as counter:
        hidden = model.backbone(Inputs(ids, Visibility(rule)))
        total = model.heads["token"](hidden.flatten(0, 1)).sum()
        if training:
            total.backward()
    lines = ledger.forward(stack, heads, length)
    counted = rows * length * sum(line["flops"] * line["times"] for line in lines)
    counted *= ledger.TRAINING if training else 1
    assert counter.get_total_flops() == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("training", [False, True])
def test_a_translators_flops_are_those_that_torch_counts(training):
    shape = {"width": 64, "layers": 2, "heads": 4, "feedforward": 96, "decoder_layers": 3}
    stack = Stack(**{**STYLES["classic"], **shape, "bias": False, "head_bias": False})
    heads = Translate().heads(stack, 200)
    model = Model(stack, 200, heads)
    rows, source, target = 3, 64, 48
    read = Inputs(torch.randint(0, 200, (rows, source)), Visibility("full"))
    given = Inputs(torch.randint(0, 200, (rows, target)), Visibility("causal"), source=read)
    with math_attention(), FlopCounterMode(display=False) as counter:
        total = model.heads["token"](model.backbone(given).flatten(0, 1)).sum()
        if training:
            total.backward()
    counted = 0.0
    for line in ledger.forward(stack, heads, source, target=target):
        tokens = source if line["of"] == "encoder layer" else target
        counted += rows * tokens * line["flops"] * line["times"]
    counted *= ledger.TRAINING if training else 1
    assert counter.get_total_flops() == pytest.approx(counted, rel=0.01)


def test_the_tree_adds_up():
    stack = Stack(layers=3, width=32, heads=4, feedforward=64)
    listed = ledger.entries(stack, 100, Causal().heads(stack, 100))
    rows = ledger.tree(listed)
    leaves = [row for row in rows if "formula" in row]
    assert sum(row["count"] for row in leaves) == sum(entry.count for entry in listed)
    assert sum(row["share"] for row in rows if row["depth"] == 0) == pytest.approx(1)
    (qkv,) = [row for row in leaves if row["path"].endswith("qkv.weight")]
    assert (qkv["times"], qkv["formula"], qkv["numbers"]) == (3, "3d·d", "96 × 32")
    frozen = [row for row in ledger.tree(listed, "backbone") if "formula" in row]
    assert {row["path"].startswith("heads.") for row in frozen if row["trainable"]} == {True}
    some = [row for row in ledger.tree(listed, freeze_layers=2) if "formula" in row]
    layers = [row for row in some if ".layers." in row["path"]]
    assert all(row["trainable"] and row["frozen"] == 2 for row in layers)
    every = [row for row in ledger.tree(listed, freeze_layers=3) if ".layers." in row["path"]]
    assert not any(row.get("trainable") for row in every)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_optimizer_s_state_is_as_large_as_counted(optimizer):
    """Muon keeps one number for a weight of a layer's matrices; the rest learns by AdamW."""
    stack = Stack(layers=2, width=32, heads=4, feedforward=64)
    heads = Causal().heads(stack, 100)
    model = new_model(stack, 100, heads, seed=0)
    made = optim.make_optimizer(model, Plan(steps=1, optimizer=optimizer))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    held = [t for state in made.state.values() for t in state.values() if torch.is_tensor(t)]
    real = sum(tensor.numel() * tensor.element_size() for tensor in held if tensor.numel() > 1)
    counted = ledger.memory(stack, ledger.entries(stack, 100, heads), optimizer)
    assert counted["optimizer"] == real


@pytest.mark.parametrize("decoder", [0, 2])
def test_what_is_told_to_be_frozen_is(decoder):
    stack = Stack(layers=3, decoder_layers=decoder, width=32, heads=4, feedforward=64)
    objective = Translate() if decoder else Causal()
    heads = objective.heads(stack, 100)
    model = new_model(stack, 100, heads, seed=0)
    optim.freeze(model, Plan(steps=1, freeze_layers=2), 0)
    real = {name for name, tensor in model.tensors().items() if not tensor.requires_grad}
    told = {
        e.name for e in ledger.entries(stack, 100, heads) if not ledger._learns(e.name, "none", 2)
    }
    assert told == real
