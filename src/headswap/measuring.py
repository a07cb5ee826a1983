"""The figures of a model on files: labelled texts, pairs, minimal pairs, plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from headswap import metrics, predictions, scoring
from headswap.errors import UsageError
from headswap.nn.model import Model
from headswap.objectives import Classify, Translate
from headswap.progress import Reporter, Silent
from headswap.report import bleu
from headswap.settings import Settings
from headswap.text import corpus, files
from headswap.text.corpus import Reading
from headswap.text.loader import Labelled, Window
from headswap.text.pairs import PairText, read_pairs
from headswap.text.tokenizer import Tokenizer
from headswap.training import machine
from headswap.training.evaluate import Evaluation, evaluate
from headswap.translating import Translator
from headswap.types import Ids, Table
from headswap.wording import counted

PAIRS_AT_ONCE = 500
DOCUMENTS_AT_ONCE = 128
BATCH = 64


@dataclass(frozen=True)
class Measured:
    """What is measured: a model with its settings and its tokenizer."""

    model: Model
    settings: Settings
    tokens: Tokenizer
    report: Reporter = field(default_factory=Silent)

    def on(self, paths: files.Paths, reading: Reading = Reading()) -> Table:
        """Accuracy and macro-F1 of a classifier; BLEU, chrF and TER of a translator; of a
        language model its loss and bits per byte, or its choices between minimal pairs where
        the files hold such."""
        reading = replace(reading, clean=self.settings.data.clean)
        objective, paths = self.settings.objective, files.listed(paths)
        if not paths:
            raise UsageError("no file to evaluate on", fix="name at least one")
        if isinstance(objective, Classify):
            return self._labels(objective, paths, reading)
        if isinstance(objective, Translate):
            return self._translations(objective, paths, reading)
        if corpus.holds_pairs(paths[0]):
            return self._minimal_pairs(paths)
        return self._text(paths, reading)

    def _labels(self, objective: Classify, paths: Sequence[Path], reading: Reading) -> Table:
        rows, truth = corpus.labelled_as(paths, reading, objective.labels)
        encoded = self.tokens.encode([row.text for row in rows])
        result = self._evaluated([Labelled(ids, 0) for ids in encoded])
        assert result.logits_NC is not None
        return {"texts": len(rows), **predictions.scores(result.logits_NC, truth)}

    def _translations(self, objective: Translate, paths: Sequence[Path], reading: Reading) -> Table:
        pairs = list(read_pairs(paths, reading))
        if objective.reverse:
            pairs = [PairText(pair.target, pair.source) for pair in pairs]
        translator = Translator(self.model, self.tokens, objective)
        said = [some[0].text for some in translator([pair.source for pair in pairs])]
        right = [pair.target for pair in pairs]
        exact = sum(a == b for a, b in zip(said, right, strict=True)) / len(right)
        found = bleu.scores(said, right, objective.language)
        return {"sentences": len(pairs), **found, "exact_match": exact}

    def _minimal_pairs(self, paths: Sequence[Path]) -> Table:
        """The share of pairs whose good sentence is likelier: by the chain rule for a causal
        model, by pseudo-likelihood for a masked one, both for a hybrid."""
        known = {"causal": scoring.causal_scores, "masked": scoring.masked_scores}
        views = [view.name for view in self.settings.objective.views()]
        ways = [(name, known[name]) for name in views if name in known]
        hits: dict[str, dict[str, list[bool]]] = {name: {} for name, _ in ways}
        pairs = chain.from_iterable(map(corpus.minimal_pairs, paths))
        done = 0
        while some := list(islice(pairs, PAIRS_AT_ONCE)):
            encoded = self.tokens.encode([pair.good for pair in some] + [pair.bad for pair in some])
            for name, score in ways:
                values = score(self.model, self.tokens, encoded)
                better = values[: len(some)] > values[len(some) :]
                for pair, right in zip(some, better.tolist(), strict=True):
                    hits[name].setdefault(pair.group, []).append(right)
            done += len(some)
            self.report.update(None, counted(done, "pair"))
        figures: Table = {"pairs": sum(map(len, next(iter(hits.values())).values()))}
        for name, by_group in hits.items():
            every = list(chain.from_iterable(by_group.values()))
            figures[f"accuracy_{name}"] = sum(every) / len(every)
        figures["groups"] = {
            group: {name: sum(by[group]) / len(by[group]) for name, by in hits.items()}
            for group in next(iter(hits.values()))
        }
        return figures

    def _text(self, paths: Sequence[Path], reading: Reading) -> Table:
        """Every token but the ``<s>`` of a document is scored once; the end of a document
        counts as one byte, so that the figure does not depend on the tokenizer."""
        totals: dict[str, float] = {}
        counts: dict[str, float] = {}
        size = texts = 0
        documents = corpus.documents(paths, reading)
        while some := list(islice(documents, DOCUMENTS_AT_ONCE)):
            size += sum(len(text.encode()) + 1 for text in some)
            texts += len(some)
            result = self._evaluated(list(self._windows(some)))
            for name, loss in result.losses.items():
                totals[name] = totals.get(name, 0.0) + loss * result.counts[name]
                counts[name] = counts.get(name, 0.0) + result.counts[name]
            self.report.update(None, counted(texts, "document"))
        figures: Table = {"documents": texts, "bytes": size}
        for name, total in totals.items():
            if not counts[name]:  # nothing was asked: no pair of sentences, say
                continue
            key = "loss" if len(totals) == 1 else f"loss_{name}"
            figures[key] = total / max(counts[name], 1)
        if "causal" in totals:
            figures["tokens"] = int(counts["causal"])
            figures["bits_per_byte"] = metrics.bits_per_byte(totals["causal"], size)
        return figures

    def _windows(self, texts: Sequence[str]) -> Iterator[Window]:
        length = self.settings.model.length
        for plain in self.tokens.encode(texts):
            ids: Ids = np.concatenate([[self.tokens.bos], plain, [self.tokens.eos]])
            ids = ids.astype(np.int64)
            for start in range(0, len(ids) - 1, length):
                yield Window(ids[start : start + length + 1])

    def _evaluated(self, examples: Sequence[Labelled] | Sequence[Window]) -> Evaluation:
        """A classifier in the precision in which it was validated, a language model in full."""
        objective, precision = self.settings.objective, torch.float32
        if isinstance(objective, Classify):
            precision, _ = machine.pick_precision(self.settings.train, self.model.device)
        return evaluate(self.model, objective, examples, self.tokens, BATCH, precision)
