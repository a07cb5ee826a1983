"""What ``headswap inspect`` says of a run or a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.table import Table as RichTable

from headswap import config, ledger, settings
from headswap.errors import UsageError
from headswap.planning import memory
from headswap.run import TOKENIZER, Run, shipped
from headswap.text import files, sharded, tokenizer
from headswap.text.sharded import Sharded
from headswap.types import Table


def recipe_settings(
    name: str, objective: str | None, classes: int | None, changes: Sequence[Table | str] = ()
) -> settings.Settings:
    """The settings of a recipe; a translator's is for translating, others are causal."""
    known = name in settings.recipes()
    if not known and Run(Path(name)).exists():
        raise UsageError("a run, where a recipe is wanted", where=name, fix="see headswap recipes")
    if not known and Path(name).suffix != ".toml":
        if Path(name).exists():
            raise UsageError("neither a run folder nor a recipe", where=name)
        if len(Path(name).parts) > 1:
            raise UsageError("no such run", where=name, fix="check the path, or name a recipe")
    tables = [config.parse_assignment(c) if isinstance(c, str) else c for c in changes]
    kind = objective
    if kind is None:
        tried = settings.resolve("causal", name, [t for t in tables if set(t) <= {"model"}])
        kind = "translate" if tried.model.decoder_layers else "causal"
    if kind == "classify":
        if classes is None or classes < 2:
            raise UsageError("how many classes?", fix="give --classes 2 or more")
        labels = [str(number) for number in range(classes)]
        tables.append({"classify": {"labels": labels}})
    return settings.resolve(kind, name, tables)


def facts(what: str, objective: str | None, classes: int | None) -> Table:
    """The ledger of a run or a recipe: parameters, FLOPs and bytes, from structure."""
    run = Run.open(Path(what)) if what in shipped() else Run(Path(what))
    if run.exists():
        if objective is not None:
            raise UsageError("a run has its own objective", fix="leave --objective out")
        if classes is not None:
            raise UsageError("a run has its own classes", fix="leave --classes out")
        if run.settings().get("objective") == "linear":
            raise UsageError("a linear model has no layers to count", where=what)
        chosen = settings.from_table(run.settings())
        vocabulary = tokenizer.load(run.path / TOKENIZER).size
    else:
        if classes is not None and objective != "classify":
            raise UsageError("--classes goes with --objective classify")
        chosen = recipe_settings(what, objective, classes)
        vocabulary = chosen.tokenizer.vocabulary
    return {"what": what, **_ledger(chosen, vocabulary)}


def swapped(what: str, classes: int) -> tuple[Table, Table]:
    """A recipe before and after its head is swapped."""
    if classes < 2:
        raise UsageError(f"a head for {classes} classes", fix="give --swap 2 or more")
    before = recipe_settings(what, "causal", None)
    after = recipe_settings(what, "classify", classes)
    found = [_ledger(made, made.tokenizer.vocabulary) for made in (before, after)]
    return {"what": what, **found[0]}, {"what": what, **found[1]}


def _ledger(chosen: settings.Settings, vocabulary: int) -> Table:
    stack, plan, objective = chosen.model, chosen.train, chosen.objective
    heads = objective.heads(stack, vocabulary)
    counts = ledger.parameters(stack, vocabulary, heads)
    listed = ledger.entries(stack, vocabulary, heads)
    length = memory.sequence_length(chosen)
    scored = objective.scored * (2 if stack.decoder_layers else 1)
    costs = ledger.forward(stack, heads, length, scored)
    average = plan.ema is not None or plan.average_last is not None
    one = memory.activations(stack, 1, length, objective.visibility, True, torch.float32)
    return {
        "objective": objective.name,
        "vocabulary": vocabulary,
        "parameters": counts,
        "tree": ledger.tree(listed, plan.freeze, plan.freeze_layers),
        "flops": {
            "length": length,
            "lines": costs,
            "inference_a_token": sum(line["flops"] * line["times"] for line in costs),
            "training_a_token": ledger.flops_a_token(stack, heads, length, objective.scored),
        },
        "bytes": {
            **ledger.memory(stack, listed, plan.optimizer, average),
            "activations_a_token": one / length,
        },
    }


