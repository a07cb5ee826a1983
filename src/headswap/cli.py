"""The command line. Each command is a few lines over the Python interface.

Nothing heavy is imported here: ``headswap --help`` answers without torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from rich.console import Console

from headswap import __version__
from headswap.errors import HeadswapError, Interrupted, StorageError, UsageError

if TYPE_CHECKING:
    from headswap.progress import Reporter

DEVICE_HELP = "Where to compute: auto, cpu, cuda, cuda:N."

app = App(
    name="headswap",
    help=(
        "Pretrain a small Transformer on your own text, swap its head, fine-tune it on a few "
        "labels.\n\n"
        "A first session:\n\n"
        "    headswap train causal corpus.txt --out runs/base\n\n"
        "    headswap train classify reviews.csv --from runs/base --out runs/reviews\n\n"
        "    headswap predict runs/reviews new.txt"
    ),
    version=__version__,
    version_flags=["--version"],
    help_format="plaintext",
)
budgets = Group("Budget (one of)")
columns = Group("Reading")


@app.command
def train(
    objective: str,
    data: list[Path],
    /,
    *,
    out: Annotated[Path, Parameter(name="--out")],
    base: Annotated[Path | None, Parameter(name="--from")] = None,
    recipe: str | None = None,
    valid: Annotated[list[Path], Parameter(consume_multiple=True, negative="")] = [],  # noqa: B006
    test: Annotated[list[Path], Parameter(consume_multiple=True, negative="")] = [],  # noqa: B006
    steps: Annotated[int | None, Parameter(group=budgets)] = None,
    epochs: Annotated[float | None, Parameter(group=budgets)] = None,
    tokens: Annotated[int | None, Parameter(group=budgets)] = None,
    minutes: Annotated[float | None, Parameter(group=budgets)] = None,
    lr: float | None = None,
    batch: int | None = None,
    seed: int | None = None,
    tokenizer: Path | None = None,
    pieces: Path | None = None,
    documents: Annotated[Literal["auto", "blank", "line"] | None, Parameter(group=columns)] = None,
    text_column: Annotated[str | None, Parameter(group=columns)] = None,
    label_column: Annotated[str | None, Parameter(group=columns)] = None,
    set_: Annotated[list[str], Parameter(name="--set", negative="")] = [],  # noqa: B006
    deterministic: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
) -> None:
    """Train a model: pretrain a base on text, or fine-tune a classifier on labels.

    Examples:

        headswap train causal corpus.txt --out runs/base --recipe small --minutes 30

        headswap train classify reviews.csv --from runs/base --out runs/reviews

        headswap train classify reviews.csv --out runs/scratch   (no base: from scratch)

    Parameters
    ----------
    objective
        What to learn: causal (predict the next token) or classify (predict a label).
    data
        Files: .txt for text; .jsonl, .csv or .tsv for labels; plain, .gz or .xz.
    out
        The run folder to make. It holds everything: settings, weights, metrics, predictions.
    base
        A finished run whose backbone is kept and whose head is swapped.
    recipe
        A named starting point (see `headswap recipes`) or a .toml file.
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
    documents
        How .txt files are split: at blank lines, or one document a line.
    text_column
        The column that holds the text, when it has an unusual name.
    label_column
        The column that holds the label, when it has an unusual name.
    set_
        Any other setting, as section.name=value: --set train.accumulate=4.
    deterministic
        Only algorithms that give the same bytes on every run of a GPU.
    device
        Where to compute: auto, cpu, cuda, cuda:N.
    """
    from headswap import api, pipeline

    chosen: dict[str, Any] = {
        "train": {
            "steps": steps,
            "epochs": epochs,
            "tokens": tokens,
            "minutes": minutes,
            "lr": lr,
            "batch": batch,
            "seed": seed,
            "deterministic": deterministic or None,
        },
        "tokenizer": {"model": _resolved(tokenizer), "pieces": _resolved(pieces)},
        "data": {
            "documents": documents,
            "text_column": text_column,
            "label_column": label_column,
        },
    }
    flags = {
        section: {key: value for key, value in table.items() if value is not None}
        for section, table in chosen.items()
    }
    if base is not None and tokenizer is not None:
        _check_same_tokenizer(base, tokenizer, pieces)
    settings = api.plan(objective, data, recipe, base, valid, test, [flags, *set_])
    report = _reporter()
    run = pipeline.create(settings, out, report)
    pipeline.execute(run, report, device)
    print(out)


@app.command
def resume(run: Path, /, *, data: Path | None = None, device: str = "auto") -> None:
    """Go on with a run that was stopped, killed or copied from another machine.

    Parameters
    ----------
    run
        The run folder.
    data
        A folder that holds the run's data files, when they are not where they were.
    device
        Where to compute: auto, cpu, cuda, cuda:N.
    """
    from headswap import pipeline
    from headswap.run import Run

    pipeline.execute(Run.open(run), _reporter(), device, data)
    print(run)


@app.command
def predict(
    run: Path,
    source: Path | None = None,
    /,
    *,
    text: Annotated[list[str], Parameter(negative="")] = [],  # noqa: B006
    text_column: str | None = None,
    device: str = "auto",
) -> None:
    """Predict labels; one JSON line a text, on standard output.

    Parameters
    ----------
    run
        A finished classifier.
    source
        A file of texts: .txt (one a line), .jsonl, .csv or .tsv. Without it, lines are read
        from standard input.
    text
        A text given on the command line; may be repeated.
    text_column
        The column that holds the text, when it has an unusual name.
    device
        Where to compute: auto, cpu, cuda, cuda:N.
    """
    from headswap import api
    from headswap.text import corpus

    trained = api.load(run, device=device)
    texts: Iterator[str]
    if text:
        texts = iter(text)
    elif source is not None:
        texts = corpus.texts(source, corpus.Reading("line", text_column))
    else:
        texts = _standard_input()
    for prediction in trained.predict(texts):
        line = {"label": prediction.label, "probabilities": prediction.probabilities}
        print(json.dumps(line, ensure_ascii=False))


@app.command
def evaluate(
    run: Path,
    data: list[Path],
    /,
    *,
    documents: Literal["auto", "blank", "line"] = "auto",
    text_column: str | None = None,
    label_column: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    device: str = "auto",
) -> None:
    """Score a run: accuracy and macro-F1 on labels, loss and bits per byte on text.

    Parameters
    ----------
    run
        A finished run.
    data
        Labelled files for a classifier, text files for a language model.
    documents
        How .txt files are split: at blank lines, or one document a line.
    text_column
        The column that holds the text, when it has an unusual name.
    label_column
        The column that holds the label, when it has an unusual name.
    as_json
        Print one JSON object instead of lines.
    device
        Where to compute: auto, cpu, cuda, cuda:N.
    """
    from headswap import api
    from headswap.text.corpus import Reading

    trained = api.load(run, device=device)
    figures = trained.evaluate(data, Reading(documents, text_column, label_column))
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):14} {value:,}" if isinstance(value, int) else
              f"{name.replace('_', ' '):14} {value:.4f}")


@app.command
def generate(
    run: Path,
    prompts: list[str] | None = None,
    /,
    *,
    length: int = 50,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device: str = "auto",
) -> None:
    """Continue a text with a causal language model: greedy, or sampled with --temperature.

    Parameters
    ----------
    run
        A finished causal run.
    prompts
        Texts to continue. Without them, lines are read from standard input.
    length
        The most tokens to add.
    temperature
        0 takes the likeliest token each time; 0.8 is a lively choice.
    top_k
        Draw from the k likeliest tokens only.
    top_p
        Draw from the likeliest tokens that make up this share.
    seed
        Another seed draws another text.
    device
        Where to compute: auto, cpu, cuda, cuda:N.
    """
    from headswap import api
    from headswap.decoding.strategies import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)
    trained = api.load(run, device=device)
    for text in trained.generate(prompts or list(_standard_input()), length, sampling):
        print(text)


@app.command
def inspect(
    what: str,
    /,
    *,
    objective: str | None = None,
    classes: int | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Count the parameters of a run or a recipe, part by part.

    Parameters
    ----------
    what
        A run folder, a recipe's name or a recipe's .toml file.
    objective
        With a recipe: the objective whose head is counted (causal by default).
    classes
        With --objective classify: how many classes.
    as_json
        Print one JSON object instead of a table.
    """
    from headswap import inspection

    facts = inspection.facts(what, objective, classes)
    if as_json:
        print(json.dumps(facts))
    else:
        Console().print(inspection.table(facts))


