"""What a run becomes among the models of ``transformers``.

| run | becomes |
|---|---|
| modern, causal | Llama, with query and key norms Qwen3 |
| modern, masked | EuroBERT |
| modern classifier, read causally at the last token | Llama's or Qwen3's, without a bias |
| modern classifier, read in full at the mean or the first token | EuroBERT's |
| classic translator | Marian |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headswap.errors import ResourceError, UsageError
from headswap.nn.spec import Stack
from headswap.objectives import Causal, Classify, Masked, Translate
from headswap.objectives.language import HEAD
from headswap.objectives.translate import FORWARD
from headswap.text.tokenizer import BOS, EOS, MASK
from headswap.use import Trained

REMEDY = "export it to onnx"
MARIAN_POSITIONS = 512


@dataclass(frozen=True)
class Plan:
    """What a run becomes: a class of transformers, its settings and its tensors."""

    architecture: str
    auto: str
    config: Any
    tensors: Mapping[str, Tensor]
    before: tuple[str, ...]
    after: tuple[str, ...]


def plan_of(trained: Trained, view: str | None) -> Plan:
    """The family that computes the same, or a refusal that says what does not fit."""
    objective, stack = trained.settings.objective, trained.settings.model
    if view is not None and isinstance(objective, Translate | Classify):
        raise UsageError(
            f"--as {view} chooses between the views of a language model, and this is a "
            f"{objective.name} run",
            fix="leave --as out",
        )
    if isinstance(objective, Translate):
        return _marian(trained)
    _check(_misfits(stack), "Llama or EuroBERT")
    if isinstance(objective, Classify):
        return _classifier(trained, objective)
    views = {one.name: one for one in objective.views()}
    name = view or ("causal" if "causal" in views else "masked")
    if name not in views:
        raise UsageError(
            f"a {objective.name} run has no {name} view", fix=f"use one of {', '.join(views)}"
        )
    tensors = dict(_llama(trained))
    head: Any = trained.model.heads[HEAD]
    if not stack.tied:
        tensors["lm_head.weight"] = head.weight
    if isinstance(views[name], Causal):
        kind = "Qwen3" if stack.qk_norm else "Llama"
        config = _config(kind, trained, tie_word_embeddings=stack.tied)
        return Plan(f"{kind}ForCausalLM", "AutoModelForCausalLM", config, tensors, (BOS,), ())
    assert isinstance(views[name], Masked)
    _check(["query and key norms"] if stack.qk_norm else [], "EuroBERT")
    if stack.bias:  # its head has a bias where its layers do
        missing = torch.zeros(trained.tokens.size)
        tensors["lm_head.bias"] = missing if head.bias is None else head.bias
    config = _config("EuroBert", trained, tie_word_embeddings=stack.tied)
    return Plan("EuroBertForMaskedLM", "AutoModelForMaskedLM", config, tensors, (BOS,), (EOS,))


def _classifier(trained: Trained, objective: Classify) -> Plan:
    stack, head = trained.settings.model, trained.model.heads["label"]
    unlike = [] if objective.long == "head" else [f"classify.long = {objective.long!r}"]
    unlike += ["data.clean = ['html']"] if "html" in trained.settings.data.clean else []
    fix = "train with classify.long=head" if objective.long == "windows" else REMEDY
    _check(unlike, "transformers, which reads a text from its beginning, as it is", fix)
    labels = dict(enumerate(objective.labels))
    named = {"id2label": labels, "label2id": {name: i for i, name in labels.items()}}
    tensors = dict(_llama(trained))
    spec: Any = head.spec
    if objective.sees == "causal" and objective.pool == "last" and not spec.bias:
        kind = "Qwen3" if stack.qk_norm else "Llama"
        config = _config(kind, trained, num_labels=len(labels), **named)
        tensors["score.weight"] = head.out.weight  # type: ignore[union-attr, assignment]
        auto = "AutoModelForSequenceClassification"
        return Plan(f"{kind}ForSequenceClassification", auto, config, tensors, (BOS,), ())
    pooling = {"first": "bos", "mean": "mean"}.get(objective.pool)
    if objective.sees == "full" and spec.dense and pooling and not stack.qk_norm:
        config = _config(
            "EuroBert", trained, num_labels=len(labels), classifier_pooling=pooling, **named
        )
        parts: Any = head
        tensors |= {
            "dense.weight": parts.dense.weight,
            "dense.bias": parts.dense.bias,
            "classifier.weight": parts.out.weight,
            "classifier.bias": parts.out.bias,
        }
        auto = "AutoModelForSequenceClassification"
        return Plan("EuroBertForSequenceClassification", auto, config, tensors, (BOS,), (EOS,))
    reasons = [f"{objective.sees} reading at {objective.pool}"]
    if stack.qk_norm and objective.sees == "full":
        reasons.append("query and key norms")
    _check(reasons, "transformers' classifiers")
    raise AssertionError


def _misfits(stack: Stack) -> list[str]:
    """What neither Llama nor EuroBERT has."""
    wanted: dict[str, object] = {
        "norm": "rms",
        "norm_at": "pre",
        "final_norm": True,
        "positions": "rotary",
        "activation": "silu",
        "gated": True,
        "scale_embedding": False,
        "embedding_norm": False,
        "head_bias": False,
        "mixer": "attention",
    }
    return _differing(stack, wanted)


def _differing(stack: Stack, wanted: Mapping[str, object]) -> list[str]:
    return [
        f"model.{name}={getattr(stack, name)}".lower()
        for name, value in wanted.items()
        if getattr(stack, name) != value
    ]


def _check(reasons: list[str], target: str, fix: str = REMEDY) -> None:
    if reasons:
        raise UsageError(f"{', '.join(reasons)} does not fit {target}", fix=fix)


def _config(kind: str, trained: Trained, **more: Any) -> Any:
    stack, tokens = trained.settings.model, trained.tokens
    if kind != "Qwen3":
        more["mlp_bias"] = stack.bias
    if kind == "EuroBert":
        mask = tokens.special(MASK)
        more["mask_token_id"] = tokens.unk if mask is None else mask
    return getattr(transformers_library(), f"{kind}Config")(
        vocab_size=tokens.size,
        hidden_size=stack.width,
        intermediate_size=stack.feedforward,
        num_hidden_layers=stack.layers,
        num_attention_heads=stack.heads,
        num_key_value_heads=stack.heads,
        head_dim=stack.width // stack.heads,
        rms_norm_eps=stack.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": stack.rotary_base},
        max_position_embeddings=stack.length,
        attention_bias=stack.bias,
        pad_token_id=tokens.pad,
        bos_token_id=tokens.bos,
        eos_token_id=tokens.eos,
        dtype="float32",
        **more,
    )


def _llama(trained: Trained) -> Iterator[tuple[str, Tensor]]:
    """Our tensors under the names that Llama, Qwen3 and EuroBERT share."""
    ours = dict(trained.model.backbone.named_parameters())
    yield "model.embed_tokens.weight", ours["embedding.weight"]
    yield "model.norm.weight", ours["final_norm.weight"]
    for name, tensor in ours.items():
        if not name.startswith("layers."):
            continue
        _, number, part = name.split(".", 2)
        layer, end = f"model.layers.{number}", part.rsplit(".", 1)[1]
        if part.startswith("attention.qkv."):
            for which, piece in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{layer}.self_attn.{which}_proj.{end}", piece
        elif part.startswith("feedforward.up."):
            for which, piece in zip(("gate", "up"), tensor.chunk(2), strict=True):
                yield f"{layer}.mlp.{which}_proj.{end}", piece
        else:
            yield f"{layer}.{LLAMA[part.rsplit('.', 1)[0]]}.{end}", tensor


LLAMA = {
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "feedforward.down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "feedforward_norm": "post_attention_layernorm",
}


def _marian(trained: Trained) -> Plan:
    stack, tokens, objective = trained.settings.model, trained.tokens, trained.settings.objective
    wanted: dict[str, object] = {
        "norm": "layer",
        "norm_at": "post",
        "norm_epsilon": 1e-5,
        "final_norm": False,
        "positions": "sinusoidal",
        "gated": False,
        "bias": True,
        "embedding_norm": False,
        "qk_norm": False,
        "shared_embedding": True,
        "tied": True,
    }
    misfits = _differing(stack, wanted)
    if misfits:
        raise UsageError(
            f"{', '.join(misfits)} does not fit Marian", fix="export it to ctranslate2"
        )
    config = transformers_library().MarianConfig(
        vocab_size=tokens.size,
        d_model=stack.width,
        encoder_layers=stack.layers,
        decoder_layers=stack.decoder_layers,
        encoder_attention_heads=stack.heads,
        decoder_attention_heads=stack.heads,
        encoder_ffn_dim=stack.feedforward,
        decoder_ffn_dim=stack.feedforward,
        activation_function=stack.activation.replace("gelu_tanh", "gelu_pytorch_tanh"),
        scale_embedding=stack.scale_embedding,
        max_position_embeddings=max(MARIAN_POSITIONS, stack.length),
        pad_token_id=tokens.pad,
        eos_token_id=tokens.eos,
        bos_token_id=tokens.bos,
        decoder_start_token_id=tokens.bos,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        dropout=0.0,
        dtype="float32",
    )
    assert isinstance(objective, Translate)
    before = (FORWARD,) if objective.both else ()
    architecture, auto = "MarianMTModel", "AutoModelForSeq2SeqLM"
    return Plan(architecture, auto, config, dict(_marian_tensors(trained)), before, (EOS,))


def _marian_tensors(trained: Trained) -> Iterator[tuple[str, Tensor]]:
    """Marian keeps the sines of a position before its cosines, we keep them in turns, so every
    dimension of the residual stream changes its place."""
    width = trained.settings.model.width
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    backbone: Any = trained.model.backbone
    bias = trained.model.heads[HEAD].bias
    yield "model.shared.weight", backbone.embedding.weight[:, order]
    yield (
        "final_logits_bias",
        (
            torch.zeros(1, trained.tokens.size) if bias is None else bias[None]  # type: ignore[index]
        ),
    )
    for side, stack in (("encoder", backbone.encoder), ("decoder", backbone.decoder)):
        for number, layer in enumerate(stack.layers):
            name = f"model.{side}.layers.{number}"
            weights, biases = layer.attention.qkv.weight.chunk(3), layer.attention.qkv.bias.chunk(3)
            parts = [(f"{name}.self_attn", weights, biases, layer.attention.out)]
            norms = {"self_attn_layer_norm": layer.attention_norm}
            if side == "decoder":
                cross = layer.cross
                weights = (cross.q.weight, *cross.kv.weight.chunk(2))
                biases = (cross.q.bias, *cross.kv.bias.chunk(2))
                parts.append((f"{name}.encoder_attn", weights, biases, cross.out))
                norms["encoder_attn_layer_norm"] = layer.cross_norm
            for attention, some, offsets, out in parts:
                for which, weight, offset in zip("qkv", some, offsets, strict=True):
                    yield f"{attention}.{which}_proj.weight", weight[:, order]
                    yield f"{attention}.{which}_proj.bias", offset
                yield f"{attention}.out_proj.weight", out.weight[order]
                yield f"{attention}.out_proj.bias", out.bias[order]
            norms["final_layer_norm"] = layer.feedforward_norm
            for norm, module in norms.items():
                yield f"{name}.{norm}.weight", module.weight[order]
                yield f"{name}.{norm}.bias", module.bias[order]
            yield f"{name}.fc1.weight", layer.feedforward.up.weight[:, order]
            yield f"{name}.fc1.bias", layer.feedforward.up.bias
            yield f"{name}.fc2.weight", layer.feedforward.down.weight[order]
            yield f"{name}.fc2.bias", layer.feedforward.down.bias[order]


def transformers_library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ResourceError(
            "this needs transformers", fix="pip install 'headswap[export]'"
        ) from error
    return transformers
