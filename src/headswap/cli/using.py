"""The commands that use finished runs: predict, evaluate, generate, translate, fill, embed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from headswap.cli import reading
from headswap.cli.options import (
    Device,
    Documents,
    Json,
    JsonLines,
    LabelColumn,
    Repeated,
    TextColumn,
    reporter,
)
from headswap.errors import UsageError
from headswap.wording import counted

if TYPE_CHECKING:
    from headswap.types import Table
    from headswap.use import Trained


def predict(
    run: Path,
    source: Path | None = None,
    /,
    *,
    text: Repeated = [],  # noqa: B006
    out: Path | None = None,
    text_column: TextColumn = None,
    device: Device = "auto",
) -> None:
    """Predict labels; one JSON line a text, on standard output or into a file.

    Parameters
    ----------
    run
        A finished classifier, the folder of one exported to ONNX, or that of a finished
        experiment, whose seeds then vote.
    source
        A file of texts: .txt (one a line), .jsonl, .csv or .tsv; standard input for - or none.
    text
        A text given on the command line; may be repeated.
    out
        A .jsonl, .csv or .tsv file for the predictions, written whole or not at all.
    """
    from headswap import api
    from headswap.text import output

    reading.check_out(out, source)
    texts = reading.texts(text, source, text_column)
    trained = api.load(run, device=device)
    rows: Iterator[Table] = (
        {"row": number, "label": found.label, "probabilities": found.probabilities}
        for number, found in enumerate(trained.predict(texts), 1)
    )
    if out is not None:
        rows = reading.shown(rows, "predicting", reading.number_of(text, source, text_column))
        print(f"{counted(output.write_table(out, rows), 'prediction')} in {out}")
        return
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


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
    """Score a run: accuracy and macro-F1 on labels, BLEU, chrF and TER on translations, loss and
    bits per byte on text, the share of right choices on minimal pairs.

    Parameters
    ----------
    run
        A finished run, or the folder of a finished experiment, whose seeds then vote.
    data
        Labelled files for a classifier; pairs for a translator; text files, or tables of minimal
        pairs with the columns sentence_good and sentence_bad, for a language model.
    """
    from headswap import api
    from headswap.text import files
    from headswap.text.corpus import Reading
    from headswap.use import Trained

    trained = api.load(run, device=device)
    reading = Reading(documents, text_column, label_column)
    if isinstance(trained, Trained):
        report = reporter()
        report.begin("evaluating")
        try:
            figures = trained.evaluate(files.expand(data), reading, report)
        finally:
            report.end()
    else:
        figures = trained.evaluate(files.expand(data), reading)
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if isinstance(value, dict):
            continue
        shown = f"{value:,}" if isinstance(value, int) else value
        shown = f"{value:.4f}" if isinstance(value, float) else shown
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
        A finished causal or hybrid run.
    prompts
        Texts to continue; lines of standard input for - or none.
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
    from headswap.decoding.strategies import Sampling
    from headswap.text import files

    sampling = Sampling(temperature, top_k, top_p, seed)
    trained = _neural(run, device, "generate")
    if not prompts or prompts == [reading.STANDARD_INPUT]:
        prompts = list(files.standard_input())
    for text in trained.generate(prompts, length, sampling):
        print(text)


def translate(
    run: Path,
    source: Path | None = None,
    /,
    *,
    text: Repeated = [],  # noqa: B006
    out: Path | None = None,
    beam: int = 4,
    penalty: float = 1.0,
    best: int = 1,
    scores: Annotated[bool, Parameter(negative="")] = False,
    align: Annotated[bool, Parameter(negative="")] = False,
    backwards: Annotated[bool, Parameter(negative="")] = False,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    as_json: JsonLines = False,
    device: Device = "auto",
) -> None:
    """Translate sentences, one a line: of a file, of --text, or of standard input.

    Examples:

        headswap translate runs/en-de --text "A dog runs."

        headswap translate runs/en-de sentences.txt --out translations.txt

    Parameters
    ----------
    run
        A finished translator.
    source
        Sentences, one a line, or a table with a column source; standard input for - or none.
    text
        A sentence given on the command line; may be repeated.
    out
        A .txt or .jsonl file for the translations, written whole or not at all.
    beam
        How many translations are followed at a time; 1 takes the likeliest token each time.
    penalty
        The length penalty: 0 prefers short translations, 1 takes the mean a token.
    best
        Print so many translations of each sentence, best first, with their scores.
    scores
        Print the score beside each translation.
    align
        Print which source piece each piece looked at most.
    backwards
        The other direction of a model that learnt both.
    temperature
        Draw tokens instead (with --beam 1); 0.8 is a lively choice.
    top_k
        Draw from the k likeliest tokens only.
    top_p
        Draw from the likeliest tokens that make up this share.
    seed
        Another seed draws another translation.
    """
    from headswap.decoding.beam import Beam
    from headswap.decoding.strategies import Sampling
    from headswap.decoding.translation import Search
    from headswap.text import files, output

    if best < 1 or best > beam:
        raise UsageError(
            f"cannot give the best {best} of {beam}", fix=f"give --beam {max(best, 1)} or more"
        )
    if out is not None and files.kind(out) not in (".txt", ".jsonl"):
        raise UsageError("translations are written as .txt or .jsonl", where=out)
    if out is not None and files.kind(out) == ".txt" and (best > 1 or scores or align or as_json):
        raise UsageError(
            "a .txt file holds translations alone, without scores, alignments or further ones",
            where=out,
            fix="give a .jsonl file",
        )
    reading.check_out(out, source)
    column = reading.source_column(source)
    texts = reading.texts(text, source, column)
    how = Search(Beam(beam, penalty), Sampling(temperature, top_k, top_p, seed))
    trained = _neural(run, device, "translate")
    found = trained.translate(texts, how, backwards=backwards, aligned=align, report=reporter())
    if out is not None:
        found = reading.shown(found, "translating", reading.number_of(text, source, column))
    if out is not None and files.kind(out) != ".jsonl":
        count = output.write_lines(out, (some[0].text for some in found))
        print(f"{counted(count, 'translation')} in {out}")
        return
    if out is not None:
        rows = ({"translations": [vars(one) for one in some[:best]]} for some in found)
        print(f"{counted(output.write_table(out, rows), 'translation')} in {out}")
        return
    for some in found:
        if as_json:
            row = {"translations": [vars(one) for one in some[:best]]}
            print(json.dumps(row, ensure_ascii=False), flush=True)
            continue
        for one in some[:best]:
            print(f"{one.score:.4f}\t{one.text}" if scores or best > 1 else one.text, flush=True)
            if align:
                print("  ".join(f"{piece}←{seen}" for piece, seen in one.alignment or []))


def fill(
    run: Path,
    texts: list[str],
    /,
    *,
    most: int = 5,
    as_json: JsonLines = False,
    device: Device = "auto",
) -> None:
    """Say what a masked language model would put in place of each <mask>.

    Example:

        headswap fill runs/base "a good <mask> to read"

    Parameters
    ----------
    run
        A finished masked or hybrid run.
    texts
        Texts that hold <mask> once or more.
    most
        How many candidates for each mask.
    """
    trained = _neural(run, device, "fill masks")
    for text in texts:
        masks = trained.fill(text, most)
        if as_json:
            found = [[vars(candidate) for candidate in candidates] for candidates in masks]
            print(json.dumps({"text": text, "masks": found}, ensure_ascii=False))
            continue
        if len(texts) > 1:
            print(text)
        for number, candidates in enumerate(masks, 1):
            shown = "  ".join(f"{c.token} {c.probability:.3f}" for c in candidates)
            print(f"mask {number}: {shown}")


def embed(
    run: Path,
    source: Path | None = None,
    /,
    *,
    out: Path,
    pool: Literal["mean", "first", "last", "max", "concat"] = "mean",
    tokens: Annotated[bool, Parameter(negative="")] = False,
    text_column: TextColumn = None,
    device: Device = "auto",
) -> None:
    """Turn texts into vectors: one a text, or one a token in its context.

    Parameters
    ----------
    run
        Any finished run.
    source
        A file of texts: .txt (one a line), .jsonl, .csv or .tsv; standard input for - or none.
    out
        A .npy file (one row a text) or a .jsonl file.
    pool
        How a text's vectors become one.
    tokens
        Write the vector of every token instead; needs a .jsonl file.
    """
    from headswap.text import output

    output.check_vectors(out, tokens)
    reading.check_out(out, source)
    texts = reading.texts([], source, text_column)
    trained = _neural(run, device, "embed texts")
    number = reading.number_of([], source, text_column)
    if tokens:
        rows = (
            {"pieces": found.pieces, "vectors": found.vectors.tolist()}
            for found in reading.shown(trained.embed_tokens(texts), "embedding", number)
        )
        count = output.write_table(out, rows)
    else:
        vectors = reading.shown(trained.embed(texts, pool), "embedding", number)
        count = output.write_vectors(out, vectors)
    print(f"{counted(count, 'text')} in {out}")


def _neural(run: Path, device: str, verb: str) -> Trained:
    from headswap import api
    from headswap.experiment.voters import Voters
    from headswap.linear import LinearTrained
    from headswap.use import Trained

    loaded = api.load(run, device=device)
    if not isinstance(loaded, Trained):
        kinds = {LinearTrained: "a linear run", Voters: "an experiment"}
        kind = kinds.get(type(loaded), "an exported classifier")
        raise UsageError(f"{kind} cannot {verb}", where=run, fix="use a neural run")
    return loaded