@app.command
def recipes(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """List the recipes that come with Headswap.

    Parameters
    ----------
    as_json
        Print one JSON object instead of lines.
    """
    from headswap import settings

    known = settings.recipes()
    if as_json:
        print(json.dumps(known))
        return
    for name, about in known.items():
        print(f"{name:10} {about}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; every expected failure is one line and an exit code."""
    try:
        app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        _fail(UsageError(_cyclopts_message(error)))
    except HeadswapError as error:
        _fail(error)
    except KeyboardInterrupt:
        _fail(Interrupted("interrupted"))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(StorageError(error.strerror or str(error), where=error.filename))
    except MemoryError:
        from headswap.errors import ResourceError

        _fail(ResourceError("out of memory", fix="use a smaller batch or model"))


def _fail(error: HeadswapError) -> None:
    print(f"headswap: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def _cyclopts_message(error: CycloptsError) -> str:
    return " ".join(str(error).split())


def _reporter() -> Reporter:
    from headswap.progress import reporter

    return reporter()


def _standard_input() -> Iterator[str]:
    for line in sys.stdin:
        yield line.rstrip("\n")


def _resolved(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _check_same_tokenizer(base: Path, model: Path, pieces: Path | None) -> None:
    from headswap.run import TOKENIZER
    from headswap.text import tokenizer

    ours = tokenizer.load(base / TOKENIZER)
    if tokenizer.load_model(model, pieces).fingerprint != ours.fingerprint:
        raise UsageError(
            f"the base was made with another tokenizer than {model}",
            where=base,
            fix="leave --tokenizer out: a base brings its own",
        )
