"""``hf:FOLDER`` as a base: converted once into a run folder in the cache, which is named by the
hashes of the files it was made from, and used from there like any other run."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from headswap import config as config_module
from headswap import ledger, storage
from headswap import run as runs
from headswap.errors import DataError, StorageError
from headswap.importing import words
from headswap.importing.families import EMBEDDING, HEAD_BIAS, HEAD_WEIGHT, Converted, family_of
from headswap.importing.source import CONFIG, Config, Weights
from headswap.nn.spec import Stack
from headswap.objectives import Causal, Masked
from headswap.progress import Reporter
from headswap.run import Run
from headswap.settings import DataPlan, Settings
from headswap.text import files
from headswap.text.shards import cache_root
from headswap.text.tokenizer import SMALLEST, Tokenizer, TokenizerPlan
from headswap.training.plan import Plan
from headswap.types import Table
from headswap.wording import counted

SCHEME = "hf:"
FORMAT = 1
README = "README.md"
# The recipe that a base goes on learning by: the wider it is, the lower its rates.
RECIPES = ((384, "small"), (704, "base"))
LARGEST = "large"


def open_base(name: str | Path, report: Reporter) -> Run:
    """The run that ``--from`` names: a run folder, a base that comes with Headswap, or
    ``hf:FOLDER``, a local Hugging Face model."""
    if not str(name).startswith(SCHEME):
        return Run.open(Path(name))
    try:
        folder = Path(str(name).removeprefix(SCHEME)).expanduser().resolve()
    except RuntimeError as error:  # ~ of nobody
        raise StorageError(f"no such folder ({error})", where=name) from error
    config = Config(folder)
    family = family_of(config)
    weights = Weights(folder, family.prefix)
    read = [folder / CONFIG, *weights.files, *words.files(folder)]
    hashes = {path.name: files.sha256([path]) for path in read}
    key = hashlib.sha256(json.dumps([FORMAT, hashes]).encode()).hexdigest()[:16]
    run = Run(cache_root() / "imports" / key / _name(folder))
    if run.finished and storage.problem(run.path) is None:
        report.say(f"{run.path.name}: {run.provenance()['imported']['told']}")
        return run
    report.begin(f"importing {run.path.name}")
    try:
        converted = family.convert(config, weights)
        tokens = words.tokenizer(folder, config, len(converted.tensors[EMBEDDING]))
        settings = _settings(converted.stack, family.causal, tokens)
        told = _told(family.name, settings, tokens, converted, weights.left())
        licence = _licence(folder)
        facts = {
            "from": str(folder),
            "family": family.name,
            "files": hashes,
            "licence": licence,
            "head": not converted.head,
            "told": f"{told}; licence: {licence or 'not named in the folder'}",
        }
        _write(run, settings, tokens, converted, facts)
    finally:
        report.end()
    report.say(f"{run.path.name}: {facts['told']}")
    return run


def _name(folder: Path) -> str:
    """What arms and messages call the model: a snapshot in Hugging Face's own cache
    (models--OWNER--NAME/snapshots/HASH) by its name, any other by its folder's."""
    snapshot = folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--")
    return folder.parents[1].name.rsplit("--", 1)[1] if snapshot else folder.name or "model"


def _settings(stack: Stack, causal: bool, tokens: Tokenizer) -> Settings:
    recipe = next((name for width, name in RECIPES if stack.width < width), LARGEST)
    return Settings(
        recipe=recipe,
        objective=Causal() if causal else Masked(),
        model=stack,
        tokenizer=TokenizerPlan(vocabulary=max(tokens.size, SMALLEST)),
        data=DataPlan(),
        train=Plan(),
    )


def _write(
    run: Run, settings: Settings, tokens: Tokenizer, converted: Converted, facts: Table
) -> None:
    """A finished run, in its place in one step."""
    heads = settings.objective.heads(settings.model, tokens.size)
    expected = ledger.entries(settings.model, tokens.size, heads)
    tensors = {
        name: _rows(tensor, tokens.size) if name in (EMBEDDING, HEAD_WEIGHT, HEAD_BIAS) else tensor
        for name, tensor in converted.tensors.items()
    }
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        entry.name: entry.shape for entry in expected
    }
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{name} would hold numbers that are not finite", where=facts["from"])
    count = sum(tensor.numel() for tensor in tensors.values())
    provenance = {**runs.provenance({}), "imported": facts}
    with storage.new_folder(run.path) as staged:
        with storage.ordinary(staged / runs.WEIGHTS):
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(whole, staged / runs.WEIGHTS)
        (staged / runs.TOKENIZER).mkdir()
        tokens.save(staged / runs.TOKENIZER)
        for name, table in (
            (runs.PROVENANCE, provenance),
            (runs.SCORES, {"training": {"parameters": count}}),
        ):
            (staged / name).write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        (staged / runs.CONFIG).write_text(config_module.dumps(settings.to_table()), "utf-8")


def _rows(table: Tensor, size: int) -> Tensor:
    """As many rows as the tokenizer has tokens: spare ones are cut off, and specials that the
    model did not have begin as the mean of all."""
    if len(table) >= size:
        return table[:size]
    mean = table.mean(0, keepdim=True)
    return torch.cat([table, *[mean] * (size - len(table))])


def _told(
    family: str, settings: Settings, tokens: Tokenizer, converted: Converted, left: list[str]
) -> str:
    """What it is and what of it was not carried over."""
    stack = settings.model
    reading = "causally" if settings.objective.visibility == "causal" else "in full"
    parts = [
        f"{family}, {counted(stack.layers, 'layer')} of width {stack.width}, "
        f"{tokens.size:,} tokens, read {reading} up to {stack.length:,} at a time"
    ]
    if tokens.appended:
        parts.append(f"appended {', '.join(tokens.appended)}")
    if converted.head:
        parts.append(converted.head)
    if left:
        parts.append(f"not carried over: {', '.join(left)}")
    return "; ".join(parts)


def _licence(folder: Path) -> str | None:
    """The licence that the model card's header names."""
    try:
        content = (folder / README).read_text("utf-8", errors="replace")
    except OSError:
        return None
    header = re.match(r"---\n(.*?)\n---", content, re.DOTALL)
    found = header and re.search(r"^license: *[\"']?([^\s\"']+)", header[1], re.MULTILINE)
    return found[1] if found else None
