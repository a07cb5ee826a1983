"""Causal, masked, masked with next sentence, and hybrid pretraining at equal compute.

    HEADSWAP_DATA=… python benchmarks/objectives.py --out docs/results/objectives.json

Pretrains the recipe ``small`` with each objective on French text and on IMDb reviews, with
one tokenizer a corpus and the same training FLOPs, several seeds each. Every base is fine-tuned
on cls-books or IMDb by ``headswap transfer``; the English ones are also scored on BLiMP.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from common import headswap
from english_small import write_text as write_imdb

from headswap import ledger, settings
from headswap.experiment.sharing import side_by_side
from headswap.text import tokenizer
from headswap.text.corpus import Reading
from headswap.text.corpus import texts as texts_of
from headswap.training.machine import pick_device

CORPORA = {
    "french": (
        "french-text/modern-2000s.txt.xz",
        "french-text/news-2018-2019.txt.xz",
        "french-reviews/reviews.jsonl.xz",
        "french-reviews/book-reviews.jsonl.xz",
    ),
    "imdb": (),
}
TASKS = {
    "french": ("cls-books/train.jsonl.gz", "cls-books/valid.jsonl.gz", "cls-books/test.jsonl.gz"),
    "imdb": ("aclImdb/train.jsonl.xz", "aclImdb/test.jsonl.xz"),
}
HELD_OUT = 1_000
"""Labels of a task that brings no validation: more would take longer than the training."""
JUDGES = 4
OBJECTIVES = {
    "causal": ("causal", []),
    "masked": ("masked", []),
    "masked and next sentence": ("masked", ["masked.next_sentence=true"]),
    "hybrid": ("hybrid", []),
}


def flops_a_token(objective: str, recipe: str) -> float:
    chosen = settings.resolve(objective, recipe)
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


def texts(data: Path, corpus: str, runs: Path) -> list[Path]:
    """What is read; of IMDb nothing that stands in test."""
    if corpus != "imdb":
        return [data / path for path in CORPORA[corpus]]
    cleaned = runs / "imdb.txt"
    if not cleaned.exists():
        write_imdb(data / "aclImdb", cleaned)
    return [cleaned]


def tables(data: Path, corpus: str, runs: Path) -> tuple[Path, Path, Path]:
    """What is trained on, chosen by and tested on."""
    train, *valid, test = (data / name for name in TASKS[corpus])
    if valid:
        return train, valid[0], test
    with lzma.open(train, "rt", encoding="utf-8") as stream:
        rows = list(stream)
    random.Random(0).shuffle(rows)
    made = runs / f"{corpus}-train.jsonl", runs / f"{corpus}-valid.jsonl"
    for path, some in zip(made, (rows[HELD_OUT:], rows[:HELD_OUT]), strict=True):
        path.write_text("".join(some), encoding="utf-8")
    return *made, test


def words_of(files: Sequence[Path], corpus: str, options: Any) -> Path:
    """The tokenizer that all bases of a corpus share, made or found done."""
    if options.tokenizer:
        return Path(options.tokenizer)
    folder: Path = options.runs / f"tokenizer-{corpus}"
    if not (model := folder / "sentencepiece.model").exists():
        reading, plan = Reading(clean=("html",)), settings.resolve("causal", options.recipe)
        documents = (text for file in files for text in texts_of(file, reading))
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.train(documents, plan.tokenizer).save(folder)
    return model


def pretrained(
    files: Sequence[Path], corpus: str, name: str, seed: int, words: Path, options: Any
) -> Path:
    """One base, made or found done."""
    objective, changes = OBJECTIVES[name]
    out: Path = options.runs / f"{corpus}-{name.replace(' ', '-')}-{seed}"
    if (out / "config.toml").exists():
        headswap("resume", out)
    else:
        headswap(
            "train", objective, *files,
            "--recipe", options.recipe, "--tokens", tokens_of(objective, options),
            "--batch", options.batch, "--seed", seed, "--out", out,
            "--set", "data.clean=['html']", "--set", "train.evaluate_every=200",
            "--tokenizer", words,
            *(f"--set={change}" for change in changes), "--device", options.device,
        )  # fmt: skip
    return out


def tokens_of(objective: str, options: Any) -> int:
    causal = flops_a_token("causal", options.recipe)
    return round(options.tokens * causal / flops_a_token(objective, options.recipe))


def judged(pairs: Path, device: str, base: Path) -> Any:
    """What a base says of minimal pairs."""
    return json.loads(headswap("evaluate", base, pairs, "--json", "--device", device).stdout)


def fine_tuned(data: Path, corpus: str, bases: list[Path], options: Any) -> dict[str, Any]:
    """What each base's classifiers score, by the base's name."""
    out = options.runs / f"transfer-{corpus}"
    if (out / "plan.json").exists():
        headswap("resume", out, quiet=False)
    else:
        train, valid, test = tables(data, corpus, options.runs)
        arguments: list[object] = ["transfer", train, "--valid", valid, "--test", test]
        arguments += [part for base in bases for part in ("--from", base)]
        arguments += ["--labels", options.labels, "--seeds", options.tunings, "--no-probe"]
        arguments += ["--workers", options.workers] if options.workers else []
        headswap(
            *arguments, "--clean", "html", "--minutes", 600, "--out", out,
            "--device", options.device, quiet=False,
        )  # fmt: skip
    found = json.loads((out / "report.json").read_text("utf-8"))
    kept = ("kind", "accuracy", "accuracy_by_seed", "over_texts", "valid_accuracy")
    return {row["name"]: {key: row[key] for key in kept} for row in found["arms"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--runs", type=Path, default=Path("runs/objectives"))
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--tokens", type=int, default=30_000_000, help="for the causal model")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--seeds", type=int, default=3, help="of pretraining")
    parser.add_argument("--tunings", type=int, default=3, help="of fine-tuning, for each base")
    parser.add_argument("--labels", type=int, default=1_600, help="to fine-tune on")
    parser.add_argument("--jobs", type=int, default=1, help="bases made side by side")
    parser.add_argument("--workers", type=int, help="classifiers made side by side")
    parser.add_argument("--tokenizer", type=Path, help="of a former run, to begin sooner")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    data, device = Path(os.environ["HEADSWAP_DATA"]), pick_device(options.device).type
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    results, made = found.get("results", {}), found.get("made", {})
    options.runs.mkdir(parents=True, exist_ok=True)
    for corpus in options.corpora.split(","):
        files = texts(data, corpus, options.runs)
        words = words_of(files, corpus, options)
        wanted = [(name, seed) for name in OBJECTIVES for seed in range(options.seeds)]
        make = partial(pretrained, files, corpus, words=words, options=options)
        judge = partial(judged, data / "blimp/blimp.jsonl.xz", options.device)
        with side_by_side(device, options.jobs), ThreadPoolExecutor(options.jobs) as pool:
            bases = dict(zip(wanted, pool.map(make, *zip(*wanted, strict=True)), strict=True))
            with ThreadPoolExecutor(JUDGES) as judges:  # beside the fine-tuning
                english = bases if corpus == "imdb" else {}
                asked = {key: judges.submit(judge, base) for key, base in english.items()}
                scores = fine_tuned(data, corpus, list(bases.values()), options)
                said = {key: future.result() for key, future in asked.items()}
        results[corpus] = {}
        for name, (objective, _) in OBJECTIVES.items():
            mine = [bases[name, seed] for seed in range(options.seeds)]
            row: dict[str, Any] = {
                "budget": tokens_of(objective, options),
                "tokens": curve(mine[0])[-1]["tokens"],
                "valid_curve": curve(mine[0]),
                "accuracy": [scores[base.name]["accuracy_by_seed"] for base in mine],
            }
            if said:
                row["blimp"] = [said[name, seed] for seed in range(options.seeds)]
            results[corpus][name] = row
        others = {name: row for name, row in scores.items() if row["kind"] != "pretrained"}
        results[corpus]["beside"] = others
        made[corpus] = {
            "command": f"python benchmarks/objectives.py --corpora {corpus} --tokens "
            f"{options.tokens} --seeds {options.seeds} --tunings {options.tunings} --labels "
            f"{options.labels}",
            "training_flops": options.tokens * flops_a_token("causal", options.recipe),
            "labels": options.labels,
        }
        table = {"made": made, "results": results}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(table, indent=1) + "\n")
        print(corpus, {name: row.get("accuracy") for name, row in results[corpus].items()})


if __name__ == "__main__":
    main()
