"""The commands of the transfer experiment: transfer and report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from headswap.cli.options import (
    HOSTS,
    Device,
    Documents,
    Files,
    LabelColumn,
    List,
    On,
    Repeated,
    TextColumn,
    reporter,
)
from headswap.errors import UsageError

BASES = Group("Bases")
SIZE = Group("Size of the experiment")


def transfer(
    table: list[Path],
    /,
    *,
    text: Files = [],  # noqa: B006
    valid: Files = [],  # noqa: B006
    test: Files = [],  # noqa: B006
    out: Path | None = None,
    base: Annotated[list[Path], Parameter(name="--from", negative="", group=BASES)] = [],  # noqa: B006
    objectives: Annotated[str | None, Parameter(group=BASES)] = None,
    recipe: Annotated[str | None, Parameter(group=BASES)] = None,
    via: Annotated[list[Path], Parameter(consume_multiple=True, negative="", group=BASES)] = [],  # noqa: B006
    minutes: Annotated[float, Parameter(group=SIZE)] = 60.0,
    pretraining_minutes: Annotated[float | None, Parameter(group=SIZE)] = None,
    seeds: Annotated[int, Parameter(group=SIZE)] = 5,
    labels: Annotated[str | None, Parameter(group=SIZE)] = None,
    reach: Annotated[str | None, Parameter(group=SIZE)] = None,
    probe: Annotated[bool, Parameter(group=SIZE)] = True,
    workers: Annotated[int | None, Parameter(group=SIZE)] = None,
    on: On = None,
    cpus: Annotated[int, Parameter(group=HOSTS)] = 1,
    gpus: Annotated[float, Parameter(group=HOSTS)] = 0.0,
    list_: List = False,
    clean: str | None = None,
    documents: Documents = "auto",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    set_: Annotated[Repeated, Parameter(name="--set")] = [],  # noqa: B006
    set_base: Annotated[Repeated, Parameter(name="--set-base")] = [],  # noqa: B006
    device: Device = "auto",
) -> None:
    """Run the whole experiment: what does pretraining buy on your text and labels?

    A linear model, the Transformer from scratch, the same one pretrained and the same one
    frozen are trained on the same labels and seeds, each with as many validation trials, and
    compared on a test set that is scored once. Ends in a report (report.html) and the best
    model (best/). A killed experiment goes on with: headswap resume OUT

    Examples:

        headswap transfer reviews.csv --text corpus.txt

        headswap transfer reviews.csv --from english-small --labels 50,200,1000

        headswap transfer reviews.csv --from english-small --from hf:models/bert

        headswap transfer train.csv --test test.csv --text corpus.txt --objectives causal,masked

        headswap transfer reviews.csv --from english-small --on ray --cpus 4

    Parameters
    ----------
    table
        Labelled files with a text and a label column: .csv, .tsv, .jsonl or .parquet.
    text
        Unlabelled text to pretrain on; the table's own texts when left out. Together with
        --from (and no --objectives), the base goes on pretraining on it, as one more arm.
    valid
        Labelled validation files. Without them a share of the table is held out.
    test
        Labelled test files, scored once at the end. Without them a share is held out.
    out
        The folder to make; runs/transfer-NAME when left out.
    base
        A finished run to start from; english-small or french-small, the bases that come with
        Headswap; or hf:FOLDER, a local Hugging Face model. May be repeated.
    objectives
        Pretrain a base for each of these, separated by commas: causal,masked,hybrid.
    recipe
        The shape of bases that are pretrained here (see `headswap recipes`).
    via
        Related labelled texts, on which each base is fine-tuned first, as one more arm.
    minutes
        What seeds, label curve and pretraining are fitted to.
    pretraining_minutes
        How many of the minutes pretraining may take; 40% of them when left out.
    seeds
        How often each arm is trained, if the time allows.
    labels
        The sizes of the label curve, separated by commas: 50,200,1000.
    reach
        Larger sizes for the scratch and linear arms alone, to measure what pretraining is
        worth in labels.
    probe
        Also train a new head on each frozen base.
    workers
        How many runs go side by side; as many as there are cores when left out.
    cpus
        With --on ray: the CPUs of a run: --cpus 4.
    gpus
        With --on ray: the GPUs of a run: --gpus 0.25 puts four on each.
    clean
        What is taken out of every text: html, whitespace, or both separated by a comma.
    set_
        A setting of every classifier, as section.name=value: --set train.batch=32.
    set_base
        A setting of the bases pretrained here: --set-base model.layers=6.
    """
    from headswap import config
    from headswap.experiment import conduct, remaining
    from headswap.experiment.design import PAGE, Design

    given = {
        "table": [str(path) for path in table],
        "valid": [str(path) for path in valid],
        "test": [str(path) for path in test],
        "text": [str(path) for path in text],
        "via": [str(path) for path in via],
        "bases": [str(path) for path in base],
        "objectives": _words(objectives),
        "labels": _numbers(labels, "--labels"),
        "reach": _numbers(reach, "--reach"),
        "seeds": seeds,
        "minutes": minutes,
        "pretraining_minutes": pretraining_minutes,
        "probe": probe,
        "recipe": recipe,
        "changes": set_,
        "base_changes": set_base,
        "documents": documents,
        "text_column": text_column,
        "label_column": label_column,
        "clean": _words(clean),
        "device": device,
        "workers": workers,
        "on": on,
        "cpus": cpus,
        "gpus": gpus,
    }
    design = config.build(Design, {key: value for key, value in given.items() if value is not None})
    folder = out or Path("runs") / f"transfer-{_stem(table[0])}"
    if list_:
        begun = conduct.begin(design, folder, reporter())
        print("\n".join(remaining.commands(conduct.workshop(begun))))
        return
    done = conduct.start(design, folder, reporter())
    print(done.path / PAGE)


def report(experiment: Path, /) -> None:
    """Write an experiment's report anew from its run folders: report.json, report.html and
    card.md. Needs no torch.

    Parameters
    ----------
    experiment
        The folder that `headswap transfer` made.
    """
    from headswap.experiment import verdict
    from headswap.experiment.design import PAGE
    from headswap.report import charts

    found = verdict.write(experiment)
    print("\n".join(verdict.lines(found)))
    if told := charts.missing():
        reporter().warn(told)
    print(experiment / PAGE)


def _words(given: str | None) -> list[str]:
    return [word.strip() for word in (given or "").split(",") if word.strip()]


def _numbers(given: str | None, option: str) -> list[int]:
    try:
        return [int(word.replace("_", "")) for word in _words(given)]
    except ValueError as error:
        raise UsageError(
            f"{option} {given!r} is not a list of numbers", fix=f"write {option} 50,200,1000"
        ) from error


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or "experiment"
