"""Make english-small, a base that comes with Headswap, from IMDb film reviews.

    HEADSWAP_DATA=… python benchmarks/english_small.py --out src/headswap/bases/english-small

Reads the reviews of aclImdb that are not for testing (train and unsup), leaves out those
that also stand in test, pretrains the recipe ``mini`` on them, and writes the run with half
precision weights and without the paths of the machine that made it. A few minutes on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from common import headswap
from safetensors.torch import load_file, save_file

from headswap import config, storage
from headswap import run as runs
from headswap.run import Run
from headswap.text import corpus
from headswap.text.corpus import Reading
from headswap.text.likeness import fingerprint

READING = Reading("line", clean=("html", "whitespace"))
TEXT = "imdb.txt"


def write_text(data: Path, out: Path) -> None:
    """One review a line; those of test, and repeats, are left out."""
    seen = {fingerprint(text) for text in corpus.texts(data / "test.jsonl.xz", READING)}
    kept = left_out = 0
    with out.open("w", encoding="utf-8") as stream:
        for name in ("train.jsonl.xz", "unsup.txt.xz"):
            for text in corpus.texts(data / name, READING):
                key = fingerprint(text)
                if key in seen:
                    left_out += 1
                    continue
                seen.add(key)
                kept += 1
                stream.write(text + "\n")
    print(f"{kept:,} reviews, {left_out:,} left out", flush=True)


def pack(run: Run, out: Path, texts: Sequence[str], told: str, script: str) -> None:
    """The run as package data: half precision, relative names, no checkpoints. ``told`` says
    what text it read."""
    shutil.rmtree(out, ignore_errors=True)
    for name in (runs.TOKENIZER, runs.PREDICTIONS):
        shutil.copytree(run.path / name, out / name)
    for name in (runs.METRICS, runs.SCORES):
        shutil.copy(run.path / name, out / name)
    weights = load_file(run.path / runs.WEIGHTS)
    save_file({name: tensor.half() for name, tensor in weights.items()}, out / runs.WEIGHTS)
    settings = run.settings()
    settings["data"]["train"] = list(texts)
    settings["train"]["device"] = "auto"
    settings["train"].pop("threads", None)
    (out / runs.CONFIG).write_text(config.dumps(settings), "utf-8")
    provenance = run.provenance()
    provenance["machine"] = {"system": "Linux", "device": "one NVIDIA H200"}
    provenance["command"] = ["python", f"benchmarks/{script}"]
    provenance["text"] = told
    (out / runs.PROVENANCE).write_text(json.dumps(provenance, indent=1) + "\n", "utf-8")
    Run(out).finish()
    assert storage.problem(out) is None
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 1e6:.1f} MB")


def pretrain(base: Run, texts: Sequence[Path], tokens: int, device: str, *more: object) -> None:
    """The recipe ``mini`` on the texts, or the rest of it."""
    if base.exists():
        headswap("resume", base.path, quiet=False)
        return
    headswap(
        "train", "hybrid", *texts, "--recipe", "mini", "--tokens", tokens, "--batch", 256,
        "--out", base.path, "--set", "train.evaluate_every=500", "--device", device, *more,
        quiet=False,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the base")
    parser.add_argument("--runs", type=Path, default=Path("runs/english-small"))
    parser.add_argument("--tokens", type=int, default=400_000_000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    text, base = options.runs / TEXT, Run(options.runs / "base")
    if not text.exists():
        write_text(Path(os.environ["HEADSWAP_DATA"]) / "aclImdb", text)
    pretrain(base, [text], options.tokens, options.device, "--documents", "line")
    told = "aclImdb (Maas et al. 2011): train and unsup, less what stands in test"
    pack(base, options.out, [TEXT], told, "english_small.py")


if __name__ == "__main__":
    main()
