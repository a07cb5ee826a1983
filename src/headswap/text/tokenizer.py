"""Text to ids and back, with sentencepiece; models from elsewhere bring another tokenizer
(``text/tokenizer_json.py``) and are saved and loaded alike.

Training is deterministic: the sample of the corpus is chosen by hash, the trainer's thread
count is fixed (another count gives another vocabulary), and no path enters the model.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import sentencepiece as spm

from headswap.errors import DataError, StorageError, UsageError
from headswap.randomness import derive
from headswap.text import files
from headswap.types import Ids

PAD, BOS, EOS, UNK, MASK, SEP = "<pad>", "<s>", "</s>", "<unk>", "<mask>", "<sep>"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
COURSE_SPECIALS = (BOS, PAD, EOS, UNK)
SENTENCE_ENDS = (".", "!", "?", "…", "。")
TRAINER_THREADS = 4
TOKENS_A_WORD = 1.4  # of a usual text, to plan with before there is a tokenizer
SMALLEST = 263
LONGEST_SENTENCE = 4_000
MODEL_FILE, META_FILE = "sentencepiece.model", "tokenizer.json"


@dataclass(frozen=True)
class TokenizerPlan:
    """How a tokenizer is trained, or which one is loaded (``model``, ``pieces``)."""

    kind: Literal["bpe", "unigram"] = "bpe"
    vocabulary: int = 8_000
    normalization: Literal["nmt_nfkc", "nmt_nfkc_cf", "identity"] = "nmt_nfkc"
    sample_megabytes: int = 50
    model: str | None = None
    pieces: str | None = None

    def __post_init__(self) -> None:
        if self.model is None and self.vocabulary < SMALLEST:
            raise UsageError(
                f"a vocabulary of {self.vocabulary} cannot hold the 256 bytes and the specials",
                fix=f"set tokenizer.vocabulary to {SMALLEST} or more",
            )


class Tokenizer(Protocol):
    """What the rest of Headswap knows of a tokenizer."""

    size: int
    pad: int
    bos: int
    eos: int
    unk: int
    fingerprint: str

    @property
    def appended(self) -> tuple[str, ...]: ...
    def special(self, name: str) -> int | None: ...
    def encode(self, texts: Sequence[str]) -> list[Ids]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def pieces(self, ids: Iterable[int]) -> list[str]: ...
    def word_starts(self) -> np.ndarray: ...
    def sentence_ends(self) -> np.ndarray: ...
    def extends(self, other: Tokenizer) -> bool: ...
    def with_specials(self, names: Sequence[str]) -> Tokenizer: ...
    def save(self, folder: Path) -> None: ...


class SentencePieceTokenizer:
    """A sentencepiece model, optionally renumbered by a list of pieces, plus specials.

    With ``order`` (a fairseq-style dictionary) ids are the four specials, then the pieces
    in that order. Specials that the model lacks are appended at the end.
    """

    def __init__(
        self, model: bytes, order: Sequence[str] | None = None, appended: Sequence[str] = ()
    ) -> None:
        self._model, self._order = model, None if order is None else tuple(order)
        try:
            self._sp = spm.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise DataError("not a sentencepiece model", fix="give a .model file") from error
        names = [self._sp.id_to_piece(i) for i in range(self._sp.vocab_size())]
        ours = [*COURSE_SPECIALS, *order] if order is not None else names
        required = [name for name in (PAD, BOS, EOS, UNK) if name not in ours]
        self._appended = tuple(dict.fromkeys([*required, *appended]))
        self._names = [*ours, *(name for name in self._appended if name not in ours)]
        self._id_of = {name: i for i, name in reversed(list(enumerate(self._names)))}
        self.size = len(self._names)
        self.pad, self.bos, self.eos, self.unk = (
            self._id_of[name] for name in (PAD, BOS, EOS, UNK)
        )
        self._from_sp = np.array([self._id_of.get(name, self.unk) for name in names])
        self._specials = {i for i, name in enumerate(self._names) if self.is_special(name)}
        self._sp_of = {name: i for i, name in enumerate(names)}
        self.fingerprint = hashlib.sha256(
            model + json.dumps([self._order, self._appended]).encode()
        ).hexdigest()

    def special(self, name: str) -> int | None:
        return self._id_of.get(name)

    @property
    def model(self) -> bytes:
        """The sentencepiece model itself."""
        return self._model

    @property
    def appended(self) -> tuple[str, ...]:
        """Specials that the loaded model did not have."""
        return self._appended

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, without specials."""
        if len(texts) > 8:
            rows = self._sp.encode(list(texts), num_threads=cores())
        else:  # a list costs more than its few texts do
            rows = [self._sp.encode(text) for text in texts]
        return [self._from_sp[np.array(row, dtype=np.int64)] for row in rows]

    def decode(self, ids: Iterable[int]) -> str:
        names = [self._names[i] for i in ids if i not in self._specials]
        return str(self._sp.decode([self._sp_of[name] for name in names if name in self._sp_of]))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._names[i] for i in ids]

    @cache  # noqa: B019 (a tokenizer lives as long as its process)
    def word_starts(self) -> np.ndarray:
        """By id: whether a word begins with it."""
        return np.array([name.startswith(SPACE) for name in self._names])

    @cache  # noqa: B019
    def sentence_ends(self) -> np.ndarray:
        """By id: whether a sentence may end with it."""
        return np.array([name.endswith(SENTENCE_ENDS) for name in self._names])

    def extends(self, other: Tokenizer) -> bool:
        """Whether every id of the other means the same here."""
        return self.pieces(range(min(other.size, self.size))) == other.pieces(range(other.size))

    def with_specials(self, names: Sequence[str]) -> SentencePieceTokenizer:
        """This tokenizer, or one with the missing specials appended."""
        missing = [name for name in names if name not in self._id_of]
        if not missing:
            return self
        return SentencePieceTokenizer(self._model, self._order, [*self._appended, *missing])

    def save(self, folder: Path) -> None:
        (folder / MODEL_FILE).write_bytes(self._model)
        meta = {"kind": "sentencepiece", "order": self._order, "appended": self._appended}
        (folder / META_FILE).write_text(json.dumps(meta, ensure_ascii=False) + "\n", "utf-8")

    def is_special(self, name: str) -> bool:
        return name in (PAD, BOS, EOS, UNK, MASK, SEP) or name in self._appended


