"""The commands that use finished runs: predict, evaluate, generate."""

from __future__ import annotations

import json
from pathlib import Path

from headswap.cli.options import (
    Device,
    Documents,
    Json,
    LabelColumn,
    Repeated,
    TextColumn,
    standard_input,
)


def predict(
    run: Path,
    source: Path | None = None,
    /,
    *,
    text: Repeated = [],  # noqa: B006
    text_column: TextColumn = None,
    device: Device = "auto",
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
    """
    from headswap import api
    from headswap.text import corpus

    trained = api.load(run, device=device)
    if text:
        texts = iter(text)
    elif source is not None:
        texts = corpus.texts(source, corpus.Reading("line", text_column))
    else:
        texts = standard_input()
    for prediction in trained.predict(texts):
        line = {"label": prediction.label, "probabilities": prediction.probabilities}
        print(json.dumps(line, ensure_ascii=False))


def evaluate(
    run: Path,
    data: list[Path],
    /,
    *,
    documents: Documents = "auto",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    as_json: Json = False,
    device: Device = "auto",
) -> None:
    """Score a run: accuracy and macro-F1 on labels, loss and bits per byte on text.

    Parameters
    ----------
    run
        A finished run.
    data
        Labelled files for a classifier, text files for a language model.
    """
    from headswap import api
    from headswap.text.corpus import Reading

    trained = api.load(run, device=device)
    figures = trained.evaluate(data, Reading(documents, text_column, label_column))
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        print(f"{name.replace('_', ' '):14} {shown}")


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
    device: Device = "auto",
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
    """
    from headswap import api
    from headswap.decoding.strategies import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)
    trained = api.load(run, device=device)
    for text in trained.generate(prompts or list(standard_input()), length, sampling):
        print(text)
