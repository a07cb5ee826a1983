"""The exported folder: written aside, checked, and only then put in its place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from headswap import storage
from headswap.errors import UsageError
from headswap.export import ct2, hf, onnx
from headswap.objectives import Translate
from headswap.run import Run
from headswap.text.tokenizer import MODEL_FILE
from headswap.text.tokenizer_json import JSON_FILE, JsonTokenizer
from headswap.types import Table
from headswap.use import Trained, load
from headswap.version import __version__
from headswap.wording import counted

Target = Literal["hf", "onnx", "ctranslate2"]
PARITY = "headswap-parity.json"

# Read by every check beside the texts that the user gives: scripts, signs, odd spaces.
TEXTS = (
    "A plain sentence, with a comma.",
    "Ça, c'est déjà l'été ; où êtes-vous ?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "  two  spaces \t and a tab ",
    "Prices rose 3.5% to $1,234.56 (see https://example.org/a?b=c).",
    "Москва, 東京, القاهرة, 🙂 and ½ ﬁ ligatures",
    "x",
)


def export(
    path: Path,
    to: Target,
    out: Path,
    *,
    view: str | None = None,
    int8: bool = False,
    texts: Sequence[str] = (),
) -> Table:
    """Write a finished run for another tool; what the check found is written beside it."""
    if out.exists():
        raise UsageError("it is already there", where=out, fix="give another --out")
    if int8 and to == "hf":
        raise UsageError("--int8 goes with onnx and ctranslate2")
    if to == "ctranslate2" and view not in (None, "causal"):
        fix = "leave out --as, or take --to onnx"
        raise UsageError(f"CTranslate2 has no use for the {view} view", fix=fix)
    run = Run.open(path)
    trained = load(run, "cpu")
    if not isinstance(trained, Trained):
        raise UsageError("a linear model cannot be exported", where=path, fix="name a neural run")
    if (mixer := trained.settings.model.mixer) != "attention":
        raise UsageError(f"a model with model.mixer={mixer} cannot be exported", where=path)
    read = [*TEXTS, *texts]
    with storage.new_folder(out) as folder:
        if to == "hf":
            found = hf.write(trained, folder, view, read)
        elif to == "onnx":
            found = onnx.write(trained, folder, view, read, int8)
        else:
            found = ct2.write(trained, folder, read, int8)
        facts = {"target": to, "run": run.path.name, "headswap": __version__, **found}
        (folder / PARITY).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
        (folder / "README.md").write_text(_card(trained, run, to, found), "utf-8")
    return facts


def _card(trained: Trained, run: Run, to: Target, found: Table) -> str:
    objective, stack = trained.settings.objective, trained.settings.model
    scores = {
        split: {key: value for key, value in figures.items() if isinstance(value, float)}
        for split, figures in run.scores().items()
        if split in ("valid", "test")
    }
    words = JSON_FILE if isinstance(trained.tokens, JsonTokenizer) else MODEL_FILE
    use = {
        "hf": f"AutoModel classes of transformers load it; the architecture is "
        f"{found.get('architecture')}.",
        "onnx": f"`headswap.json` says how a text is read; `{words}` is the tokenizer.",
        "ctranslate2": f"CTranslate2 loads the folder; `{words}` is the tokenizer.",
    }
    labels = getattr(objective, "labels", ())
    parts = [
        f"# {run.path.name}",
        f"A {objective.name} model made by Headswap {__version__}: "
        f"{counted(stack.layers, 'layer')} of width {stack.width}, "
        f"{trained.tokens.size:,} tokens, {stack.length} positions.",
    ]
    if labels:
        parts.append("Labels: " + ", ".join(f"`{label}`" for label in labels) + ".")
    if isinstance(objective, Translate) and objective.both:
        parts.append("It learnt both directions; this export translates forwards.")
    for split, figures in scores.items():
        shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        parts.append(f"On {split}: {shown}.")
    parts += [
        "## Use",
        use[to],
        "## Checked",
        f"When it was written, its outputs were compared with the run's own (`{PARITY}`).",
    ]
    return "\n\n".join(parts) + "\n"