def cores() -> int:
    """As many as this process may use: schedulers and containers give out fewer."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def load(folder: Path) -> Tokenizer:
    """The tokenizer that ``save`` wrote."""
    from headswap.text import tokenizer_json as ready

    try:
        meta = json.loads((folder / META_FILE).read_text("utf-8"))
        if meta["kind"] == ready.KIND:
            content = (folder / ready.JSON_FILE).read_text("utf-8")
            return ready.JsonTokenizer(content, meta["roles"], meta["appended"])
        model = (folder / MODEL_FILE).read_bytes()
        return SentencePieceTokenizer(model, meta["order"], meta["appended"])
    except FileNotFoundError as error:
        raise StorageError("the tokenizer is missing", where=error.filename) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"damaged ({error})", where=folder / META_FILE) from error


def load_model(model: Path, pieces: Path | None = None) -> Tokenizer:
    """An existing sentencepiece ``.model``, with the dictionary that numbers its pieces, or
    a run's tokenizer folder."""
    if model.is_dir():
        return load(model)
    try:
        content = model.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read it ({error.strerror})", where=model) from error
    order = None
    if pieces is not None:
        order = [line.rsplit(" ", 1)[0] for _, line in files.lines(pieces) if line]
    try:
        return SentencePieceTokenizer(content, order)
    except DataError as error:
        raise DataError(error.what, where=model, fix=error.fix) from error


def train(documents: Iterable[str], plan: TokenizerPlan) -> SentencePieceTokenizer:
    """A new tokenizer from text: the same text gives the same bytes on any machine."""
    sample = _sample(documents, plan.sample_megabytes * 10**6)
    if not sample:
        raise DataError("no text to train a tokenizer on", fix="give a file that holds text")
    writer = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=writer,
            model_type=plan.kind,
            vocab_size=plan.vocabulary,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name=plan.normalization,
            max_sentence_length=4 * LONGEST_SENTENCE,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            pad_piece=PAD,
            bos_piece=BOS,
            eos_piece=EOS,
            unk_piece=UNK,
            control_symbols=[MASK, SEP],
            num_threads=TRAINER_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        if needed:
            raise UsageError(
                f"a vocabulary of {plan.vocabulary} cannot hold the {needed.group(1)} bytes, "
                "characters and specials that this text needs",
                fix=f"set tokenizer.vocabulary to {needed.group(1)} or more",
            ) from error
        raise DataError(f"sentencepiece cannot train on this text ({error})") from error
    return SentencePieceTokenizer(writer.getvalue())


def _sample(documents: Iterable[str], budget: int) -> list[str]:
    """At most ``budget`` bytes of sentences, chosen by hash, in their original order."""
    heap: list[tuple[int, int, str]] = []
    held = 0
    for index, sentence in enumerate(_sentences(documents)):
        heapq.heappush(heap, (-derive(0, "tokenizer", index), index, sentence))
        held += len(sentence.encode())
        while held > budget:
            held -= len(heapq.heappop(heap)[2].encode())
    return [sentence for _, _, sentence in sorted(heap, key=lambda item: item[1])]


def _sentences(documents: Iterable[str]) -> Iterator[str]:
    """Lines of the documents; a long one is split at spaces rather than dropped."""
    for document in documents:
        for line in document.split("\n"):
            at = 0
            while len(line) - at > LONGEST_SENTENCE:
                end = at + LONGEST_SENTENCE
                cut = line.rfind(" ", at + LONGEST_SENTENCE // 2, end)
                cut = cut if cut > 0 else end
                yield line[at:cut]
                at = cut
                while at < len(line) and line[at].isspace():
                    at += 1
            rest = line[at:]
            if rest.strip():
                yield rest
