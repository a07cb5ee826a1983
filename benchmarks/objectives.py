"""Causal, masked, masked with next sentence, and hybrid pretraining at equal compute.

    HEADSWAP_DATA=… python benchmarks/objectives.py --out docs/results/objectives.json

Pretrains the recipe ``small`` with each objective on French text and on IMDb reviews, with
one tokenizer a corpus and the same training FLOPs, and scores the English models on BLiMP.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from common import headswap

from headswap import ledger, settings

CORPORA = {
    "french": (
        "french-text/modern-2000s.txt.xz",
        "french-text/news-2018-2019.txt.xz",
        "french-reviews/reviews.jsonl.xz",
        "french-reviews/book-reviews.jsonl.xz",
    ),
    "imdb": ("aclImdb/train.jsonl.xz", "aclImdb/unsup.txt.xz"),
}
OBJECTIVES = {
    "causal": ("causal", []),
    "masked": ("masked", []),
    "masked and next sentence": ("masked", ["masked.next_sentence=true"]),
    "hybrid": ("hybrid", []),
}


def flops_a_token(objective: str) -> float:
    chosen = settings.resolve(objective, "small")
    stack, made = chosen.model, chosen.objective
    causal = made.visibility == "causal"
    heads = made.heads(stack, chosen.tokenizer.vocabulary)
    return ledger.flops_a_token(stack, heads, stack.length, made.scored, causal)


def curve(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key in ("step", "tokens") or "loss" in key}
        for line in lines
        if line["split"] == "valid"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/objectives"))
    parser.add_argument("--tokens", type=int, default=30_000_000, help="for the causal model")
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    data = Path(os.environ["HEADSWAP_DATA"])
    budget = options.tokens * flops_a_token("causal")
    results: dict[str, dict[str, object]] = {}
    for corpus in options.corpora.split(","):
        first: Path | None = None
        for name, (objective, changes) in OBJECTIVES.items():
            out = options.runs / f"{corpus}-{name.replace(' ', '-')}"
            tokens = round(budget / flops_a_token(objective))
            words = [] if first is None else ["--tokenizer", first]
            if not (out / "manifest.json").exists():
                headswap(
                    "train", objective, *(data / path for path in CORPORA[corpus]),
                    "--recipe", "small", "--tokens", tokens, "--batch", 128, "--out", out,
                    "--set", "data.clean=['html']", "--set", "train.evaluate_every=200",
                    *words, *(f"--set={change}" for change in changes), "--device", options.device,
                )  # fmt: skip
            first = first or out / "tokenizer" / "sentencepiece.model"
            found: dict[str, object] = {"tokens": tokens, "valid_curve": curve(out)}
            if corpus == "imdb":
                pairs = data / "blimp/blimp.jsonl.xz"
                done = headswap("evaluate", out, pairs, "--json", "--device", options.device)
                found["blimp"] = json.loads(done.stdout)
            results.setdefault(corpus, {})[name] = found
            print(corpus, name, found["valid_curve"][-1], flush=True)  # type: ignore[index]
            options.out.parent.mkdir(parents=True, exist_ok=True)
            table = {
                "command": f"python benchmarks/objectives.py --tokens {options.tokens}",
                "training_flops": budget,
                "results": results,
            }
            options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
