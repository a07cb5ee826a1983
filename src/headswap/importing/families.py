"""The families of models that are bases here, each as the stack that computes the same and its
tensors under our names. The inverse of ``export/families.py``, and of more.

| family | becomes |
|---|---|
| BERT, RoBERTa | post-norm layers under learnt positions, read in full |
| GPT-2 | pre-norm layers under learnt positions, read causally |
| Llama, Mistral, Qwen2, Qwen3 | modern layers, read causally |
| EuroBERT | modern layers, read in full |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headswap.errors import UsageError
from headswap.importing.source import Config, Weights
from headswap.nn.spec import Stack
from headswap.objectives.language import HEAD

LONGEST = 1_024  # a longer context is read as far as this unless model.length says otherwise
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
EMBEDDING, HEAD_WEIGHT, HEAD_BIAS = (
    "backbone.embedding.weight",
    f"heads.{HEAD}.weight",
    f"heads.{HEAD}.bias",
)
Named = Iterator[tuple[str, Tensor]]
WHOLE_HEAD = ""
OTHER_HEAD = "its masked head has a layer that ours does not: the embedding stands in for it"
NO_HEAD = "there is no language-model head: the embedding stands in for it"


@dataclass(frozen=True)
class Converted:
    """A model in our terms. ``head`` says what became of its language-model head where that does
    not score tokens as it did."""

    stack: Stack
    tensors: Mapping[str, Tensor]
    head: str


@dataclass(frozen=True)
class Family:
    """``prefix`` stands before the tensors of the backbone where the file holds a head too."""

    name: str
    causal: bool
    prefix: str
    convert: Callable[[Config, Weights], Converted]


def family_of(config: Config) -> Family:
    kind = config.text("model_type", "")
    if kind not in FAMILIES:
        raise UsageError(
            f"the model_type {kind!r} cannot be imported",
            where=config.where,
            fix=f"choose one of {', '.join(FAMILIES)}",
        )
    config.refuse(
        (config.get("quantization_config") is not None, "quantized weights"),
        (bool(config.get("is_encoder_decoder")), "an encoder and a decoder"),
        (bool(config.get("add_cross_attention")), "cross-attention"),
        (bool(config.get("is_decoder")) and not FAMILIES[kind].causal, "a decoder's reading"),
        (config.get("is_causal") is False and FAMILIES[kind].causal, "reading in full"),
    )
    return FAMILIES[kind]


def _activation(config: Config, name: str, default: str) -> Any:
    given = config.text(name, default)
    config.refuse((given not in ACTIVATIONS, f"the activation {given!r}"))
    return ACTIVATIONS[given]


def _bert(config: Config, weights: Weights) -> Converted:
    """The segment of a text is always the first here, so its vector is added to every position.
    RoBERTa counts positions from beyond its padding's id."""
    relative = config.get("position_embedding_type", "absolute") != "absolute"
    config.refuse((relative, "relative positions"))
    skipped = 0 if config.get("model_type") == "bert" else int(config.real("pad_token_id", 1)) + 1
    stack = Stack(
        width=config.number("hidden_size"),
        layers=config.number("num_hidden_layers"),
        heads=config.number("num_attention_heads"),
        feedforward=config.number("intermediate_size"),
        length=config.number("max_position_embeddings") - skipped,
        norm="layer",
        norm_at="post",
        norm_epsilon=config.real("layer_norm_eps", 1e-12),
        final_norm=False,
        positions="learned",
        activation=_activation(config, "hidden_act", "gelu"),
        gated=False,
        bias=True,
        embedding_norm=True,
        tied=True,
        dropout=config.real("hidden_dropout_prob", 0.1),
        inner_dropout=0.0,
    )
    head = OTHER_HEAD if any(h in weights for h in BERT_HEADS) else NO_HEAD
    return Converted(stack, dict(_bert_tensors(stack, weights, skipped)), head)


BERT_HEADS = ("cls.predictions.bias", "lm_head.dense.weight")


