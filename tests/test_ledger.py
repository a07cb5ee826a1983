"""Counted equals summed: the ledger against real tensors, over random stacks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headswap import ledger
from headswap.inspection import facts
from headswap.nn.model import Model
from headswap.nn.spec import STYLES, Stack
from headswap.objectives import Causal, Classify


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


@settings(max_examples=50, deadline=None)
@given(stacks(), st.integers(2, 90), st.booleans(), st.data())
def test_counted_equals_summed(stack, vocabulary, causal, data):
    if causal:
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