def plan_lines(chosen: settings.Settings) -> Iterator[str]:
    """What a training would do, as far as the settings and the data's files tell."""
    vocabulary, data, plan = chosen.tokenizer.vocabulary, chosen.data, chosen.train
    heads = chosen.objective.heads(chosen.model, vocabulary)
    total = ledger.parameters(chosen.model, vocabulary, heads)["total"]
    start = f"the base {data.base}" if data.base else "random weights"
    yield f"{chosen.objective.name}: about {total:,} parameters, from {start}"
    for role in ("train", "valid", "test"):
        for name in getattr(data, role):
            path = sharded.located(name)
            told = f"{path.stat().st_size / 1e6:.1f} MB"
            if files.is_sharded(path):
                told = f"{Sharded(path).manifest.tokens:,} tokens in shards"
            yield f"{role}: {name} ({told})"
    labels = getattr(chosen.objective, "labels", ())
    if labels:
        yield f"labels: {', '.join(labels)}"
    batch = f"{plan.batch} sequences of up to {chosen.model.length} tokens"
    if plan.batch_tokens is not None:
        batch = f"{plan.batch_tokens:,} tokens of a side"
    yield (
        f"budget: {getattr(plan, plan.budget):g} {plan.budget}, batches of {batch}, learning "
        f"rate {plan.lr:g}"
    )


def tables(facts: Table) -> Iterator[RichTable]:
    """The ledger for a terminal."""
    yield _parameters_table(facts)
    yield _flops_table(facts)
    yield _bytes_table(facts)


def _parameters_table(facts: Table) -> RichTable:
    total = facts["parameters"]["total"]
    drawn = RichTable(title=f"{facts['what']} ({facts['objective']}): {total:,} parameters")
    drawn.add_column("part")
    for name in ("formula", "numbers", "parameters", "share"):
        drawn.add_column(name, justify="right")
    for row in facts["tree"]:
        times = f"{row['times']} × " if row["times"] > 1 else ""
        formula = f"{times}{row['formula']}" if "formula" in row else ""
        numbers = f"{times}({row['numbers']})" if times and "numbers" in row else ""
        frozen = "" if row.get("trainable", True) else " (frozen)"
        if row.get("frozen") and not frozen:
            frozen = f" ({row['frozen']} of {row['times']} frozen)"
        drawn.add_row(
            "  " * row["depth"] + row["name"] + frozen,
            formula,
            numbers or row.get("numbers", ""),
            f"{row['count']:,}",
            f"{row['share']:.1%}",
            style=None if "formula" in row else "bold",
        )
    drawn.add_section()
    drawn.add_row("total", "", "", f"{total:,}", "100.0%", style="bold")
    return drawn


def _flops_table(facts: Table) -> RichTable:
    flops = facts["flops"]
    drawn = RichTable(title=f"FLOPs of one token, forward, at {flops['length']:,} tokens")
    drawn.add_column("part")
    for name in ("formula", "times", "FLOPs"):
        drawn.add_column(name, justify="right")
    for line in flops["lines"]:
        shown = f"{line['times'] * line['flops']:,.0f}"
        drawn.add_row(f"{line['of']}: {line['part']}", line["formula"], str(line["times"]), shown)
    drawn.add_section()
    drawn.add_row("inference", "", "", f"{flops['inference_a_token']:,.0f}", style="bold")
    drawn.add_row("training", "3 × forward", "", f"{flops['training_a_token']:,.0f}", style="bold")
    return drawn


def _bytes_table(facts: Table) -> RichTable:
    found = facts["bytes"]
    drawn = RichTable(title="Bytes")
    for name in ("what", "formula", "MiB"):
        drawn.add_column(name, justify="left" if name == "what" else "right")
    for name in ("weights", "gradients", "optimizer"):
        drawn.add_row(name, found["formulas"][name], f"{found[name] / 2**20:,.1f}")
    for key in ("activations_a_token", "cache_a_token"):
        name = key.replace("_", " ")
        formula = found["formulas"].get(key, "kept for the backward pass")
        drawn.add_row(name, formula, f"{found[key] / 2**20:,.4f}")
    return drawn


def side_by_side(before: Table, after: Table) -> RichTable:
    """What a head swap keeps, drops and adds."""
    drawn = RichTable(title=f"{before['what']}: {before['objective']} and {after['objective']}")
    drawn.add_column("part")
    for facts in (before, after):
        drawn.add_column(facts["objective"], justify="right")
    parts = {row["path"]: row for facts in (before, after) for row in facts["tree"]}
    counts = [{row["path"]: row["count"] for row in facts["tree"]} for facts in (before, after)]
    for path, row in parts.items():
        if "formula" in row and not path.startswith("heads."):
            continue
        shown = [f"{some[path]:,}" if path in some else "–" for some in counts]
        drawn.add_row("  " * row["depth"] + row["name"], *shown)
    drawn.add_section()
    totals = [f"{facts['parameters']['total']:,}" for facts in (before, after)]
    drawn.add_row("total", *totals, style="bold")
    return drawn
