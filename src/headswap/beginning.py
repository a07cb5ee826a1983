"""What a run begins with, its tokenizer and its first weights, and the model that it ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from headswap import ledger, storage
from headswap import run as runs
from headswap import settings as settings_module
from headswap.errors import DataError, UsageError
from headswap.nn.model import Model, grow_vocabulary, new_model, swap_head, warm_start
from headswap.progress import Reporter
from headswap.run import Run
from headswap.settings import Settings
from headswap.text import corpus, files, tokenizer
from headswap.text.corpus import LabelledText
from headswap.text.pairs import PairText
from headswap.text.sharded import Sharded
from headswap.text.tokenizer import Tokenizer
from headswap.training import checkpoint, parallel


def tokenizer_of(
    run: Run,
    settings: Settings,
    paths: Mapping[str, Sequence[Path]],
    seen: Sequence[LabelledText] | Sequence[PairText] | None,
    report: Reporter,
) -> Tokenizer:
    """The tokenizer in the run's folder, which is made where it is missing: the base's, the
    shards', a given one, or one trained on what is ``seen`` in training."""
    folder = run.path / runs.TOKENIZER
    if not folder.exists():
        made = _make_tokenizer(settings, paths, seen, report)
        whole = made.with_specials(settings.objective.specials)
        if whole.size > made.size:
            added = ", ".join(whole.pieces(range(made.size, whole.size)))
            report.say(f"tokenizer: appended {added} for the {settings.objective.name} objective")
        with storage.new_folder(folder) as staged:
            whole.save(staged)
    wrong = storage.problem(folder)
    if wrong:
        raise DataError(f"the tokenizer is damaged: {wrong}", where=folder)
    return tokenizer.load(folder)


def _make_tokenizer(
    settings: Settings,
    paths: Mapping[str, Sequence[Path]],
    seen: Sequence[LabelledText] | Sequence[PairText] | None,
    report: Reporter,
) -> Tokenizer:
    plan, data = settings.tokenizer, settings.data
    if data.base:
        return tokenizer.load(Run.open(Path(data.base)).path / runs.TOKENIZER)
    given = given_tokenizer(settings)
    if given is not None:
        if given.appended:
            report.say(f"tokenizer: appended the missing specials {', '.join(given.appended)}")
        return given
    ready = [path for path in paths["train"] if files.is_sharded(path)]
    if ready:
        return Sharded(ready[0]).tokenizer()
    report.say(f"training a {plan.kind} tokenizer of {plan.vocabulary:,} tokens")
    if seen is not None:  # what is held out for validation stays unseen
        texts: Iterable[str] = (text for row in seen for text in row.texts)
    else:
        texts = corpus.documents(paths["train"], data.reading)
    made = tokenizer.train(texts, plan)
    if made.size < plan.vocabulary:
        report.warn(
            f"the text is too small for {plan.vocabulary:,} tokens: "
            f"the vocabulary has {made.size:,}"
        )
    return made


def given_tokenizer(settings: Settings) -> Tokenizer | None:
    """The one that ``tokenizer.model`` names, with the dictionary that numbers its pieces."""
    plan = settings.tokenizer
    if not plan.model:
        return None
    pieces = None if plan.pieces is None else Path(plan.pieces)
    return tokenizer.load_model(Path(plan.model), pieces)


def fill(model: Model, settings: Settings, tokens: Tokenizer, report: Reporter) -> None:
    """The first weights: random, or a base's under the new head."""
    stack, seed = settings.model, settings.train.seed
    heads = settings.objective.heads(stack, tokens.size)
    if settings.data.base is None:
        source = new_model(stack, tokens.size, heads, seed=seed)
    else:
        base_run = Run.open(Path(settings.data.base))
        base, base_settings = load_model(base_run)
        base_tokens = tokenizer.load(base_run.path / runs.TOKENIZER)
        if not tokens.extends(base_tokens):
            raise UsageError("the base was made with another tokenizer", where=base_run.path)
        if tokens.size > base_tokens.size:
            base = grow_vocabulary(base, tokens.size, seed=seed)
            new = tokens.pieces(range(base_tokens.size, tokens.size))
            report.say(f"the base's vocabulary grew by {', '.join(new)}")
        if stack.decoder_layers and not base.backbone.stack.decoder_layers:
            source, carried = warm_start(base, stack, heads, seed=seed)
            _copy(source, model)
            report.say(f"{base_run.path.name}: {carried}")
            return
        same = base_settings.objective == settings.objective
        whole = base_run.provenance().get("imported", {"head": True})["head"]
        keep = tuple(name for name in heads if whole and (same or name != "label"))
        source, carried = swap_head(base, heads, seed=seed, keep=keep)
        report.say(f"{base_run.path.name}: {carried}")
    _copy(source, model)


def _copy(source: Model, model: Model) -> None:
    """A table of positions may be longer in the source than what is read here."""
    found = source.tensors()
    for name, tensor in model.tensors().items():
        parallel.put(tensor, found[name].detach()[: len(tensor)])


def load_model(run: Run, device: torch.device | None = None) -> tuple[Model, Settings]:
    """A finished run's model, every byte checked."""
    run.check_finished()
    settings = settings_module.from_table(run.settings())
    vocabulary = tokenizer.load(run.path / runs.TOKENIZER).size
    heads = settings.objective.heads(settings.model, vocabulary)
    expected = {
        entry.name: entry.shape for entry in ledger.entries(settings.model, vocabulary, heads)
    }
    checkpoint.check_shapes(run.path / runs.WEIGHTS, expected)
    model = Model(settings.model, vocabulary, heads)
    checkpoint.load_weights(model, run.path / runs.WEIGHTS)
    return model.to(device or torch.device("cpu")).eval(), settings
