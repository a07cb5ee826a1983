"""Settings that are well formed and make no sense together: refused before anything is read."""

from __future__ import annotations

from headswap.errors import UsageError
from headswap.objectives import Translate
from headswap.objectives.masked import pairs_sentences
from headswap.settings import Settings
from headswap.text.loader import Labelled, Pair, Window


def check(settings: Settings) -> None:
    """What the settings ask for and the objective cannot give, or nobody would look at."""
    plan, objective, data = settings.train, settings.objective, settings.data
    if data.weights and objective.reads is not Window:
        raise UsageError(
            f"data.weights mixes texts to pretrain on, and a {objective.name} run reads all its "
            "files alike",
            fix="leave it out",
        )
    if isinstance(objective, Translate) and (data.text_column or data.label_column):
        raise UsageError(
            "a translator's columns are named source and target: --text-column and "
            "--label-column are not looked at",
            fix="rename the columns and leave them out",
        )
    if settings.tokenizer.pieces is not None and not settings.tokenizer.model:
        raise UsageError(
            "tokenizer.pieces numbers the pieces of a model, and there is none",
            fix="give its file with --tokenizer",
        )
    gives = {Labelled: ("loss", "accuracy", "macro_f1"), Pair: ("loss", "bleu")}
    known = gives.get(objective.reads, ("loss",))
    if plan.select not in ("auto", *known):
        raise UsageError(
            f"a {objective.name} run has no {plan.select} to select by",
            fix=f"set train.select to one of: {', '.join(known)}",
        )
    if plan.batch_tokens is not None and not isinstance(objective, Translate):
        raise UsageError("train.batch_tokens is a translator's", fix="set train.batch")
    if plan.freeze_layers > settings.model.layers:
        raise UsageError(
            f"train.freeze_layers is {plan.freeze_layers} and there are {settings.model.layers}"
        )
    if pairs_sentences(objective) and plan.batch // plan.accumulate < 2:
        raise UsageError(
            "next_sentence takes wrong sentences from the same part of a batch, and one of "
            f"{plan.batch} in {plan.accumulate} has none",
            fix="raise train.batch or lower train.accumulate",
        )
