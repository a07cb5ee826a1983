"""What can be had on cls-books, IMDb, SST-2 and MR: whole experiments on real data.

    HEADSWAP_DATA=… python benchmarks/records.py --only books --out docs/results/records.json
    HEADSWAP_DATA=… python benchmarks/records.py --only imdb --out docs/results/records.json
    HEADSWAP_DATA=… python benchmarks/records.py --only sst2 --out docs/results/records.json
    HEADSWAP_DATA=… python benchmarks/records.py --only mr --out docs/results/records.json
    HEADSWAP_DATA=… python benchmarks/records.py --only books-small --out docs/results/records.json

**books**: a base of 49 million parameters reads French text and reviews (the reviews more and
more); two more bases go on to learn the ratings of other people's reviews, one of them without
Amazon's. ``headswap transfer`` then gives each the 1,600 labels of cls-books, five seeds, beside
scratch and the linear model; variants of the fine-tuning follow, to be chosen among on validation.

**imdb**: a base of that size reads the reviews of aclImdb that are not for testing; ``headswap
transfer`` draws its label curve.

**sst2**, **mr**, **books-small**: the label curves of the bases that come with Headswap,
english-small on SST-2 and MR, french-small on cls-books. MR has no splits; ``headswap transfer``
makes them.

Every step is a command that is printed, and what is done is not done again. A step that was
interrupted goes on. For one GPU: ten minutes each, of which sst2 and mr need two.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import headswap
from english_small import write_text as write_imdb

from headswap.text import corpus, files
from headswap.text.corpus import Reading
from headswap.text.likeness import fingerprint

GENERAL = (
    "novels-eltec-core", "news-2018-2019", "modern-2000s", "commonvoice-sentences",
    "parliament-2013", "book-blog",
)  # fmt: skip
REVIEWS = ("reviews", "book-reviews", "more-reviews")
LOW, HIGH = 5, 8  # stars of ten: up to LOW is bad, from HIGH on good
AMAZON = "amazon"
SHAPE = ("model.qk_norm=true", "model.embedding_norm=true")
RATES = {"adamw": 6e-4, "muon": 1.5e-3}
FINE_TUNING = (
    "train.layer_decay=0.85", "classify.label_smoothing=0.1", "classify.long=head+tail",
    "model.dropout=0.1",
)  # fmt: skip
VARIANTS = {
    "R-Drop": ("classify.r_drop=1",),
    "no dropout": ("model.dropout=0",),
    "mean, max and first": ("classify.pool=concat",),
    "one rate for all layers": ("train.layer_decay=1",),
    "no label smoothing": ("classify.label_smoothing=0",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--only", choices=list(TASKS), required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/records"))
    parser.add_argument("--recipe", default="base")
    parser.add_argument("--tokens", type=int, default=400_000_000, help="that a base reads")
    parser.add_argument("--tokens-a-batch", type=int, default=65_536, help="of pretraining")
    parser.add_argument("--tokenizer", type=Path, help="of a former run, to begin sooner")
    parser.add_argument("--optimizer", choices=list(RATES), default="muon", help="likewise")
    parser.add_argument("--labels", default=None, help="of the label curve")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6, help="of fine-tuning")
    parser.add_argument("--workers", type=int, help="runs side by side")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--variants", type=int, default=0, help="of fine-tuning, on cls-books")
    options = parser.parse_args()
    data, work = Path(os.environ["HEADSWAP_DATA"]), options.runs / options.only
    work.mkdir(parents=True, exist_ok=True)
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name, report in TASKS[options.only](data, work, options):
        found[f"{options.only}: {name}"] = summary(report)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        print(name, found[f"{options.only}: {name}"]["verdict"], flush=True)


def books(data: Path, work: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    tables = book_tables(data)
    reviews = list(rows(data))
    lines = [row["text"] for row in reviews]
    lines += [text for role in ("train", "valid") for text in texts(tables[role])]
    tested = {fingerprint(text) for text in texts(tables["test"])}
    kept = [{"text": line} for line in lines if fingerprint(line) not in tested]
    write(work / "reviews.jsonl", kept)
    print(f"{len(kept):,} reviews to read; {len(lines) - len(kept)} stand in test: left out")
    rated = [row for row in reviews if row["label"] and fingerprint(row["text"]) not in tested]
    write(work / "ratings.jsonl", rated)
    others = [row for row in rated if AMAZON not in row["source"]]
    write(work / "ratings-of-others.jsonl", others)
    print(f"{len(rated):,} with a clear rating, {len(rated) - len(others):,} of them Amazon's")
    general = [data / "french-text" / f"{name}.txt.xz" for name in GENERAL]
    general = [path for path in general if path.exists()]
    weights = [path.stat().st_size / 1e7 for path in general]
    total = sum(weights)
    base = run(
        work / "text", options, "train", "hybrid", *general, work / "reviews.jsonl",
        *pretraining(options, 256),
        "--set", f"data.weights={[*weights, total / 3]}",
        "--set", f"data.weights_end={[*weights, total * 3]}",
    )  # fmt: skip
    kinds = {"ratings": rated, "ratings-of-others": others}
    with ThreadPoolExecutor(len(kinds)) as pool:
        bases = [base, *pool.map(lambda name: rate(name, kinds[name], base, work, options), kinds)]
    yield "all", experiment(work / "transfer", options, tables, bases, FINE_TUNING)
    for name, changes in list(VARIANTS.items())[: options.variants]:
        out = work / f"transfer-{name.replace(' ', '-').replace(',', '')}"
        yield name, experiment(out, options, tables, bases[1:2], (*FINE_TUNING, *changes))


def imdb(data: Path, work: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    text = work / "imdb.txt"
    if not text.exists():
        write_imdb(data / "aclImdb", text)
    base = run(
        work / "text", options, "train", "hybrid", text, "--documents", "line",
        *pretraining(options, 512), "--set", "model.length=512",
    )  # fmt: skip
    tables = {role: data / "aclImdb" / f"{role}.jsonl.xz" for role in ("train", "test")}
    yield "all", experiment(work / "transfer", options, tables, [base], FINE_TUNING, ("html",))


def sst2(data: Path, work: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    roles = {"train": "train", "valid": "dev", "test": "test"}
    folder = data / "english-classification"
    tables = {role: folder / f"sst2.{name}.jsonl.gz" for role, name in roles.items()}
    yield "all", experiment(work / "transfer", options, tables, [Path("english-small")], ())


def mr(data: Path, work: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    tables = {"train": data / "english-classification" / "mr.all.jsonl.gz"}
    yield "all", experiment(work / "transfer", options, tables, [Path("english-small")], ())


def books_small(data: Path, work: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    tables = book_tables(data)
    yield "all", experiment(work / "transfer", options, tables, [Path("french-small")], ())


TASKS = {"books": books, "imdb": imdb, "sst2": sst2, "mr": mr, "books-small": books_small}


def pretraining(options: argparse.Namespace, length: int) -> list[object]:
    return [
        "--recipe", options.recipe, "--tokens", options.tokens,
        "--batch", options.tokens_a_batch // length, "--lr", RATES[options.optimizer],
        *changed((f"train.optimizer={options.optimizer}", *SHAPE)),
        *(["--tokenizer", options.tokenizer] if options.tokenizer else []),
    ]  # fmt: skip


def book_tables(data: Path) -> dict[str, Path]:
    folder = data / "cls-books"
    return {role: folder / f"{role}.jsonl.gz" for role in ("train", "valid", "test")}


def rate(
    name: str, rated: Sequence[dict[str, str]], base: Path, work: Path, options: argparse.Namespace
) -> Path:
    """The base, when it has also learnt to tell good reviews from bad; both weigh the same."""
    good = sum(row["label"] == "1" for row in rated) / len(rated)
    weights = [round(0.5 / (1 - good), 3), round(0.5 / good, 3)]
    return run(
        work / f"text-and-{name}", options, "train", "classify", work / f"{name}.jsonl",
        "--from", base, "--epochs", 2, "--batch", 64, "--lr", 2e-4,
        *changed((*FINE_TUNING, f"classify.class_weights={weights}")),
    )  # fmt: skip


def run(out: Path, options: argparse.Namespace, *arguments: object) -> Path:
    """A run, made, brought to its end, or found done."""
    if (out / "manifest.json").exists():
        return out
    if (out / "config.toml").exists():
        headswap("resume", out, quiet=False)
    else:
        headswap(*arguments, "--out", out, "--device", options.device, quiet=False)
    return out


def experiment(
    out: Path,
    options: argparse.Namespace,
    tables: dict[str, Path],
    bases: Sequence[Path],
    changes: Sequence[str],
    clean: Sequence[str] = (),
) -> Path:
    if (out / "report.json").exists():
        return out
    if (out / "experiment.toml").exists():
        headswap("resume", out, quiet=False)
        return out
    arguments: list[object] = ["transfer", tables["train"]]
    arguments += [part for role in ("valid", "test") if role in tables
                  for part in (f"--{role}", tables[role])]  # fmt: skip
    arguments += [part for base in bases for part in ("--from", base)]
    arguments += ["--labels", options.labels] if options.labels else []
    arguments += ["--workers", options.workers] if options.workers else []
    arguments += ["--clean", ",".join(clean)] if clean else []
    headswap(
        *arguments, "--no-probe", "--seeds", options.seeds, "--minutes", 600,
        *changed((f"train.epochs={options.epochs}", *changes)), "--out", out,
        "--device", options.device, quiet=False,
    )  # fmt: skip
    return out


def changed(changes: Sequence[str]) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def rows(data: Path) -> Iterator[dict[str, str]]:
    """Other people's French reviews: where from, the text, and good, bad or nothing."""
    for name in REVIEWS:
        path = data / "french-reviews" / f"{name}.jsonl.xz"
        for _, line in files.lines(path):
            row = json.loads(line)
            stars = row.get("rating10")
            label = "" if stars is None or LOW < stars < HIGH else str(int(stars >= HIGH))
            yield {"text": row["text"], "label": label, "source": row["source"]}


def texts(path: Path) -> Iterator[str]:
    return iter(corpus.texts(path, Reading("line")))


def write(path: Path, table: Sequence[dict[str, str]]) -> None:
    if not path.exists():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in table)
        path.write_text("".join(lines), "utf-8")


def shown(command: Sequence[str]) -> Iterator[str]:
    """A command as its reader would give it: names without the folders of this machine."""
    for word in command:
        yield Path(word).name if Path(word).is_absolute() or word.startswith("runs/") else word


def summary(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "report.json").read_text("utf-8"))
    kept = ("name", "kind", "labels", "other_labels", "rate", "accuracy", "accuracy_by_seed",
            "over_texts", "over_seeds", "valid_accuracy", "accuracy_without_leaks")  # fmt: skip
    return {
        "command": " ".join(["headswap", *shown(found["provenance"]["command"][1:])]),
        "verdict": found["verdict"],
        "seeds": found["seeds"],
        "test_texts": found["test_texts"],
        "leaked_test_texts": found["leaked_test_texts"],
        "arms": [{name: row[name] for name in kept} for row in found["arms"]],
        "differences": found["differences"],
        "votes": found["votes"],
        "worth": found["worth"],
    }


if __name__ == "__main__":
    main()
