"""The command that tokenises a corpus in parts: shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headswap.cli.options import Documents, Repeated, TextColumn, reporter
from headswap.errors import UsageError

if TYPE_CHECKING:
    from headswap.text.tokenizer import Tokenizer


def shards(
    text: list[Path] = [],  # noqa: B006
    /,
    *,
    out: Path | None = None,
    tokenizer: Path | None = None,
    pieces: Path | None = None,
    part: str = "1/1",
    join: Path | None = None,
    megabytes: int = 32,
    documents: Documents = "auto",
    text_column: TextColumn = None,
    clean: Annotated[Repeated, Parameter(name="--clean")] = [],  # noqa: B006
) -> None:
    """Tokenise a corpus into shards, which `train` reads from this disk or from a URL.

    Any number of workers can share the work, on any hosts that see the folder: each makes the
    shards of its part, and whoever comes last joins them. What was made is not made again, so
    a killed worker's command is simply repeated. The result is the same bytes for any number.

    Examples:

        headswap shards "web/*.jsonl" --tokenizer runs/base --out shards/web

        headswap shards "web/*.jsonl" --tokenizer runs/base --out shards/web --part 3/8

        headswap shards --join shards/web

        headswap train causal shards/web --out runs/web

    Parameters
    ----------
    text
        Files, folders or patterns. Plain .txt and .jsonl files are cut; a compressed file, a
        .csv, .tsv or .parquet is the work of one worker.
    out
        The folder to make: --out shards/web.
    tokenizer
        A run, whose tokenizer is taken (english-small too), or a sentencepiece .model:
        --tokenizer runs/base.
    pieces
        A dictionary that numbers the pieces of a .model (one "piece count" a line).
    part
        Which part of how many: --part 3/8 is the third of eight.
    join
        Put the parts that lie in a folder together, or say which is missing: --join shards/web.
    megabytes
        How much text goes into a shard: --megabytes 32.
    clean
        What is taken out of every text, html or whitespace; may be repeated: --clean html.
    """
    from headswap import config
    from headswap.progress import size
    from headswap.text import sharding
    from headswap.text.corpus import Reading

    if join is not None:
        if text or out is not None:
            raise UsageError("--join takes a folder and nothing else", fix="leave the rest out")
        sharding.join(join)
        print(join)
        return
    if not text or out is None or tokenizer is None:
        raise UsageError(
            "what, with which tokenizer, and where to?",
            fix="headswap shards TEXT --tokenizer RUN --out FOLDER",
        )
    whole = sharding.Part.of(part)
    wanted = {"documents": documents, "text": text_column, "clean": list(clean)}
    reading = config.build(Reading, {k: v for k, v in wanted.items() if v is not None})
    report = reporter()
    report.begin(f"part {whole}")
    try:
        done = sharding.make(
            text,
            _loaded(tokenizer, pieces),
            out,
            whole,
            reading,
            megabytes,
            lambda share, tokens: report.update(share, f"{size(tokens)} tokens of a shard"),
        )
    finally:
        report.end()
    if not done:
        report.say(f"part {whole} is made; others are missing")
    print(out)


def _loaded(model: Path, pieces: Path | None) -> Tokenizer:
    from headswap.run import TOKENIZER, Run
    from headswap.text import tokenizer

    if model.suffix == ".model" or (model / tokenizer.MODEL_FILE).exists():
        return tokenizer.load_model(model, pieces)
    return tokenizer.load(Run.open(model).path / TOKENIZER)
