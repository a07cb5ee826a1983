"""The commands that show things: check, compare, inspect, recipes, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headswap.cli.options import (
    Device,
    Documents,
    Files,
    Json,
    LabelColumn,
    Repeated,
    TextColumn,
    reporter,
)
from headswap.errors import DataError, UsageError

if TYPE_CHECKING:
    from headswap.types import Table


def check(
    table: Annotated[list[Path] | None, Parameter()] = None,
    /,
    *,
    valid: Files = [],  # noqa: B006
    test: Files = [],  # noqa: B006
    text: Files = [],  # noqa: B006
    length: int = 256,
    documents: Documents = "auto",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    as_json: Json = False,
) -> None:
    """Look for what spoils an experiment: leaks between splits, duplicates, bad labels, text
    that would be cut off, HTML remains, broken encodings, other languages.

    Exits with 65 where training would be meaningless.

    Parameters
    ----------
    table
        Labelled training files.
    valid
        Labelled validation files.
    test
        Labelled test files.
    text
        Unlabelled text for pretraining.
    length
        How many tokens a model would read, to say what truncation loses.
    """
    from headswap.text import check as checking
    from headswap.text.corpus import Reading

    if length < 1:
        raise UsageError(f"a model cannot read {length} tokens", fix="give --length 1 or more")
    sources = checking.sources_of(table or [], valid, test, text)
    found = checking.check(sources, Reading(documents, text_column, label_column), length)
    print(json.dumps(found) if as_json else "\n".join(checking.lines(found)))
    if found["fatal"]:
        reasons = [entry["what"] for entry in found["findings"] if entry["fatal"]]
        raise DataError(f"training would be meaningless: {'; '.join(reasons)}")


def compare(
    runs: list[Path],
    /,
    *,
    split: Literal["test", "valid"] = "test",
    why: str | None = None,
    html: Path | None = None,
    as_json: Json = False,
) -> None:
    """Compare classifiers on the same texts: accuracy with intervals, and paired differences
    from the first. Runs that differ only in their seed count as one arm. Translators are
    compared by BLEU, with a paired bootstrap over sentences; --html writes a page about what
    pretraining bought them: runs with and without --from, by the number of their pairs.

    Parameters
    ----------
    runs
        Two or more finished classifiers, or translators, scored on the same data.
    split
        Which predictions to compare.
    why
        Why runs with different budgets or selection rules may be compared all the same.
    html
        With translators: the page to write.
    """
    from headswap import storage
    from headswap.report import compare as comparing
    from headswap.report import translations

    if translations.are_translators(runs) and html is not None:
        from headswap.report import warm

        found = warm.compare(runs, split, why)
        print(json.dumps(found) if as_json else "\n".join(warm.lines(found)))
        storage.write(html, warm.page(found))
        _say_undrawn()
        return
    if html is not None:
        raise UsageError("--html is for translators", fix="leave it out")
    if translations.are_translators(runs):
        found = translations.compare(runs, split, why)
        print(json.dumps(found) if as_json else "\n".join(translations.lines(found)))
        return
    found = comparing.compare(runs, split, why)
    print(json.dumps(found) if as_json else "\n".join(comparing.lines(found)))


def inspect(
    what: str | None = None,
    /,
    *,
    objective: str | None = None,
    classes: int | None = None,
    swap: int | None = None,
    html: Path | None = None,
    text: str | None = None,
    target: str | None = None,
    sees: Literal["causal", "full"] | None = None,
    label: str | None = None,
    word: str | None = None,
    sentence: Repeated = [],  # noqa: B006
    heads: Files = [],  # noqa: B006
    pictures: Path | None = None,
    complexity: Annotated[bool, Parameter(negative="")] = False,
    width: int | None = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """The ledger of a run or a recipe: every parameter with its formula, FLOPs and bytes. With
    --text, a look inside a run instead: its attention, its masks, what mattered, what could
    stand there.

    Examples:

        headswap inspect course

        headswap inspect course --swap 2

        headswap inspect runs/best --text "a film to remember" --html look.html

        headswap inspect runs/en-de --text "A man sleeps." --heads val.en val.de --html look.html

        headswap inspect --complexity --html complexity.html

    Parameters
    ----------
    what
        A run folder, a recipe's name or a recipe's .toml file.
    objective
        With a recipe: the objective whose head is counted (causal by default).
    classes
        With --objective classify: how many classes.
    swap
        Show a recipe's language model beside its classifier of so many classes.
    html
        Also write a page.
    text
        Look inside a run while it reads this.
    target
        With a translator: the translation to look at instead of its own.
    sees
        With a hybrid: read it causally or in full.
    label
        With a classifier: the label whose words are weighed; the predicted one by default.
    word
        With --text: also compare the vectors of this word in the sentences given with --sentence.
    sentence
        A sentence that holds the word. Give two or more.
    heads
        Data to score with each attention head switched off in turn: labelled texts, pairs or
        plain text, as the run was trained on.
    pictures
        A folder for every picture as SVG.
    complexity
        Measure attention, recurrent and convolutional layers over sequence lengths instead:
        time and memory beside their formulas.
    width
        With --complexity: the layers' width (256).
    """
    from rich.console import Console

    from headswap import inspection, storage
    from headswap.report import ledger as ledger_page

    looks = bool(target or sees or label or word or sentence or heads or pictures)
    counts = objective is not None or classes is not None or swap is not None
    if complexity:
        if what is not None or text is not None or looks or counts:
            raise UsageError("--complexity looks at layers alone", fix="leave the rest out")
        _complexity(256 if width is None else width, html, device, as_json)
        return
    if width is not None:
        raise UsageError("--width goes with --complexity", fix="leave it out")
    if what is None:
        raise UsageError("which run or recipe?", fix="name one, as in: headswap inspect course")
    if text is not None and counts:
        raise UsageError(
            "--objective, --classes and --swap count a recipe's parameters, and --text looks "
            "inside a run",
            fix="leave one of them out",
        )
    if text is not None:
        shown = {"target": target, "sees": sees, "label": label, "word": word}
        looked = _look(what, text, {**shown, "sentences": sentence}, heads, device)
        _show(looked, html, pictures, as_json)
        return
    if looks:
        raise UsageError("a look inside needs a text", fix='give --text "…"')
    if swap is not None and html is not None:
        raise UsageError("--swap has no page", fix="leave --html out, or --swap")
    if swap is not None:
        before, after = inspection.swapped(what, swap)
        if as_json:
            print(json.dumps({"before": before, "after": after}))
        else:
            Console().print(inspection.side_by_side(before, after))
        return
    facts = inspection.facts(what, objective, classes)
    if html is not None:
        storage.write(html, ledger_page.page(facts))
    if as_json:
        print(json.dumps(facts))
    else:
        for table in inspection.tables(facts):
            Console().print(table)


def _look(what: str, text: str, shown: Table, heads: list[Path], device: str) -> Table:
    from headswap import use
    from headswap.looking.attention import heads_worth
    from headswap.looking.picture import picture
    from headswap.objectives import Classify
    from headswap.run import Run
    from headswap.text import files
    from headswap.text.tables import mended

    trained = use.load(Run.open(Path(what)), device)
    if not isinstance(trained, use.Trained):
        raise UsageError("a linear model has no attention to show", where=what)
    if shown["label"] is not None and not isinstance(trained.settings.objective, Classify):
        raise UsageError("--label goes with a classifier", where=what, fix="leave it out")
    worth = heads_worth(trained, files.expand(heads), reporter()) if heads else None
    return picture(trained, mended(text), heads=worth, **shown)


def _show(found: Table, html: Path | None, folder: Path | None, as_json: bool) -> None:
    from headswap import storage
    from headswap.looking.picture import lines
    from headswap.report import charts, look

    if html is not None:
        storage.write(html, look.page(found))
    if folder is not None and not charts.missing():
        folder.mkdir(parents=True, exist_ok=True)
        for name, drawn in look.pictures(found):
            storage.write(folder / f"{name}.svg", drawn)
    print(json.dumps(found) if as_json else "\n".join(lines(found)))
    if folder is not None:
        _say_undrawn()


def _complexity(width: int, html: Path | None, device: str, as_json: bool) -> None:
    from headswap import storage
    from headswap.planning import complexity
    from headswap.report import complexity as page
    from headswap.training import machine

    found = complexity.measure(width, machine.pick_device(device), reporter())
    if html is not None:
        storage.write(html, page.page(found))
        _say_undrawn()
    print(json.dumps(found) if as_json else "\n".join(page.lines(found)))


def _say_undrawn() -> None:
    from headswap.report import charts

    if told := charts.missing():
        reporter().warn(told)


def recipes(*, as_json: Json = False) -> None:
    """List the recipes that come with Headswap."""
    from headswap import settings

    known = settings.recipes()
    if as_json:
        print(json.dumps(known))
        return
    for name, about in known.items():
        print(f"{name:10} {about}")


def demo(
    what: Literal["transfer", "translate"] = "transfer", /, *, out: Path | None = None
) -> None:
    """Run a whole experiment on real data in a few minutes.

    transfer: what pretraining buys a classifier of film snippets, ending in a report.
    translate: a translator of number names, English to French, trained in about a minute.

    Parameters
    ----------
    what
        transfer or translate.
    out
        Where it goes (runs/demo, runs/demo-translate). A demo that was stopped goes on there.
    """
    from headswap import demo as example
    from headswap.experiment.design import PAGE

    if what == "translate":
        print(example.numbers(out or Path("runs/demo-translate"), reporter()))
    else:
        print(example.demo(out or Path("runs/demo"), reporter()).path / PAGE)