def _bert_tensors(stack: Stack, weights: Weights, skipped: int) -> Named:
    d, f = stack.width, stack.feedforward
    at = "embeddings"
    yield EMBEDDING, weights.take(f"{at}.word_embeddings.weight", None, d)
    places = weights.take(f"{at}.position_embeddings.weight", stack.length + skipped, d)[skipped:]
    segments = weights.take(f"{at}.token_type_embeddings.weight", None, d)
    yield "backbone.position_embedding.weight", places + segments[:1]
    yield from _pair(weights, f"{at}.LayerNorm", "backbone.embedding_norm", d)
    for number in range(stack.layers):
        theirs, ours = f"encoder.layer.{number}", f"backbone.layers.{number}"
        parts = [f"{theirs}.attention.self.{which}" for which in ("query", "key", "value")]
        for end, shape in (("weight", (d, d)), ("bias", (d,))):
            joined = torch.cat([weights.take(f"{part}.{end}", *shape) for part in parts])
            yield f"{ours}.attention.qkv.{end}", joined
        for name, target, shape in (
            ("attention.output.dense", "attention.out", (d, d)),
            ("attention.output.LayerNorm", "attention_norm", (d,)),
            ("intermediate.dense", "feedforward.up", (f, d)),
            ("output.dense", "feedforward.down", (d, f)),
            ("output.LayerNorm", "feedforward_norm", (d,)),
        ):
            yield from _pair(weights, f"{theirs}.{name}", f"{ours}.{target}", *shape)


def _gpt2(config: Config, weights: Weights) -> Converted:
    width = config.number("n_embd")
    config.refuse(
        (not config.get("scale_attn_weights", True), "unscaled attention"),
        (bool(config.get("scale_attn_by_inverse_layer_idx")), "attention scaled by layer"),
    )
    stack = Stack(
        width=width,
        layers=config.number("n_layer"),
        heads=config.number("n_head"),
        feedforward=config.number("n_inner", 4 * width),
        length=config.number("n_positions"),
        norm="layer",
        norm_epsilon=config.real("layer_norm_epsilon", 1e-5),
        positions="learned",
        activation=_activation(config, "activation_function", "gelu_new"),
        gated=False,
        bias=True,
        tied=True,
        dropout=config.real("resid_pdrop", 0.1),
        inner_dropout=0.0,
    )
    return _with_head(config, weights, stack, dict(_gpt2_tensors(stack, weights)))


def _gpt2_tensors(stack: Stack, weights: Weights) -> Named:
    """Its linear layers keep their weights with the inputs first."""
    d, f = stack.width, stack.feedforward
    yield EMBEDDING, weights.take("wte.weight", None, d)
    yield "backbone.position_embedding.weight", weights.take("wpe.weight", stack.length, d)
    yield from _pair(weights, "ln_f", "backbone.final_norm", d)
    for number in range(stack.layers):
        theirs, ours = f"h.{number}", f"backbone.layers.{number}"
        yield from _pair(weights, f"{theirs}.ln_1", f"{ours}.attention_norm", d)
        yield from _pair(weights, f"{theirs}.ln_2", f"{ours}.feedforward_norm", d)
        for name, target, into, out in (
            ("attn.c_attn", "attention.qkv", d, 3 * d),
            ("attn.c_proj", "attention.out", d, d),
            ("mlp.c_fc", "feedforward.up", d, f),
            ("mlp.c_proj", "feedforward.down", f, d),
        ):
            yield f"{ours}.{target}.weight", weights.take(f"{theirs}.{name}.weight", into, out).T
            yield f"{ours}.{target}.bias", weights.take(f"{theirs}.{name}.bias", out)


