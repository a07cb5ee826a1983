"""What ``headswap inspect`` says of a run or a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table as RichTable

from headswap import ledger, settings
from headswap.errors import UsageError
from headswap.run import TOKENIZER, Run
from headswap.text import tokenizer
from headswap.types import Table


def facts(what: str, objective: str | None, classes: int | None) -> Table:
    """The parameters of a model, from its structure."""
    run = Run(Path(what))
    if run.exists():
        if objective is not None:
            raise UsageError("a run has its own objective", fix="leave --objective out")
        chosen = settings.from_table(run.settings())
        vocabulary = tokenizer.load(run.path / TOKENIZER).size
    else:
        if Path(what).exists() and Path(what).suffix != ".toml":
            raise UsageError("neither a run folder nor a recipe", where=what)
        name = objective or "causal"
        changes: list[Table] = []
        if name == "classify":
            if classes is None or classes < 2:
                raise UsageError("how many classes?", fix="give --classes 2 or more")
            changes = [{"classify": {"labels": [str(number) for number in range(classes)]}}]
        elif classes is not None:
            raise UsageError("--classes goes with --objective classify")
        chosen = settings.resolve(name, what, changes)
        vocabulary = chosen.tokenizer.vocabulary
    heads = chosen.objective.heads(chosen.model, vocabulary)
    return {
        "what": what,
        "objective": chosen.objective.name,
        "vocabulary": vocabulary,
        "parameters": ledger.parameters(chosen.model, vocabulary, heads),
    }


def plan_lines(chosen: settings.Settings) -> Iterator[str]:
    """What a training would do, as far as the settings and the data's files tell."""
    vocabulary, data, plan = chosen.tokenizer.vocabulary, chosen.data, chosen.train
    heads = chosen.objective.heads(chosen.model, vocabulary)
    total = ledger.parameters(chosen.model, vocabulary, heads)["total"]
    start = f"the base {data.base}" if data.base else "random weights"
    yield f"{chosen.objective.name}: about {total:,} parameters, from {start}"
    for role in ("train", "valid", "test"):
        for path in getattr(data, role):
            yield f"{role}: {path} ({Path(path).stat().st_size / 1e6:.1f} MB)"
    labels = getattr(chosen.objective, "labels", ())
    if labels:
        yield f"labels: {', '.join(labels)}"
    yield (
        f"budget: {getattr(plan, plan.budget):g} {plan.budget}, batches of {plan.batch} "
        f"sequences of up to {chosen.model.length} tokens, learning rate {plan.lr:g}"
    )


def table(facts: Table) -> RichTable:
    counts = facts["parameters"]
    drawn = RichTable(title=f"{facts['what']} ({facts['objective']}): parameters")
    drawn.add_column("part")
    drawn.add_column("parameters", justify="right")
    drawn.add_column("share", justify="right")

    def row(name: str, count: int) -> None:
        drawn.add_row(name, f"{count:,}", f"{count / counts['total']:.1%}")

    row(f"embedding of {facts['vocabulary']:,} tokens", counts["embedding"])
    row("layers", counts["layers"])
    for kind, parts in counts["each"].items():
        for part, count in parts.items():
            if part != "total":
                row(f"  each {kind}: {part}", count)
    if counts["other_norms"]:
        row("other norms", counts["other_norms"])
    for name, count in counts["heads"].items():
        row(f"head: {name}", count)
    drawn.add_section()
    row("total", counts["total"])
    return drawn
