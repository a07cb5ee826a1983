"""A finished run in use: predict, evaluate, generate, embed, fill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from headswap import linear, predictions, scoring
from headswap import run as runs
from headswap.beginning import load_model
from headswap.decoding.stepper import Stepper, prompt_ids
from headswap.decoding.strategies import Extension, Sampling, extend
from headswap.decoding.translation import Search
from headswap.errors import UsageError
from headswap.exported import Exported, is_exported
from headswap.linear import LinearTrained
from headswap.measuring import Measured
from headswap.nn.backbone import EncoderDecoder
from headswap.nn.heads import pool
from headswap.nn.spec import Pool
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Causal, Classify, Masked, Translate
from headswap.objectives.base import pad_rows
from headswap.objectives.language import HEAD
from headswap.predictions import Prediction, several
from headswap.progress import Reporter, Silent
from headswap.run import Run
from headswap.text import tokenizer
from headswap.text.corpus import Reading
from headswap.text.files import Paths
from headswap.text.loader import Labelled, by_length
from headswap.text.tables import mended
from headswap.training import machine
from headswap.training.evaluate import evaluate
from headswap.translating import Translation, Translator
from headswap.types import Ids, Table
from headswap.wording import counted

TEXTS_AT_ONCE = 2_048
BATCH = 64
TOKENS_ON_CPU = 1_024  # a CPU is busy with that many; more would only be padded further
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class TokenVectors:
    """The contextual vector of each piece of a text."""

    pieces: list[str]
    vectors: np.ndarray


@dataclass(frozen=True)
class NextToken:
    """What a token added to a text, its chance, and what else could have stood there;
    ``ended`` for the token that ends a text."""

    text: str
    chance: float
    alternatives: list[scoring.Candidate]
    ended: bool


class Trained:
    """A finished run, loaded: ``headswap.load("runs/base")``."""

    def __init__(self, run: Run, device: str = "auto") -> None:
        self.run = run
        place = machine.pick_device(device)
        machine.plan_attention(place, few_shapes=False)
        self.model, self.settings = load_model(run, place)
        self.tokens = tokenizer.load(run.path / runs.TOKENIZER)

    def predict(self, texts: str | Iterable[str]) -> Iterator[Prediction]:
        """The label of each text, in order, reading only a few thousand ahead."""
        return predictions.of_texts(texts, self.labels, self.logits)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._classifier().labels

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        """A score for every text and label."""
        self._classifier()
        encoded = self.tokens.encode([self.cleaned(text) for text in texts])
        return self._logits([Labelled(ids, 0) for ids in encoded])

    def evaluate(
        self, paths: Paths, reading: Reading = Reading(), report: Reporter | None = None
    ) -> Table:
        """Accuracy and macro-F1 of a classifier; BLEU, chrF and TER of a translator; of a
        language model its loss and bits per byte, or its choices between minimal pairs."""
        measured = Measured(self.model, self.settings, self.tokens, report or Silent())
        return measured.on(paths, reading)

    def generate(
        self, prompts: str | Sequence[str], length: int = 50, sampling: Sampling = Sampling()
    ) -> list[str]:
        """Each prompt with its continuation."""
        self._view(Causal, "generate", "causal or hybrid")
        if length < 1:
            raise UsageError(f"cannot generate {length} tokens", fix="ask for 1 or more")
        encoded = self.tokens.encode([mended(prompt) for prompt in several(prompts)])
        started = [prompt_ids(ids, self.tokens.bos) for ids in encoded]
        end, never = self.tokens.eos, self._never()
        added: list[Extension] = []
        for first in range(0, len(started), BATCH):
            some = started[first : first + BATCH]
            names = range(first, first + len(some))
            stepper = Stepper(self.model, some, length, HEAD)
            added += extend(stepper, len(some), length, end, sampling, never, names)
        return [
            self.tokens.decode([*map(int, prompt[1:]), *new.ids])
            for prompt, new in zip(started, added, strict=True)
        ]

    def stream(
        self, prompt: str, length: int = 50, sampling: Sampling = Sampling(), most: int = 5
    ) -> Iterator[NextToken]:
        """A continuation token by token, each with the likeliest ones in its place."""
        self._view(Causal, "generate", "causal or hybrid")
        (ids,) = self.tokens.encode([mended(prompt)])
        started = prompt_ids(ids, self.tokens.bos)
        stepper = Stepper(self.model, [started], length, HEAD)
        forbidden = torch.tensor(self._never(), device=self.model.device)
        said = [int(token) for token in started[1:]]
        before = self.tokens.decode(said)
        for step in range(length):
            logits_BV = stepper.logits_BV
            logits_BV.index_fill_(1, forbidden, float("-inf"))
            chances = logits_BV[0].float().softmax(-1)
            values, places = (part.tolist() for part in chances.topk(most))
            others = [self.tokens.decode([*said, place])[len(before) :] for place in places]
            chosen_B = sampling.choose(logits_BV, [0], step)
            token = int(chosen_B[0])
            ended = token == self.tokens.eos
            said = said if ended else [*said, token]
            text = self.tokens.decode(said)
            if text.endswith(UNFINISHED) and not ended and step + 1 < length:
                text = before  # a letter of several bytes is shown when it is whole
            alternatives = [
                scoring.Candidate(other, value)
                for other, value, place in zip(others, values, places, strict=True)
                if place != self.tokens.eos
            ]
            yield NextToken(text[len(before) :], float(chances[token]), alternatives, ended)
            if ended:
                return
            before = text
            stepper.step(chosen_B)

    def _never(self) -> tuple[int, ...]:
        """What is never generated: marks that no text holds."""
        special = self.tokens.special
        every = (self.tokens.bos, self.tokens.pad, special(tokenizer.MASK), special(tokenizer.SEP))
        return tuple(t for t in every if t is not None and t != self.tokens.eos)

    def fill(self, text: str, most: int = 5) -> list[list[scoring.Candidate]]:
        """For each ``<mask>`` of a text, the likeliest tokens."""
        self._view(Masked, "fill masks", "masked or hybrid")
        if not isinstance(text, str):
            raise UsageError("fill takes one text at a time")
        if most < 1:
            raise UsageError(f"cannot show {most} candidates", fix="ask for 1 or more")
        return scoring.fill(self.model, self.tokens, mended(text), most)

    def translate(
        self,
        texts: str | Iterable[str],
        how: Search = Search(),
        *,
        backwards: bool = False,
        aligned: bool = False,
        report: Reporter | None = None,
    ) -> Iterator[list[Translation]]:
        """The translations of each text, best first, in order, reading some thousands ahead.

        ``backwards`` is the other direction of a model that learnt both; ``aligned`` adds the
        source piece that each piece looked at most."""
        translator = self._translator()
        if backwards and not translator.objective.both:
            raise UsageError(
                "the run translates one way only",
                where=self.run.path,
                fix="train it with --set translate.both=true",
            )
        for some in groups(map(self.cleaned, several(texts)), TEXTS_AT_ONCE):
            yield from translator(some, how, backwards=backwards, aligned=aligned)
        if report is not None and translator.cut_off:
            report.warn(
                f"the end of {counted(translator.cut_off, 'sentence')} was not read: the model "
                f"takes {translator.room} tokens"
            )

    def _translator(self) -> Translator:
        objective = self.settings.objective
        if not isinstance(objective, Translate):
            raise UsageError(
                f"a {objective.name} run cannot translate",
                where=self.run.path,
                fix="use a run trained as translate",
            )
        return Translator(self.model, self.tokens, objective)

    def embed(self, texts: str | Iterable[str], how: Pool = "mean") -> Iterator[np.ndarray]:
        """One vector a text, from the last layer."""
        for some in groups(map(self.cleaned, several(texts)), TEXTS_AT_ONCE // 4):
            rows, hidden = self._hidden(some)
            for ids, vectors in zip(rows, hidden, strict=True):
                length = torch.tensor([len(ids)])
                yield pool(torch.from_numpy(vectors)[None], length, how)[0].numpy()

    def embed_tokens(self, texts: str | Iterable[str]) -> Iterator[TokenVectors]:
        """A vector for each piece of each text, in its context."""
        for some in groups(map(self.cleaned, several(texts)), TEXTS_AT_ONCE // 8):
            rows, hidden = self._hidden(some)
            for ids, vectors in zip(rows, hidden, strict=True):
                yield TokenVectors(self.tokens.pieces(ids.tolist()), vectors)

    def cleaned(self, text: str) -> str:
        return mended(self.settings.data.reading.cleaned(text))

    def _classifier(self) -> Classify:
        objective = self.settings.objective
        if isinstance(objective, Classify):
            return objective
        raise UsageError(
            f"a {objective.name} run has no labels to predict",
            where=self.run.path,
            fix=f"train a classifier from it: headswap train classify … --from {self.run.path}",
        )

    def _view(self, kind: type, verb: str, needed: str) -> None:
        """Refuse what the run's objective never learnt."""
        objective = self.settings.objective
        if not any(isinstance(view, kind) for view in objective.views()):
            raise UsageError(
                f"a {objective.name} run cannot {verb}",
                where=self.run.path,
                fix=f"use a run trained as {needed}",
            )

    def _logits(self, examples: Sequence[Labelled]) -> np.ndarray:
        """In the precision in which the classifier was validated."""
        device, objective = self.model.device, self.settings.objective
        if not examples:
            return np.zeros((0, len(self.labels)), np.float32)
        most = TOKENS_ON_CPU if device.type == "cpu" else None
        precision, _ = machine.pick_precision(self.settings.train, device)
        result = evaluate(self.model, objective, examples, self.tokens, BATCH, precision, most=most)
        assert result.logits_NC is not None
        return result.logits_NC

    @torch.no_grad()
    def _hidden(self, texts: Sequence[str]) -> tuple[list[Ids], list[np.ndarray]]:
        """The ids read of each text, marks included, and the last layer's vectors: of a
        translator, its encoder's."""
        reader = Classify(("", " "), sees=self.settings.objective.visibility)
        stack = self.model.backbone.stack
        backbone = self.model.backbone
        encoder = backbone.encoder if isinstance(backbone, EncoderDecoder) else backbone
        encoded = self.tokens.encode(texts)
        objective = self.settings.objective
        if isinstance(objective, Translate):
            rows = [objective.source(ids[: stack.length - 2], self.tokens) for ids in encoded]
        else:
            rows = [reader.rows(ids, stack, self.tokens)[0] for ids in encoded]
        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        for group in by_length([len(row) for row in rows], BATCH):
            table = torch.from_numpy(pad_rows([rows[i] for i in group], self.tokens.pad))
            lengths = torch.tensor([len(rows[i]) for i in group])
            visibility = Visibility.of_lengths(reader.sees, lengths, table.shape[1])
            hidden = encoder(Inputs(table, visibility).to(self.model.device))
            for i, vectors in zip(group, hidden.float().cpu().numpy(), strict=True):
                found[i] = vectors[: len(rows[i])]
        return rows, found


Loaded = Trained | LinearTrained | Exported


def load(what: Run | Path, device: str = "auto") -> Loaded:
    """A finished run, neural or linear, or a classifier exported to ONNX, ready to use."""
    if isinstance(what, Path) and is_exported(what):
        return Exported(what)
    run = Run.open(what) if isinstance(what, Path) else what
    run.check_finished()
    if run.settings().get("objective") == linear.NAME:
        return LinearTrained(run)
    return Trained(run, device)


def groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while group := list(islice(remaining, size)):
        yield group
