"""The encoder-decoder: equal to torch's own, blind to the future and to padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conftest import spread
from headswap.inspection import facts
from headswap.nn.model import new_model, warm_start
from headswap.nn.spec import stack_from
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Masked, Translate

VOCABULARY = 50
SHAPE = {"width": 16, "layers": 2, "decoder_layers": 3, "heads": 2, "feedforward": 24, "length": 32}
STACKS = {
    "classic": stack_from({"style": "classic", **SHAPE}),
    "modern": stack_from({"style": "modern", **SHAPE}),
    "learned": stack_from({"style": "modern", **SHAPE, "positions": "learned", "tied": True}),
}


def made(stack):
    return spread(new_model(stack, VOCABULARY, Translate().heads(stack, VOCABULARY), seed=2))


def inputs(source, lengths, target):
    visibility = Visibility.of_lengths("full", torch.tensor(lengths), source.shape[1])
    return Inputs(target, Visibility("causal"), source=Inputs(source, visibility))


def ids(rows, columns, seed=0):
    return torch.randint(
        4, VOCABULARY, (rows, columns), generator=torch.Generator().manual_seed(seed)
    )


def test_it_equals_torchs_encoder_and_decoder():
    stack = STACKS["classic"]
    model = made(stack)
    options = {"dropout": 0.0, "batch_first": True}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 24, **options), 2, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 24, **options), 3)
    ours = model.backbone
    with torch.no_grad():
        for theirs, mine in zip(encoder.layers, ours.encoder.layers, strict=True):
            copy_layer(theirs, mine)
        for theirs, mine in zip(decoder.layers, ours.decoder.layers, strict=True):
            copy_layer(theirs, mine, cross=True)
        source, target = ids(3, 9), ids(3, 7, seed=1)
        lengths = [9, 4, 6]
        padding = torch.arange(9) >= torch.tensor(lengths)[:, None]
        positions = torch.arange(9)[None]
        memory = encoder(ours.encoder.embed(source, positions), src_key_padding_mask=padding)
        expected = decoder(
            ours.decoder.embed(target, positions[:, :7]),
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(7),
            tgt_is_causal=True,
            memory_key_padding_mask=padding,
        )
        found = ours(inputs(source, lengths, target))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def copy_layer(theirs, mine, cross=False):
    copy(theirs.self_attn.in_proj_weight, mine.attention.qkv.weight)
    copy(theirs.self_attn.in_proj_bias, mine.attention.qkv.bias)
    pairs = [(theirs.self_attn.out_proj, mine.attention.out), (theirs.linear1, mine.feedforward.up)]
    pairs += [(theirs.linear2, mine.feedforward.down), (theirs.norm1, mine.attention_norm)]
    pairs.append((theirs.norm3 if cross else theirs.norm2, mine.feedforward_norm))
    if cross:
        attention = theirs.multihead_attn
        copy(attention.in_proj_weight[:16], mine.cross.q.weight)
        copy(attention.in_proj_bias[:16], mine.cross.q.bias)
        copy(attention.in_proj_weight[16:], mine.cross.kv.weight)
        copy(attention.in_proj_bias[16:], mine.cross.kv.bias)
        pairs += [(attention.out_proj, mine.cross.out), (theirs.norm2, mine.cross_norm)]
    for one, two in pairs:
        copy(one.weight, two.weight)
        copy(one.bias, two.bias)


def copy(target, source):
    target.copy_(source)


@pytest.mark.parametrize("style", STACKS)
def test_the_decoder_cannot_see_the_future(style):
    model = made(STACKS[style])
    source, target = ids(2, 8), ids(2, 7, seed=1)
    other = target.clone()
    other[:, 4:] = ids(2, 3, seed=2)
    with torch.no_grad():
        one, two = (model.backbone(inputs(source, [8, 8], some)) for some in (target, other))
    torch.testing.assert_close(one[:, :4], two[:, :4])
    assert not torch.allclose(one[:, 4:], two[:, 4:])


@pytest.mark.parametrize("style", STACKS)
def test_padding_of_either_side_changes_nothing(style):
    model = made(STACKS[style])
    source, target = ids(1, 5), ids(1, 4, seed=1)
    wide = torch.cat([source, torch.zeros(1, 6, dtype=torch.long)], 1)
    long = torch.cat([target, torch.zeros(1, 3, dtype=torch.long)], 1)
    with torch.no_grad():
        one = model.backbone(inputs(source, [5], target))
        two = model.backbone(inputs(wide, [5], long))
    torch.testing.assert_close(one, two[:, :4], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("style", STACKS)
def test_every_source_word_can_matter(style):
    model = made(STACKS[style])
    source, target = ids(1, 6), ids(1, 4, seed=1)
    with torch.no_grad():
        before = model.backbone(inputs(source, [6], target))
        for place in range(6):
            changed = source.clone()
            changed[0, place] = (changed[0, place] - 3) % 40 + 5
            assert not torch.allclose(before, model.backbone(inputs(changed, [6], target)))


def test_the_papers_count():
    assert facts("transformer-base", "translate", None)["parameters"]["total"] == 63_082_496
    tiny = facts("tiny-translate", "translate", None)["parameters"]["total"]
    assert 2.2e6 < tiny < 2.8e6


def test_a_warm_start_carries_the_whole_base():
    plain = stack_from({**{k: v for k, v in SHAPE.items() if k != "decoder_layers"}, "tied": True})
    base = new_model(plain, VOCABULARY, Masked().heads(plain, VOCABULARY), seed=1)
    stack = stack_from({**SHAPE, "tied": True})
    model, carried = warm_start(base, stack, Translate().heads(stack, VOCABULARY), seed=3)
    assert carried.tensors == len(list(base.backbone.named_parameters()))
    tensors = model.tensors()
    for name, tensor in base.backbone.named_parameters():
        target = f"backbone.{name}" if name == "embedding.weight" else f"backbone.encoder.{name}"
        assert torch.equal(tensors[target], tensor)
