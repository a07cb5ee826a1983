"""Translation speed against Hugging Face's generate, on the same weights.

    python benchmarks/translate_speed.py RUN --source sentences.txt --out FILE

RUN is a classic translator (tiny-translate). It is exported as an equal Marian model; both
translate the same sentences, sorted by length, each at its best batch size, in turns; the
medians are compared, and the translations too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MarianMTModel

from headswap import use
from headswap.decoding import translation
from headswap.decoding.beam import Beam
from headswap.decoding.translation import Search
from headswap.export.folder import export
from headswap.run import Run
from headswap.text import corpus

REPEATS = 5
BATCHES = {"cpu": (16, 32, 64, 128), "cuda": (128, 256, 512, 1024)}
TOKENS = {"cpu": (600, 1_500, 3_000, 6_000), "cuda": (6_000, 12_000, 24_000, 48_000)}


def marian(run: Path) -> Any:
    """An equal Marian, by way of an export."""
    with tempfile.TemporaryDirectory() as folder:
        export(run, "hf", Path(folder) / "hf")
        return MarianMTModel.from_pretrained(Path(folder) / "hf").eval()


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
    peer = marian(options.run).to(trained.model.device)
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
