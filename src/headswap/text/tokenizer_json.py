"""A ready-made tokenizer: the ``tokenizer.json`` that models elsewhere come with, read by the
library ``tokenizers``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headswap.errors import DataError, ResourceError
from headswap.text.tokenizer import BOS, EOS, META_FILE, PAD, SENTENCE_ENDS, SPACE, UNK, Tokenizer
from headswap.types import Ids

JSON_FILE, KIND = "tokenizers.json", "tokenizers"
BYTE_SPACE = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"


class JsonTokenizer:
    """``roles`` say which of its pieces are our specials: ``{"<s>": "[CLS]"}``. Specials that
    the file lacks are appended at the end."""

    def __init__(
        self, content: str, roles: Mapping[str, str], appended: Sequence[str] = ()
    ) -> None:
        self._content, self._roles = content, dict(roles)
        self._library = library()
        try:
            self._made = self._library.Tokenizer.from_str(content)
            model = json.loads(content)["model"]
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"not a tokenizer.json ({error})") from error
        self._made.no_truncation()
        self._made.no_padding()
        ids = self._made.get_vocab(with_added_tokens=True)
        self.own = max(ids.values()) + 1
        names = [f"<unused {i}>" for i in range(self.own)]
        for name, i in ids.items():
            names[i] = name
        required = [name for name in (PAD, BOS, EOS, UNK) if self._roles.get(name, name) not in ids]
        self._appended = tuple(dict.fromkeys([*required, *appended]))
        self._names = [*names, *self._appended]
        self._id_of = {**ids, **{name: self.own + i for i, name in enumerate(self._appended)}}
        self.size = len(self._names)
        self.pad, self.bos, self.eos, self.unk = (
            self._id_of[self._roles.get(name, name)] for name in (PAD, BOS, EOS, UNK)
        )
        self._continues = model.get("continuing_subword_prefix") or ""
        self._bytes = any(name.startswith(BYTE_SPACE) for name in names)
        self.fingerprint = hashlib.sha256(
            (content + json.dumps([self._roles, self._appended])).encode()
        ).hexdigest()

    @property
    def content(self) -> str:
        """The ``tokenizer.json`` itself."""
        return self._content

    @property
    def appended(self) -> tuple[str, ...]:
        """Specials that the file did not have."""
        return self._appended

    def around(self) -> tuple[str | None, str | None]:
        """The specials that the file itself puts before and after a text."""
        read = self._made.encode("a")
        marks = [
            name if special else None
            for name, special in zip(read.tokens, read.special_tokens_mask, strict=True)
        ]
        return (marks[0] if marks else None), (marks[-1] if len(marks) > 1 else None)

    def special(self, name: str) -> int | None:
        return self._id_of.get(self._roles.get(name, name))

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, without specials."""
        rows = self._made.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(row.ids, dtype=np.int64) for row in rows]

    def decode(self, ids: Iterable[int]) -> str:
        specials = {self.special(name) for name in self._roles}
        kept = [int(i) for i in ids if i < self.own and i not in specials]
        return str(self._made.decode(kept, skip_special_tokens=True))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._names[i] for i in ids]

    @cache  # noqa: B019 (a tokenizer lives as long as its process)
    def word_starts(self) -> np.ndarray:
        """By id: whether a word begins with it."""
        if self._continues:
            return np.array([not name.startswith(self._continues) for name in self._names])
        mark = BYTE_SPACE if self._bytes else SPACE
        return np.array([name.startswith(mark) for name in self._names])

    @cache  # noqa: B019
    def sentence_ends(self) -> np.ndarray:
        """By id: whether a sentence may end with it."""
        read = self._library.decoders.ByteLevel().decode if self._bytes else "".join
        return np.array([read([name]).endswith(SENTENCE_ENDS) for name in self._names])

    def extends(self, other: Tokenizer) -> bool:
        """Whether every id of the other means the same here."""
        return self.pieces(range(min(other.size, self.size))) == other.pieces(range(other.size))

    def with_specials(self, names: Sequence[str]) -> JsonTokenizer:
        """This tokenizer, or one with the missing specials appended."""
        missing = [name for name in names if self.special(name) is None]
        if not missing:
            return self
        return JsonTokenizer(self._content, self._roles, [*self._appended, *missing])

    def save(self, folder: Path) -> None:
        (folder / JSON_FILE).write_text(self._content, "utf-8")
        meta = {"kind": KIND, "roles": self._roles, "appended": self._appended}
        (folder / META_FILE).write_text(json.dumps(meta, ensure_ascii=False) + "\n", "utf-8")


def library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ResourceError(
            "reading a tokenizer.json needs tokenizers", fix="pip install 'headswap[import]'"
        ) from error
    return tokenizers
