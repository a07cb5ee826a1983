"""A translator or a causal model for CTranslate2, checked on real sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from headswap.decoding.beam import Beam
from headswap.decoding.translation import Search
from headswap.errors import ResourceError, UsageError
from headswap.nn.backbone import sinusoid
from headswap.objectives import Translate
from headswap.objectives.language import HEAD
from headswap.text.tokenizer import BOS, EOS, MASK, PAD, SEP, UNK
from headswap.types import Table
from headswap.use import Trained

POSITIONS = 1_024
SAME = 0.9  # near ties may go either way
LONGEST = 40


def write(trained: Trained, folder: Path, texts: list[str], int8: bool) -> Table:
    """Write the folder and compare greedy outputs."""
    library = _library()
    stack, objective = trained.settings.model, trained.settings.objective
    if stack.mixer != "attention" or stack.embedding_norm:
        raise UsageError("only attention layers without an embedding norm fit", fix="use onnx")
    if isinstance(objective, Translate):
        spec = _translator(library, trained)
    else:
        if "causal" not in {one.name for one in objective.views()}:
            raise UsageError("CTranslate2 translates and generates", fix="export it to onnx")
        spec = _generator(library, trained)
    spec.validate()
    spec.optimize(quantization="int8" if int8 else None)
    spec.save(str(folder))
    trained.tokens.save(folder)
    same = _parity(library, trained, folder, texts)
    if same < SAME and not int8:
        raise UsageError(f"only {same:.1%} of the outputs are the same", fix="export to hf")
    return {"texts": len(texts), "same_outputs": same, "quantization": "int8" if int8 else "none"}


def _translator(library: Any, trained: Trained) -> Any:
    stack, backbone = trained.settings.model, trained.model.backbone
    if stack.positions != "sinusoidal" or stack.gated or stack.norm != "layer" or stack.qk_norm:
        raise UsageError(
            "only classic translators fit (sinusoidal positions, layer norms, no gates, queries "
            "and keys without norms)",
            fix="train one with model.style=classic",
        )
    layers = (stack.layers, stack.decoder_layers)
    spec = library.specs.TransformerSpec.from_config(
        layers,
        stack.heads,
        pre_norm=stack.norm_at == "pre",
        no_final_norm=not stack.final_norm,
        activation=_activation(library, stack.activation),
    )
    sides: Any = backbone
    own = backbone.embedding if stack.shared_embedding else sides.encoder.embedding
    _side(spec.encoder, sides.encoder, stack, own.weight, encoder=True)
    _side(spec.decoder, sides.decoder, stack, backbone.embedding.weight)
    _project(spec.decoder, trained)
    names = trained.tokens.pieces(range(trained.tokens.size))
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    config = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK, "decoder_start_token": BOS}
    for name, special in config.items():
        setattr(spec.config, name, _name(trained, special))
    return spec


def _generator(library: Any, trained: Trained) -> Any:
    stack = trained.settings.model
    if stack.positions == "learned" or stack.positions == "none":
        raise UsageError(f"model.positions={stack.positions} does not fit", fix="export to onnx")
    rotary: Table = {}
    if stack.positions == "rotary":
        rotary = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": stack.rotary_base}
    spec = library.specs.TransformerDecoderModelSpec.from_config(
        stack.layers,
        stack.heads,
        pre_norm=stack.norm_at == "pre",
        no_final_norm=not stack.final_norm,
        activation=_activation(library, stack.activation),
        ffn_glu=stack.gated,
        rms_norm=stack.norm == "rms",
        qk_norm=stack.qk_norm,
        **rotary,
    )
    backbone: Any = trained.model.backbone
    _side(spec.decoder, backbone, stack, backbone.embedding.weight)
    _project(spec.decoder, trained)
    spec.register_vocabulary(trained.tokens.pieces(range(trained.tokens.size)))
    for name, special in {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK}.items():
        setattr(spec.config, name, _name(trained, special))
    if stack.norm == "rms":
        spec.config.layer_norm_epsilon = stack.norm_epsilon
    return spec


def _side(spec: Any, module: Any, stack: Any, embedding: Any, encoder: bool = False) -> None:
    tables = spec.embeddings if not encoder else spec.embeddings[0]
    tables.weight = _array(embedding)
    spec.scale_embeddings = stack.scale_embedding
    if stack.positions == "sinusoidal":
        places = torch.arange(POSITIONS)[None]
        spec.position_encodings.encodings = _array(sinusoid(places, stack.width)[0])
    if stack.final_norm:
        _norm(spec.layer_norm, module.final_norm)
    for one, layer in zip(spec.layer, module.layers, strict=True):
        _linear(one.self_attention.linear[0], layer.attention.qkv)
        _linear(one.self_attention.linear[1], layer.attention.out)
        _norm(one.self_attention.layer_norm, layer.attention_norm)
        if stack.qk_norm:
            _norm(one.self_attention.q_norm, layer.attention.q_norm)
            _norm(one.self_attention.k_norm, layer.attention.k_norm)
        if hasattr(layer, "cross"):
            _linear(one.attention.linear[0], layer.cross.q)
            _linear(one.attention.linear[1], layer.cross.kv)
            _linear(one.attention.linear[2], layer.cross.out)
            _norm(one.attention.layer_norm, layer.cross_norm)
        up = layer.feedforward.up
        if stack.gated:
            gate, value = up.weight.chunk(2)
            one.ffn.linear_0.weight, one.ffn.linear_0_noact.weight = _array(gate), _array(value)
            if up.bias is not None:
                offsets = [_array(part) for part in up.bias.chunk(2)]
                one.ffn.linear_0.bias, one.ffn.linear_0_noact.bias = offsets
        else:
            _linear(one.ffn.linear_0, up)
        _linear(one.ffn.linear_1, layer.feedforward.down)
        _norm(one.ffn.layer_norm, layer.feedforward_norm)


def _project(spec: Any, trained: Trained) -> None:
    head: Any = trained.model.heads[HEAD]
    spec.projection.weight = _array(head.weight)
    if head.bias is not None:
        spec.projection.bias = _array(head.bias)


def _parity(library: Any, trained: Trained, folder: Path, texts: list[str]) -> float:
    tokens, objective = trained.tokens, trained.settings.objective
    unheard = {name: tokens.special(name) for name in (PAD, BOS, MASK, SEP)}
    never = [_name(trained, name) for name, i in unheard.items() if i not in (None, tokens.eos)]
    threads = torch.get_num_threads()
    if isinstance(objective, Translate):
        engine = library.Translator(str(folder), inter_threads=1, intra_threads=threads)
        room = trained.settings.model.length - 2  # the rest of a text is not read
        sources = [objective.source(ids[:room], tokens) for ids in tokens.encode(texts)]
        how = Search(Beam(1), scored=False)
        said = [row[0].text for row in trained.translate(texts, how)]
        limits = [how.limit(len(source)) for source in sources]
        found = engine.translate_batch(
            [tokens.pieces(source) for source in sources],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=max(limits),
            suppress_sequences=[[name] for name in (*never, _name(trained, UNK))],
        )
        ids_of = {name: i for i, name in enumerate(tokens.pieces(range(tokens.size)))}
        theirs = [
            tokens.decode([ids_of[name] for name in row.hypotheses[0][:limit]])
            for row, limit in zip(found, limits, strict=True)
        ]
        return float(np.mean([one == two for one, two in zip(said, theirs, strict=True)]))
    engine = library.Generator(str(folder), inter_threads=1, intra_threads=threads)
    # Beside an empty prompt, CTranslate2 gives the others' prompts back with what follows.
    starts = [start for ids in tokens.encode(texts) if (start := tokens.decode(ids[:8]))]
    prompts = [tokens.pieces(ids) for ids in tokens.encode(starts)]
    ours = trained.generate(starts, LONGEST)
    found = engine.generate_batch(
        [[_name(trained, BOS), *prompt] for prompt in prompts],
        sampling_topk=1,
        max_length=LONGEST,
        include_prompt_in_result=False,
        suppress_sequences=[[name] for name in never],
    )
    ids_of = {name: i for i, name in enumerate(tokens.pieces(range(tokens.size)))}
    theirs = [
        tokens.decode([ids_of[name] for name in [*prompt, *row.sequences[0]]])
        for prompt, row in zip(prompts, found, strict=True)
    ]
    return float(np.mean([one == two for one, two in zip(ours, theirs, strict=True)]))


def _name(trained: Trained, special: str) -> str:
    """What the tokenizer calls one of our specials."""
    number = trained.tokens.special(special)
    return special if number is None else trained.tokens.pieces([number])[0]


def _activation(library: Any, name: str) -> Any:
    kinds = library.specs.Activation
    known = {"relu": kinds.RELU, "gelu": kinds.GELU, "silu": kinds.SWISH}
    return {**known, "gelu_tanh": kinds.GELUTanh}[name]


def _linear(spec: Any, module: Any) -> None:
    spec.weight = _array(module.weight)
    if module.bias is not None:
        spec.bias = _array(module.bias)


def _norm(spec: Any, module: Any) -> None:
    spec.gamma = _array(module.weight)
    if getattr(module, "bias", None) is not None:
        spec.beta = _array(module.bias)


def _array(tensor: Any) -> np.ndarray:
    return np.array(tensor.detach().float().cpu().numpy(), order="C")  # it is scaled in place


def _library() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise ResourceError(
            "this needs ctranslate2", fix="pip install 'headswap[export]'"
        ) from error
    return ctranslate2
