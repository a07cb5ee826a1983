"""A run as a folder that ``transformers`` loads with no code of ours.

| run | becomes |
|---|---|
| modern, causal | Llama, with query and key norms Qwen3 |
| modern, masked | EuroBERT |
| modern classifier, read causally at the last token | Llama's or Qwen3's, without a bias |
| modern classifier, read in full at the mean or the first token | EuroBERT's |
| classic translator | Marian |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from headswap.errors import ResourceError, UsageError
from headswap.export import tokens as tokens_module
from headswap.nn.spec import Stack
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Causal, Classify, Masked, Translate
from headswap.objectives.language import HEAD
from headswap.objectives.translate import FORWARD, source_inputs
from headswap.text.tokenizer import BOS, EOS, MASK, PAD, SEP, UNK
from headswap.types import Table
from headswap.use import Trained

REMEDY = "export it to onnx"
MARIAN_POSITIONS = 512
CLOSE = 1e-4


@dataclass(frozen=True)
class Plan:
    """What a run becomes: a class of transformers, its settings and its tensors."""

    architecture: str
    auto: str
    config: Any
    tensors: Mapping[str, Tensor]
    before: tuple[str, ...]
    after: tuple[str, ...]


def write(trained: Trained, folder: Path, view: str | None, texts: list[str]) -> Table:
    """Write the folder and check it: the same ids, the same scores."""
    plan = _plan(trained, view)
    converted = tokens_module.convert(trained.tokens, plan.before, plan.after)
    converted.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_settings(trained))
    plan.config.architectures = [plan.architecture]
    plan.config.save_pretrained(str(folder))
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in plan.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if plan.auto == "AutoModelForSeq2SeqLM":
        _write_json(folder / "generation_config.json", _generation(trained))
    return _parity(trained, folder, plan, texts)


def _plan(trained: Trained, view: str | None) -> Plan:
    objective, stack = trained.settings.objective, trained.settings.model
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


def _check(reasons: list[str], target: str) -> None:
    if reasons:
        raise UsageError(f"{', '.join(reasons)} does not fit {target}", fix=REMEDY)


def _config(kind: str, trained: Trained, **more: Any) -> Any:
    stack, tokens = trained.settings.model, trained.tokens
    if kind != "Qwen3":
        more["mlp_bias"] = stack.bias
    if kind == "EuroBert":
        mask = tokens.special(MASK)
        more["mask_token_id"] = tokens.unk if mask is None else mask
    return getattr(_library(), f"{kind}Config")(
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
        "shared_embedding": True,
        "tied": True,
    }
    misfits = _differing(stack, wanted)
    if misfits:
        raise UsageError(
            f"{', '.join(misfits)} does not fit Marian", fix="export it to ctranslate2"
        )
    config = _library().MarianConfig(
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
        max_position_embeddings=MARIAN_POSITIONS,
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


def _tokenizer_settings(trained: Trained) -> Table:
    known = {"bos": BOS, "eos": EOS, "unk": UNK, "pad": PAD, "mask": MASK, "sep": SEP}
    names = {
        f"{role}_token": trained.tokens.pieces([number])[0]
        for role, name in known.items()
        if (number := trained.tokens.special(name)) is not None
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": trained.settings.model.length,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        **names,
    }


def _generation(trained: Trained) -> Table:
    tokens = trained.tokens
    never = [tokens.pad, tokens.bos, tokens.unk, tokens.special(MASK), tokens.special(SEP)]
    return {
        "bos_token_id": tokens.bos,
        "eos_token_id": tokens.eos,
        "pad_token_id": tokens.pad,
        "decoder_start_token_id": tokens.bos,
        "num_beams": 4,
        "length_penalty": 1.0,
        "max_length": trained.settings.model.length,
        "suppress_tokens": [token for token in never if token is not None],
    }


@torch.no_grad()
def _parity(trained: Trained, folder: Path, plan: Plan, texts: list[str]) -> Table:
    """Load the folder as a stranger would and compare ids and scores."""
    library = _library()
    theirs = library.AutoTokenizer.from_pretrained(str(folder))
    model = getattr(library, plan.auto).from_pretrained(str(folder), attn_implementation="eager")
    model = model.float().eval()
    worst, different = 0.0, []
    objective = trained.settings.objective
    for text, plain in zip(texts, trained.tokens.encode(texts), strict=True):
        tokens = trained.tokens
        around = [tokens.special(name) for name in (*plan.before, *plan.after)]
        marks = len([mark for mark in around if mark is not None])
        room = trained.settings.model.length - marks
        ours = np.concatenate(
            [
                [tokens.special(name) for name in plan.before],
                plain[:room],
                [tokens.special(name) for name in plan.after],
            ]
        ).astype(np.int64)
        said = theirs(text, truncation=True)["input_ids"]
        if said != ours.tolist():
            different.append(text)
            continue
        ids = torch.from_numpy(ours)[None]
        expected, found = _both(trained, objective, model, ids, plan)
        worst = max(worst, float((expected - found).abs().max()))
    if different or worst > CLOSE:
        what = f"other ids for {len(different)} of {len(texts)} texts" if different else ""
        what = what or f"scores differ by {worst:.2g}"
        shown = f", the first: {different[0][:60]!r}" if different else ""
        raise UsageError(f"the exported model is not the same: {what}{shown}", fix=REMEDY)
    return {
        "architecture": plan.architecture,
        "texts": len(texts),
        "same_ids": True,
        "largest_difference": worst,
    }


def _both(
    trained: Trained, objective: Any, model: Any, ids: Tensor, plan: Plan
) -> tuple[Tensor, Tensor]:
    """Our scores and theirs."""
    ours = trained.model
    if isinstance(objective, Translate):
        target = torch.tensor([[trained.tokens.bos, *ids[0, :-1].tolist()]])
        source = source_inputs([ids[0].numpy()], trained.tokens)
        hidden = ours.backbone(Inputs(target, Visibility("causal"), source=source))
        logits = ours.heads[HEAD](hidden[0])
        return logits, model(input_ids=ids, decoder_input_ids=target).logits[0]
    if isinstance(objective, Classify):
        inputs = Inputs(ids, Visibility(objective.sees))
        scores = ours.heads["label"](ours.backbone(inputs), torch.tensor([ids.shape[1]]))
        return scores, model(input_ids=ids).logits
    rule: Any = "causal" if plan.auto == "AutoModelForCausalLM" else "full"
    logits = ours.heads[HEAD](ours.backbone(Inputs(ids, Visibility(rule)))[0])
    return logits, model(input_ids=ids).logits[0]


def _write_json(path: Path, table: Table) -> None:
    path.write_text(json.dumps(table, ensure_ascii=False, indent=2) + "\n", "utf-8")


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ResourceError(
            "this needs transformers", fix="pip install 'headswap[export]'"
        ) from error
    return transformers
