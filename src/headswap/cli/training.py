"""The commands that make runs: train and resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headswap.cli.options import (
    BUDGET,
    HOSTS,
    Gpus,
    LabelColumn,
    List,
    On,
    OwnDevice,
    OwnDocuments,
    Processes,
    Repeated,
    Sources,
    TextColumn,
    reporter,
)
from headswap.errors import UsageError

if TYPE_CHECKING:
    from headswap.progress import Reporter


def train(
    objective: str,
    data: list[str],
    /,
    *,
    out: Path,
    base: Annotated[Path | None, Parameter(name="--from")] = None,
    recipe: str | None = None,
    valid: Sources = [],  # noqa: B006
    test: Sources = [],  # noqa: B006
    steps: Annotated[int | None, Parameter(group=BUDGET)] = None,
    epochs: Annotated[float | None, Parameter(group=BUDGET)] = None,
    tokens: Annotated[int | None, Parameter(group=BUDGET)] = None,
    minutes: Annotated[float | None, Parameter(group=BUDGET)] = None,
    lr: float | None = None,
    batch: int | None = None,
    seed: int | None = None,
    tokenizer: Path | None = None,
    pieces: Path | None = None,
    documents: OwnDocuments = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    set_: Annotated[Repeated, Parameter(name="--set")] = [],  # noqa: B006
    deterministic: Annotated[bool, Parameter(negative="")] = False,
    print_config: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    device: OwnDevice = None,
    gpus: Gpus = None,
    processes: Processes = None,
) -> None:
    """Train a model: pretrain a base on text, or fine-tune a classifier on labels.

    Examples:

        headswap train causal corpus.txt --out runs/base --recipe small --minutes 30

        headswap train classify reviews.csv --from runs/base --out runs/reviews

        headswap train classify reviews.csv --from hf:models/bert --out runs/bert

        headswap train classify reviews.csv --out runs/scratch

        headswap train translate train.en train.de --recipe tiny-translate --out runs/en-de

        headswap train causal s3://bucket/web shards/books --set "data.weights=[3,1]" --out runs/web

    Parameters
    ----------
    objective
        What to learn: causal (the next token), masked (hidden tokens), hybrid (both),
        classify (a label) or translate.
    data
        Files, folders or patterns: .txt, .jsonl, .csv, .tsv or .parquet; plain, .gz, .xz or
        .zst. For translate: tables of pairs, or two aligned text files, source first. For
        causal, masked and hybrid also folders of shards (see `headswap shards`), here or at a
        URL.
    out
        The run folder to make. It holds everything: settings, weights, metrics, predictions.
    base
        A finished run whose backbone is kept and whose head is swapped; english-small or
        french-small, the bases that come with Headswap; or hf:FOLDER, a local Hugging Face model
        (BERT, RoBERTa, GPT-2, Llama, EuroBERT and kin). Without it, training starts from random
        weights.
    recipe
        A named starting point (see `headswap recipes`) or a .toml file; the base's own, or
        tiny.
    valid
        Validation files. Without them a share of the data is held out.
    test
        Labelled files that are scored once, at the end.
    steps
        Optimizer steps.
    epochs
        Passes over the data.
    tokens
        Tokens read in training.
    minutes
        Wall-clock minutes; the only budget whose result depends on the machine's speed.
    lr
        The peak learning rate.
    batch
        Examples in one optimizer step.
    seed
        Decides the first weights, the order of the data and all noise.
    tokenizer
        An existing sentencepiece .model instead of a new one.
    pieces
        A dictionary that numbers the pieces of --tokenizer (one "piece count" a line).
    set_
        Any other setting, as section.name=value: --set train.accumulate=4. May be repeated.
    deterministic
        Only algorithms that give the same bytes on every run of a GPU.
    print_config
        Print every setting as TOML and stop.
    dry_run
        Check the settings and the data, say what would be trained, and stop.
    """
    from headswap import api, config, inspection, pipeline
    from headswap.run import Run, check_free
    from headswap.training import ranks, several

    flags = _given(
        train={
            "steps": steps,
            "epochs": epochs,
            "tokens": tokens,
            "minutes": minutes,
            "lr": lr,
            "batch": batch,
            "seed": seed,
            "deterministic": deterministic or None,
            "device": "cuda" if gpus else device,
        },
        tokenizer={"model": _resolved(tokenizer), "pieces": _resolved(pieces)},
        data={"documents": documents, "text_column": text_column, "label_column": label_column},
    )
    with ranks.joined() as group:
        report = group.reporter(reporter())
        with group.together():
            if base is not None and tokenizer is not None:
                base = _with_tokenizer(base, tokenizer, pieces, report)
            settings = api.plan(objective, data, recipe, base, valid, test, [flags, *set_], report)
        if dry_run:
            check_free(out, "a run" if Run(out).exists() else None)
        if print_config or dry_run:
            if group.leads and print_config:
                print(config.dumps(settings.to_table()), end="")
            elif group.leads:
                print("\n".join(inspection.plan_lines(pipeline.checked(settings)[0])))
            return
        if several.wanted(gpus, processes):
            several.launch(gpus, processes)
            return
        pipeline.start(settings, out, report, ranks=group)
        if group.leads:
            print(out)


def resume(
    run: Path,
    /,
    *,
    data: Path | None = None,
    device: str | None = None,
    gpus: Gpus = None,
    processes: Processes = None,
    on: On = None,
    list_: List = False,
    one: Annotated[str | None, Parameter(name="--run", group=HOSTS)] = None,
) -> None:
    """Go on with a run or an experiment that was stopped, killed or copied from another
    machine.

    Examples:

        headswap resume runs/base

        headswap resume runs/transfer-reviews --list

        headswap resume runs/transfer-reviews --run runs/linear-100-seed-0

    Parameters
    ----------
    run
        The folder of the run or the experiment.
    data
        A folder that holds the run's data files, when they are not where they were.
    device
        Where to compute, when not where the run began: auto, cpu, cuda, cuda:N.
    one
        Make one run of an experiment, or find it made, and stop: --run runs/linear-100-seed-0.
    """
    from headswap import pipeline
    from headswap.experiment import conduct, remaining
    from headswap.experiment.design import Folder
    from headswap.run import Run
    from headswap.training import ranks, several

    if Folder(run).exists():
        if data is not None or device is not None or several.wanted(gpus, processes):
            raise UsageError("an experiment has its own data and device", where=run)
        if list_:
            for line in remaining.commands(conduct.workshop(Folder(run))):
                print(line)
            return
        if one is not None:
            remaining.make(conduct.workshop(Folder(run)), one, reporter())
            print(run / one)
            return
        print(conduct.conduct(Folder(run), reporter(), on).path / "report.html")
        return
    if list_ or one is not None or on is not None:
        raise UsageError(
            "--list, --run and --on go with an experiment", where=run, fix="leave them out"
        )
    with ranks.joined() as group:
        with group.together():
            found = Run.open(run)
        if several.wanted(gpus, processes):
            several.launch(gpus, processes)
            return
        place = "cuda" if gpus else device
        pipeline.execute(found, group.reporter(reporter()), place, data, group)
        if group.leads:
            print(run)


def _given(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The options that were given, by section."""
    return {
        section: {key: value for key, value in options.items() if value is not None}
        for section, options in sections.items()
    }


def _resolved(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _with_tokenizer(base: Path, model: Path, pieces: Path | None, report: Reporter) -> Path:
    """The base's run, refused when it was made with another tokenizer."""
    from headswap.importing.base import open_base
    from headswap.run import TOKENIZER
    from headswap.text import tokenizer

    run = open_base(base, report)
    ours = tokenizer.load(run.path / TOKENIZER)
    if not ours.extends(tokenizer.load_model(model, pieces)):
        raise UsageError(
            f"the base was made with another tokenizer than {model}",
            where=base,
            fix="leave --tokenizer out: a base brings its own",
        )
    return Path(run.reference)
