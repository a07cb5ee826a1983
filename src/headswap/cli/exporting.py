"""The command that takes a run elsewhere: export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from headswap.cli.options import Files, Json


def export(
    run: Path,
    /,
    *,
    to: Literal["hf", "onnx", "ctranslate2"],
    out: Path,
    as_: Annotated[str | None, Parameter(name="--as")] = None,
    int8: Annotated[bool, Parameter(negative="")] = False,
    check: Files = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Write a finished run for other people's tools, and check that it says the same there.

    Examples:

        headswap export runs/reviews --to onnx --out reviews-onnx

        headswap export runs/base --to hf --out base-hf

        headswap export runs/en-de --to ctranslate2 --int8 --out en-de-ct2

    Parameters
    ----------
    run
        A finished run.
    to
        hf: a folder that transformers loads; onnx: one file for onnxruntime; ctranslate2:
        fast translation and generation.
    out
        The folder to make.
    as_
        Of a hybrid run, which view: causal or masked; with onnx also vectors.
    int8
        With onnx and ctranslate2: eight-bit weights.
    check
        Text files whose lines are checked too, beside some built-in sentences.
    """
    from headswap.export.folder import export as write
    from headswap.text import corpus, files

    texts = [text for path in files.expand(check) for text in corpus.texts(path)]
    found = write(run, to, out, view=as_, int8=int8, texts=texts)
    if as_json:
        print(json.dumps(found))
        return
    print(out)
    for name, value in found.items():
        print(f"  {name}: {value}")
