"""Our stacks equal the field's own implementations with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conftest import STACKS, causal_model, classifier
from headswap.nn.backbone import sinusoid
from headswap.nn.spec import Stack
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Classify

transformers = pytest.importorskip("transformers")
VOCABULARY = 60
LENGTHS = torch.tensor([11, 4, 8])


def ids_and_lengths() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(2, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate(LENGTHS):
        ids[row, length:] = 0
    return ids, LENGTHS


def real(hidden: torch.Tensor) -> torch.Tensor:
    return torch.cat([hidden[row, :length] for row, length in enumerate(LENGTHS)])


@pytest.mark.parametrize("rule", ["causal", "full"])
def test_classic_equals_torch_transformer_encoder(rule):
    stack = STACKS["classic"]
    model = causal_model(stack, VOCABULARY)
    layer = nn.TransformerEncoderLayer(
        stack.width, stack.heads, stack.feedforward, dropout=0.0, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, stack.layers, norm=None, enable_nested_tensor=False)
    names = {
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.out.",
        "linear1.": "feedforward.up.",
        "linear2.": "feedforward.down.",
        "norm1.": "attention_norm.",
        "norm2.": "feedforward_norm.",
    }
    ours = dict(model.backbone.named_parameters())
    with torch.no_grad():
        for name, tensor in encoder.named_parameters():
            for theirs, mine in names.items():
                name = name.replace(theirs, mine)
            tensor.copy_(ours[name])
    encoder.eval()
    ids, lengths = ids_and_lengths()
    size = ids.shape[1]
    x = model.backbone.embedding(ids) * stack.width**0.5
    x = x + sinusoid(torch.arange(size)[None], stack.width)
    mask = torch.full((size, size), float("-inf")).triu(1) if rule == "causal" else None
    with torch.no_grad():
        expected = encoder(
            x,
            mask=mask,
            src_key_padding_mask=(torch.arange(size) >= lengths[:, None])
            .float()
            .masked_fill(torch.arange(size) >= lengths[:, None], float("-inf")),
        )
        found = model.backbone(Inputs(ids, Visibility.of_lengths(rule, lengths, size)))
    torch.testing.assert_close(real(found), real(expected), rtol=1e-5, atol=1e-5)


def llama_names(stack: Stack, model: nn.Module) -> dict[str, torch.Tensor]:
    """Our tensors under the names that Llama and EuroBERT share."""
    ours = dict(model.backbone.named_parameters())
    theirs = {
        "embed_tokens.weight": ours["embedding.weight"],
        "norm.weight": ours["final_norm.weight"],
    }
    for i in range(stack.layers):
        mine, other = f"layers.{i}.", f"layers.{i}."
        q, k, v = ours[f"{mine}attention.qkv.weight"].chunk(3)
        gate, up = ours[f"{mine}feedforward.up.weight"].chunk(2)
        theirs |= {
            f"{other}self_attn.q_proj.weight": q,
            f"{other}self_attn.k_proj.weight": k,
            f"{other}self_attn.v_proj.weight": v,
            f"{other}self_attn.o_proj.weight": ours[f"{mine}attention.out.weight"],
            f"{other}mlp.gate_proj.weight": gate,
            f"{other}mlp.up_proj.weight": up,
            f"{other}mlp.down_proj.weight": ours[f"{mine}feedforward.down.weight"],
            f"{other}input_layernorm.weight": ours[f"{mine}attention_norm.weight"],
            f"{other}post_attention_layernorm.weight": ours[f"{mine}feedforward_norm.weight"],
        }
    return {f"model.{name}": tensor for name, tensor in theirs.items()}


def stock_config(kind, stack: Stack, **more):
    return kind(
        vocab_size=VOCABULARY,
        hidden_size=stack.width,
        intermediate_size=stack.feedforward,
        num_hidden_layers=stack.layers,
        num_attention_heads=stack.heads,
        num_key_value_heads=stack.heads,
        rms_norm_eps=stack.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": stack.rotary_base},
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        attn_implementation="eager",
        **more,
    )


def load(theirs: nn.Module, tensors: dict[str, torch.Tensor]) -> nn.Module:
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert not unexpected and not missing
    return theirs.eval()


def test_modern_causal_equals_llama():
    stack = STACKS["modern"]
    model = causal_model(stack, VOCABULARY)
    config = stock_config(transformers.LlamaConfig, stack)
    tensors = llama_names(stack, model) | {"lm_head.weight": model.heads["token"].weight}
    theirs = load(transformers.LlamaForCausalLM(config), tensors)
    ids, lengths = ids_and_lengths()
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).logits
        hidden = model.backbone(Inputs(ids, Visibility.of_lengths("causal", lengths, 11)))
        found = model.heads["token"](hidden)
    torch.testing.assert_close(real(found), real(expected), rtol=1e-4, atol=1e-4)


def test_modern_causal_classifier_equals_llamas():
    stack = STACKS["modern"]
    objective = Classify(("a", "b", "c"), sees="causal", pool="last")
    model = classifier(stack, VOCABULARY, objective)
    config = stock_config(transformers.LlamaConfig, stack, num_labels=3)
    tensors = llama_names(stack, model) | {"score.weight": model.heads["label"].out.weight}
    theirs = load(transformers.LlamaForSequenceClassification(config), tensors)
    ids, lengths = ids_and_lengths()
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).logits
        inputs = Inputs(ids, Visibility.of_lengths("causal", lengths, 11))
        found = model.heads["label"](model.backbone(inputs), lengths)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("pool", "theirs_pool"), [("first", "bos"), ("mean", "mean")])
def test_modern_full_classifier_equals_euroberts(pool, theirs_pool):
    stack = STACKS["modern"]
    objective = Classify(("a", "b", "c"), sees="full", pool=pool)
    model = classifier(stack, VOCABULARY, objective)
    config = stock_config(
        transformers.EuroBertConfig, stack, num_labels=3, classifier_pooling=theirs_pool
    )
    head = model.heads["label"]
    tensors = llama_names(stack, model) | {
        "dense.weight": head.dense.weight,
        "dense.bias": head.dense.bias,
        "classifier.weight": head.out.weight,
        "classifier.bias": head.out.bias,
    }
    theirs = load(transformers.EuroBertForSequenceClassification(config), tensors)
    ids, lengths = ids_and_lengths()
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).logits
        inputs = Inputs(ids, Visibility.of_lengths("full", lengths, 11))
        found = head(model.backbone(inputs), lengths)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