def _llama(config: Config, weights: Weights) -> Converted:
    kind = config.table["model_type"]
    width, heads = config.number("hidden_size"), config.number("num_attention_heads")
    groups = config.number("num_key_value_heads", heads)
    rotation = config.inside("rope_scaling", "rope_parameters")
    scaling = rotation.get("rope_type", rotation.get("type", "default"))
    base = rotation.real("rope_theta", 250_000.0 if kind == "eurobert" else 10_000.0)
    windows = config.get("sliding_window") is not None and config.get(
        "use_sliding_window", kind == "mistral"
    )
    windows = bool(windows) or "sliding" in str(config.get("layer_types"))
    per_head = config.number("head_dim", max(width // heads, 1))
    config.refuse(
        (scaling != "default", f"rope scaling ({scaling})"),
        (windows, "sliding windows"),
        (per_head * heads != width, f"heads of {per_head} in a width of {width}"),
        (rotation.real("partial_rotary_factor", 1.0) != 1, "rotation of a part of each head"),
        (heads % groups != 0, f"{heads} heads in {groups} groups"),
    )
    biased = _biased(config, kind)
    stack = Stack(
        width=width,
        layers=config.number("num_hidden_layers"),
        heads=heads,
        feedforward=config.number("intermediate_size"),
        length=min(config.number("max_position_embeddings"), LONGEST),
        norm_epsilon=config.real("rms_norm_eps", 1e-5 if kind == "eurobert" else 1e-6),
        rotary_base=base,
        activation=_activation(config, "hidden_act", "silu"),
        bias=bool(biased),
        qk_norm=kind == "qwen3",
        tied=True,
        dropout=0.0,
    )
    tensors = dict(_llama_tensors(stack, weights, groups, biased))
    return _with_head(config, weights, stack, tensors)


def _biased(config: Config, kind: str) -> Collection[str]:
    """The projections that have a bias; where some have one, the others' are zeros here."""
    if kind == "qwen2":
        return tuple("qkv")
    attention = "qkvo" if config.get("attention_bias") and kind != "mistral" else ""
    mlp = ("gate", "up", "down") if config.get("mlp_bias") and kind in ("llama", "eurobert") else ()
    return (*attention, *mlp)


def _llama_tensors(stack: Stack, weights: Weights, groups: int, biased: Collection[str]) -> Named:
    """Heads that share keys and values get copies of their own."""
    d, f = stack.width, stack.feedforward
    shared, each = stack.heads // groups, stack.width // stack.heads
    yield EMBEDDING, weights.take("embed_tokens.weight", None, d)
    yield "backbone.final_norm.weight", weights.take("norm.weight", d)

    def linear(name: str, out: int, *into: int) -> Tensor:
        which, end = name.rsplit(".", 1)[1].removesuffix("_proj"), "weight" if into else "bias"
        if end == "bias" and which not in biased:
            return torch.zeros(out)
        rows = out * groups // stack.heads if which in ("k", "v") else out
        found = weights.take(f"{name}.{end}", rows, *into)
        if rows == out:
            return found
        by_head = found.reshape(groups, each, *into)
        return by_head.repeat_interleave(shared, 0).flatten(0, 1)

    for number in range(stack.layers):
        theirs, ours = f"layers.{number}", f"backbone.layers.{number}"
        joined = {
            "attention.qkv": [(f"{theirs}.self_attn.{w}_proj", d, d) for w in "qkv"],
            "attention.out": [(f"{theirs}.self_attn.o_proj", d, d)],
            "feedforward.up": [(f"{theirs}.mlp.{w}_proj", f, d) for w in ("gate", "up")],
            "feedforward.down": [(f"{theirs}.mlp.down_proj", d, f)],
        }
        for target, parts in joined.items():
            yield f"{ours}.{target}.weight", torch.cat([linear(*part) for part in parts])
            if stack.bias:
                offsets = [linear(name, out) for name, out, _ in parts]
                yield f"{ours}.{target}.bias", torch.cat(offsets)
        for name, target in (
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "feedforward_norm"),
        ):
            yield f"{ours}.{target}.weight", weights.take(f"{theirs}.{name}.weight", d)
        for which in "qk" if stack.qk_norm else "":
            norm = weights.take(f"{theirs}.self_attn.{which}_norm.weight", each)
            yield f"{ours}.attention.{which}_norm.weight", norm


def _with_head(
    config: Config, weights: Weights, stack: Stack, tensors: dict[str, Tensor]
) -> Converted:
    """The head as the file has it: weights of its own, the embedding's, with a bias or not."""
    rows = len(tensors[EMBEDDING])
    if "lm_head.bias" in weights:
        tensors[HEAD_BIAS] = weights.take("lm_head.bias", rows)
        stack = replace(stack, head_bias=True)
    if "lm_head.weight" in weights:
        own = weights.take("lm_head.weight", rows, stack.width)
        if not torch.equal(own, tensors[EMBEDDING]):
            tensors[HEAD_WEIGHT] = own
            stack = replace(stack, tied=False)
        return Converted(stack, tensors, WHOLE_HEAD)
    tied = config.get("tie_word_embeddings", config.table["model_type"] == "gpt2")
    return Converted(stack, tensors, WHOLE_HEAD if tied else NO_HEAD)


def _pair(weights: Weights, theirs: str, ours: str, *shape: int) -> Named:
    yield f"{ours}.weight", weights.take(f"{theirs}.weight", *shape)
    yield f"{ours}.bias", weights.take(f"{theirs}.bias", shape[0])


FAMILIES: Mapping[str, Family] = {
    "bert": Family("BERT", False, "bert.", _bert),
    "roberta": Family("RoBERTa", False, "roberta.", _bert),
    "xlm-roberta": Family("XLM-RoBERTa", False, "roberta.", _bert),
    "camembert": Family("CamemBERT", False, "roberta.", _bert),
    "gpt2": Family("GPT-2", True, "transformer.", _gpt2),
    "llama": Family("Llama", True, "model.", _llama),
    "mistral": Family("Mistral", True, "model.", _llama),
    "qwen2": Family("Qwen2", True, "model.", _llama),
    "qwen3": Family("Qwen3", True, "model.", _llama),
    "eurobert": Family("EuroBERT", False, "model.", _llama),
}
