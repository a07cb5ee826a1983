"""Translation speed against Hugging Face's generate, on the same weights.

    python benchmarks/translate_speed.py RUN --source sentences.txt --out FILE

RUN is a classic translator (tiny-translate). Its weights are put into an equal Marian model;
both translate the same sentences, sorted by length, each at its best batch size, in turns;
the medians are compared, and the translations too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MarianConfig, MarianMTModel

from headswap import use
from headswap.decoding import translation
from headswap.decoding.beam import Beam
from headswap.decoding.translation import Search
from headswap.run import Run
from headswap.text import corpus

REPEATS = 5
BATCHES = {"cpu": (16, 32, 64, 128), "cuda": (128, 256, 512, 1024)}
TOKENS = {"cpu": (600, 1_500, 3_000, 6_000), "cuda": (6_000, 12_000, 24_000, 48_000)}


def marian(trained: use.Trained) -> Any:
    """An equal Marian. It keeps sines and cosines in halves, we in turns, so every dimension
    of the residual stream changes its place."""
    stack, tokens = trained.settings.model, trained.tokens
    settings = MarianConfig(
        vocab_size=tokens.size,
        d_model=stack.width,
        encoder_layers=stack.layers,
        decoder_layers=stack.decoder_layers,
        encoder_attention_heads=stack.heads,
        decoder_attention_heads=stack.heads,
        encoder_ffn_dim=stack.feedforward,
        decoder_ffn_dim=stack.feedforward,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=tokens.pad,
        eos_token_id=tokens.eos,
        bos_token_id=tokens.bos,
        decoder_start_token_id=tokens.bos,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
        dropout=0.0,
    )
    model = MarianMTModel(settings).eval()
    order = torch.cat([torch.arange(0, stack.width, 2), torch.arange(1, stack.width, 2)])
    ours = trained.model.backbone
    with torch.no_grad():
        model.model.shared.weight.copy_(ours.embedding.weight[:, order])
        model.final_logits_bias.zero_()
        for side, mine in (("encoder", ours.encoder), ("decoder", ours.decoder)):
            theirs = getattr(model.model, side)
            for one, two in zip(theirs.layers, mine.layers, strict=True):
                _layer(one, two, order, cross=side == "decoder")
    model.tie_weights()
    return model


def _layer(theirs: Any, mine: Any, order: torch.Tensor, cross: bool) -> None:
    parts = dict(zip("qkv", mine.attention.qkv.weight.chunk(3), strict=True))
    biases = dict(zip("qkv", mine.attention.qkv.bias.chunk(3), strict=True))
    _attention(theirs.self_attn, parts, biases, mine.attention.out, order)
    _norm(theirs.self_attn_layer_norm, mine.attention_norm, order)
    if cross:
        key, value = mine.cross.kv.weight.chunk(2)
        key_bias, value_bias = mine.cross.kv.bias.chunk(2)
        parts = {"q": mine.cross.q.weight, "k": key, "v": value}
        biases = {"q": mine.cross.q.bias, "k": key_bias, "v": value_bias}
        _attention(theirs.encoder_attn, parts, biases, mine.cross.out, order)
        _norm(theirs.encoder_attn_layer_norm, mine.cross_norm, order)
    theirs.fc1.weight.copy_(mine.feedforward.up.weight[:, order])
    theirs.fc1.bias.copy_(mine.feedforward.up.bias)
    theirs.fc2.weight.copy_(mine.feedforward.down.weight[order])
    theirs.fc2.bias.copy_(mine.feedforward.down.bias[order])
    _norm(theirs.final_layer_norm, mine.feedforward_norm, order)


def _attention(theirs: Any, parts: Any, biases: Any, out: Any, order: torch.Tensor) -> None:
    for name in "qkv":
        getattr(theirs, f"{name}_proj").weight.copy_(parts[name][:, order])
        getattr(theirs, f"{name}_proj").bias.copy_(biases[name])
    theirs.out_proj.weight.copy_(out.weight[order])
    theirs.out_proj.bias.copy_(out.bias[order])


def _norm(theirs: Any, mine: Any, order: torch.Tensor) -> None:
    theirs.weight.copy_(mine.weight[order])
    theirs.bias.copy_(mine.bias[order])


def theirs_of(model: Any, tokens: Any, beam: int) -> Callable[[Sequence[Any], int], list[Any]]:
    @torch.no_grad()
    def run(sources: Sequence[Any], batch: int) -> list[Any]:
        found: list[Any] = [None] * len(sources)
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        for start in range(0, len(order), batch):
            group = order[start : start + batch]
            size = len(sources[group[0]])
            ids = torch.full((len(group), size), tokens.pad)
            for row, i in enumerate(group):
                ids[row, : len(sources[i])] = torch.from_numpy(sources[i])
            ids = ids.to(model.device)
            out = model.generate(
                ids,
                attention_mask=(ids != tokens.pad).long(),
                num_beams=beam,
                do_sample=False,
                max_new_tokens=Search().limit(size),
                suppress_tokens=[tokens.pad, tokens.bos, tokens.unk],
                length_penalty=1.0,
            )
            for i, row in zip(group, out.tolist(), strict=True):
                kept = row[1:]
                found[i] = kept[: kept.index(tokens.eos)] if tokens.eos in kept else kept
        return found

    return run


def ours_of(trained: use.Trained, beam: int) -> Callable[[Sequence[Any], int], list[Any]]:
    def run(sources: Sequence[Any], tokens: int) -> list[Any]:
        translation.BATCH_TOKENS[trained.model.device.type] = tokens
        how = Search(Beam(beam), scored=False)
        found = translation.translate(trained.model, trained.tokens, sources, how)
        return [some[0].ids for some in found]

    return run


def timed(work: Callable[[Sequence[Any], int], Any], sources: Sequence[Any], size: int) -> float:
    began = time.perf_counter()
    work(sources, size)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="one sentence a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    trained = use.load(Run.open(options.run), options.device)
    assert isinstance(trained, use.Trained)
    tokens, device = trained.tokens, trained.model.device.type
    texts = list(corpus.texts(options.source))[: options.sentences]
    sources = [np.append(ids, tokens.eos) for ids in tokens.encode(texts)]
    peer = marian(use.load(Run.open(options.run), "cpu")).to(trained.model.device)  # type: ignore[arg-type]
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results[device] = {"sentences": len(sources), "threads": torch.get_num_threads()}
    for name, beam in (("greedy", 1), ("beam 4", 4)):
        ours, theirs = ours_of(trained, beam), theirs_of(peer, tokens, beam)
        same = np.mean(
            [a == b for a, b in zip(ours(sources, 1_500), theirs(sources, 32), strict=True)]
        )
        best_ours = min(TOKENS[device], key=partial(timed, ours, sources))
        best_theirs = min(BATCHES[device], key=partial(timed, theirs, sources))
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(REPEATS):
            times["ours"].append(timed(ours, sources, best_ours))
            times["theirs"].append(timed(theirs, sources, best_theirs))
        speeds = {side: len(sources) / statistics.median(some) for side, some in times.items()}
        results[device][name] = {
            "headswap_sentences_a_second": speeds["ours"],
            "hugging_face_sentences_a_second": speeds["theirs"],
            "ratio": speeds["ours"] / speeds["theirs"],
            "same_translations": float(same),
            "headswap_batch_tokens": best_ours,
            "hugging_face_batch_sentences": best_theirs,
        }
        print(name, results[device][name], flush=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
