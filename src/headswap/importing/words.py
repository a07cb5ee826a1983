"""The tokenizer of a Hugging Face folder, with its specials in our roles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headswap.errors import DataError, UsageError
from headswap.importing.source import Config, read_json
from headswap.text.tokenizer import BOS, EOS, MASK, PAD, SEP, UNK, Tokenizer, load_model
from headswap.text.tokenizer_json import JsonTokenizer
from headswap.types import Table

FILE, MODEL = "tokenizer.json", "tokenizer.model"
SETTINGS, SPECIALS = "tokenizer_config.json", "special_tokens_map.json"
# Their own ids are sentencepiece's, so the bare model can stand in for tokenizer.json.
NUMBERED_ALIKE = ("llama", "mistral")
# What older folders take for granted.
USUAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}


def files(folder: Path) -> list[Path]:
    """Every file that decides the ids."""
    names = (FILE, MODEL, SETTINGS, SPECIALS)
    return [folder / name for name in names if (folder / name).is_file()]


def tokenizer(folder: Path, config: Config, rows: int) -> Tokenizer:
    """The folder's tokenizer, refused when it has more tokens than the embedding has rows."""
    made: Tokenizer
    if (folder / FILE).is_file():
        made = _ready(folder, config)
        size = made.own
    elif (folder / MODEL).is_file() and config.get("model_type") in NUMBERED_ALIKE:
        made = load_model(folder / MODEL)
        size = made.size - len(made.appended)
    else:
        raise UsageError(
            f"no {FILE} in it",
            where=folder,
            fix="save it with transformers: AutoTokenizer.from_pretrained(…).save_pretrained(…)",
        )
    if size > rows:
        raise DataError(
            f"the tokenizer has {size:,} tokens and the embedding {rows:,} rows",
            where=folder,
            fix="do they belong together?",
        )
    return made


def _ready(folder: Path, config: Config) -> JsonTokenizer:
    table, settings = read_json(folder / FILE), read_json(folder / SETTINGS)
    if not isinstance(table.get("model"), dict):
        raise DataError("not a tokenizer.json (no model in it)", where=folder / FILE)
    _configure(table, settings)
    content = json.dumps(table, ensure_ascii=False)
    try:
        bare = JsonTokenizer(content, {})
    except DataError as error:
        raise DataError(error.what, where=folder / FILE) from error
    _check_added(bare, settings, folder)
    names = {**_named(settings), **_named(read_json(folder / SPECIALS))}
    if isinstance(unknown := table["model"].get("unk_token"), str):
        names.setdefault("unk", unknown)
    for role in ("bos", "eos", "pad"):
        number = config.get(f"{role}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if role not in names and isinstance(number, int) and 0 <= number < bare.own:
            names[role] = bare.pieces([number])[0]
    return JsonTokenizer(content, _roles(bare, names))


def _check_added(bare: JsonTokenizer, settings: Table, folder: Path) -> None:
    """Tokens that the settings alone name would get ids that the file does not give."""
    added = settings.get("added_tokens_decoder")
    for number, token in added.items() if isinstance(added, dict) else ():
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str) and str(bare.special(name)) != number:
            raise DataError(
                f"{name!r} is token {number} here and not in {FILE}",
                where=folder / SETTINGS,
                fix="save the tokenizer again with transformers",
            )


def _configure(table: Table, settings: Table) -> None:
    """What transformers lets tokenizer_config.json say over tokenizer.json."""
    parts = (table.get("normalizer"), table.get("pre_tokenizer"))
    normal, before = (part if isinstance(part, dict) else {} for part in parts)
    if normal.get("type") == "BertNormalizer":
        for ours, theirs in (
            ("lowercase", "do_lower_case"),
            ("strip_accents", "strip_accents"),
            ("handle_chinese_chars", "tokenize_chinese_chars"),
        ):
            if theirs in settings:
                normal[ours] = settings[theirs]
    if before.get("type") == "ByteLevel" and "add_prefix_space" in settings:
        before["add_prefix_space"] = settings["add_prefix_space"]


def _named(table: Table) -> dict[str, str]:
    """The specials that a settings file names, as text or as a table with its content."""

    def found() -> Iterator[tuple[str, Any]]:
        for role in ("bos", "eos", "unk", "pad", "mask", "sep", "cls"):
            given = table.get(f"{role}_token")
            yield role, given.get("content") if isinstance(given, dict) else given

    return {role: name for role, name in found() if isinstance(name, str)}


def _roles(bare: JsonTokenizer, names: Mapping[str, str]) -> dict[str, str]:
    """Our specials by the pieces that do their work. What the file itself puts around a text
    comes first: [CLS] and [SEP] are a BERT's ``<s>`` and ``</s>``. A padding that is also
    another mark is no padding here, where it is told from text by its id."""
    there = set(bare.pieces(range(bare.own)))
    known = {role: name for role, name in names.items() if name in there}
    for role, usual in USUAL.items():
        if name := next((name for name in usual if name in there), None):
            known.setdefault(role, name)
    before, after = bare.around()
    eos = after or known.get("eos") or known.get("sep")
    found = {
        BOS: before or known.get("bos") or known.get("cls") or eos,
        EOS: eos,
        UNK: known.get("unk"),
        MASK: known.get("mask"),
        SEP: known.get("sep") or after,
    }
    if known.get("pad") not in found.values():
        found[PAD] = known.get("pad")
    return {name: piece for name, piece in found.items() if piece is not None}
