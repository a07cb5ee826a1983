"""What is wrong with a data set before anything is trained on it.

Texts are streamed and only a few numbers of each are kept, so that memory grows with the number
of texts and not with their length.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headswap.errors import UsageError
from headswap.text import corpus, files
from headswap.text.corpus import Reading
from headswap.text.likeness import NEAR, fingerprint, letters_of, near, sketch
from headswap.text.tokenizer import TOKENS_A_WORD
from headswap.types import Table
from headswap.wording import counted

SHOWN_ROWS, SHOWN_LABELS = 5, 10
NO_LABELS = frozenset({"nan", "na", "n/a", "null", "none", "?", "-"})
LONG_WORD = 12  # characters, spaces counted, that words have on average in no language with spaces
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese letters."""
HTML = re.compile(r"</?[a-zA-Z][^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{2,6});")
DAMAGE = re.compile("\ufffd|Ã[\u0080-\u00bf©¨§ª]|â€[™œ\u009d]|Â[\u0080-\u00bf]")
LEAKS = (
    ("text", "test"),
    ("via", "test"),
    ("train", "test"),
    ("valid", "test"),
    ("text", "valid"),
    ("valid", "train"),
    ("text", "train"),
)
LANGUAGES = {
    "English": "the and of to in is that it was for with".split(),
    "French": "le la les de et des est une que pour dans".split(),
    "German": "der die das und ist nicht ein mit den von zu".split(),
    "Spanish": "el los las y que es una por con para del".split(),
    "Italian": "il di che è una per non con sono della gli".split(),
}
LANGUAGE_WORDS = {
    word: tuple(name for name, words in LANGUAGES.items() if word in words)
    for words in LANGUAGES.values()
    for word in words
}


@dataclass
class Split:
    """What is remembered of one role's texts: train, valid, test or text."""

    texts: int = 0
    words: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    sketches: list[np.ndarray] = field(default_factory=list)
    empty: int = 0
    blank: int = 0
    html: int = 0
    damaged: int = 0
    languages: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``rows`` are the texts it speaks of, counted from 1 in their
    split, and ``like`` the rows of the other split that they resemble. ``fatal`` findings make
    training meaningless."""

    what: str
    count: int
    detail: str = ""
    fatal: bool = False
    rows: tuple[int, ...] = ()
    like: tuple[int, ...] = ()


def check(
    sources: dict[str, Sequence[Path]],
    reading: Reading = Reading(),
    length: int | None = None,
) -> Table:
    """Everything found, as a table: counts by split, and findings with their numbers.

    ``sources`` maps train, valid, test (labelled tables) and text (unlabelled files) to
    files; ``length`` is the number of tokens a model reads, to say what truncation loses.
    """
    return examine(
        {
            role: texts(paths, reading) if role == "text" else _rows(paths, reading)
            for role, paths in sources.items()
            if paths
        },
        length,
    )


def examine(
    streams: Mapping[str, Iterable[tuple[str, str | None]]], length: int | None = None
) -> Table:
    """The check itself, of texts with their labels by role."""
    splits = {role: _read(stream) for role, stream in streams.items()}
    findings = [*_labels(splits), *_duplicates(splits), *_surface(splits)]
    if length is not None:
        findings += _truncation(splits, length)
    return {
        "splits": {role: _summary(split) for role, split in splits.items()},
        "findings": [vars(finding) for finding in findings],
        "fatal": any(finding.fatal for finding in findings),
    }


def words_in(text: str) -> int:
    """Of a text that is written without spaces, its letters."""
    words = len(text.split())
    if len(text) > LONG_WORD * max(words, 1):
        words = max(words, len(UNSPACED.findall(text)))
    return words


def _read(stream: Iterable[tuple[str, str | None]]) -> Split:
    split = Split()
    for text, label in stream:
        letters = letters_of(text)
        split.texts += 1
        split.words.append(words_in(text))
        split.keys.append(fingerprint(text))
        split.labels.append(label)
        split.sketches.append(sketch(letters))
        split.empty += not letters
        split.blank += not text.strip()
        split.html += HTML.search(text) is not None
        split.damaged += DAMAGE.search(text) is not None
        split.languages[_language(text)] += 1
    return split


def texts(paths: Sequence[Path], reading: Reading) -> Iterator[tuple[str, None]]:
    """Unlabelled texts, as ``examine`` takes them."""
    return ((text, None) for path in paths for text in corpus.documents([path], reading))


def _rows(paths: Sequence[Path], reading: Reading) -> Iterator[tuple[str, str | None]]:
    for path in paths:
        for row in corpus.labelled(path, reading, missing_ok=True):
            yield row.text, row.label or None


def _duplicates(splits: dict[str, Split]) -> Iterator[Finding]:
    for role, split in splits.items():
        seen: set[int] = set()
        rows = []
        for number, key in enumerate(split.keys, 1):
            if key in seen:
                rows.append(number)
            seen.add(key)
        if rows:
            yield Finding(f"{role}: repeats of a text inside it", len(rows), rows=tuple(rows))
    for role, other in LEAKS:
        if role in splits and other in splits:
            known = set(splits[other].keys)
            rows = [n for n, key in enumerate(splits[role].keys, 1) if key in known]
            if rows:
                what = f"{role} texts that also stand in {other}"
                learnt = set(splits[role].keys)
                spoilt = sum(key in learnt for key in splits[other].keys)
                fatal = role in ("train", "via") and spoilt > 0.5 * splits[other].texts
                yield Finding(what, len(rows), fatal=fatal, rows=tuple(rows))
    sketched = {role: (split.keys, split.sketches) for role, split in splits.items()}
    for (role, other), pairs in near(sketched).items():
        what, detail = f"near duplicates inside {role}", f"at least {NEAR:.0%} of runs shared"
        if role != other:
            what = f"near duplicates between {role} and {other}"
            detail += f"; rows of {other}, like those of {role}"
        like, later = (tuple(number + 1 for number in some) for some in zip(*pairs, strict=True))
        yield Finding(what, len(pairs), detail, rows=later, like=like)


def _labels(splits: dict[str, Split]) -> Iterator[Finding]:
    by_text: dict[int, set[str]] = defaultdict(set)
    for role, split in splits.items():
        if role in ("text", "via"):  # the labels of related texts are their own
            continue
        counts = Counter(label for label in split.labels if label is not None)
        if missing := sum(label is None for label in split.labels):
            yield Finding(f"{role}: rows without a label", missing, fatal=True)
        for name in (name for name in counts if name.strip().lower() in NO_LABELS):
            told = "other programs write it where there is none"
            yield Finding(f"{role}: rows labelled {name!r}", counts[name], told)
        alike: dict[str, list[str]] = defaultdict(list)
        for name in counts:
            alike[_plain(name)].append(name)
        for spellings in (some for some in alike.values() if len(some) > 1):
            rarer = sum(counts[name] for name in spellings) - max(counts[x] for x in spellings)
            names = ", ".join(map(repr, sorted(spellings)))
            yield Finding(f"{role}: one label in several spellings", rarer, names)
        if role == "train" and len(counts) < 2:
            only = next(iter(counts), "none")
            yield Finding(f"train: a single class ({only})", split.texts, fatal=True)
        single = sum(count == 1 for count in counts.values())
        if role == "train" and single and len(counts) > 1:
            yield Finding("train: classes with a single text", single, fatal=single == len(counts))
        elif role == "train" and counts and max(counts.values()) > 10 * min(counts.values()):
            rare = min(counts, key=lambda label: counts[label])
            yield Finding(f"train: the class {rare!r} is rare", counts[rare])
        train = splits.get("train")
        if role != "train" and train is not None:
            unknown = sorted(set(counts) - set(train.labels))
            if unknown:
                strange = sum(counts[label] for label in unknown)
                names = ", ".join(map(str, unknown))
                yield Finding(f"{role}: labels that train lacks", strange, names, fatal=True)
        for key, label in zip(split.keys, split.labels, strict=True):
            if label is not None:
                by_text[key].add(label)
    both = sum(len(labels) > 1 for labels in by_text.values())
    if both:
        yield Finding("one text with two labels", both)


def _plain(label: str) -> str:
    """A label without its case, and a number without its zeros."""
    try:
        return repr(float(label))
    except ValueError:
        return label.casefold()


def _surface(splits: dict[str, Split]) -> Iterator[Finding]:
    for role, split in splits.items():
        if split.blank == split.texts:
            yield Finding(f"{role}: no text at all", split.texts, fatal=True)
        elif split.empty:
            yield Finding(f"{role}: texts without a letter", split.empty)
        if split.html:
            yield Finding(f"{role}: texts with HTML remains", split.html, "data.clean=['html']")
        if split.damaged:
            yield Finding(f"{role}: texts with encoding damage", split.damaged)
        named = Counter({k: v for k, v in split.languages.items() if k != "unknown"})
        main = named.most_common(1)
        strange = sum(named.values()) - (main[0][1] if main else 0)
        if main and strange > 0.01 * split.texts:
            detail = ", ".join(f"{name} {count}" for name, count in named.most_common(4))
            yield Finding(f"{role}: texts in another language", strange, detail)


def _truncation(splits: dict[str, Split], length: int) -> Iterator[Finding]:
    room = length / TOKENS_A_WORD
    for role, split in splits.items():
        if role == "text":
            continue
        words = np.array(split.words)
        lost = np.maximum(words - room, 0)
        if lost.any():
            detail = (
                f"at {TOKENS_A_WORD} tokens a word; reading their beginning loses "
                f"{lost.sum() / words.sum():.1%} of the words"
            )
            what = f"{role}: texts longer than {length} tokens"
            yield Finding(what, int((lost > 0).sum()), detail)


def _language(text: str) -> str:
    """A guess from the commonest words; ``unknown`` for short or other texts."""
    counts: Counter[str] = Counter()
    for word in text.lower().split()[:200]:
        for name in LANGUAGE_WORDS.get(word, ()):
            counts[name] += 1
    best = counts.most_common(2)
    if not best or best[0][1] < 4 or (len(best) > 1 and best[0][1] < 1.5 * best[1][1]):
        return "unknown"
    return best[0][0]


def _summary(split: Split) -> Table:
    words = np.array(split.words or [0])
    return {
        "texts": split.texts,
        "labels": dict(sorted(Counter(filter(None, split.labels)).items())),
        "words_mean": float(words.mean()),
        "words_median": float(np.median(words)),
        "words_longest": int(words.max()),
        "languages": dict(split.languages.most_common(3)),
    }


def sources_of(
    train: Sequence[Path], valid: Sequence[Path], test: Sequence[Path], text: Sequence[Path]
) -> dict[str, Sequence[Path]]:
    """The roles in the order in which texts are compared."""
    found = {"text": text, "train": train, "valid": valid, "test": test}
    given: dict[str, Sequence[Path]] = {}
    for role, paths in found.items():
        expanded = files.expand(list(paths))
        if expanded:
            given[role] = expanded
    if not given:
        raise UsageError("nothing to check", fix="name a table, or text with --text")
    return given


def lines(found: Table) -> Iterable[str]:
    """The findings for a terminal."""
    for role, facts in found["splits"].items():
        shown = list(facts["labels"].items())
        labels = ", ".join(f"{name[:40]} {count:,}" for name, count in shown[:SHOWN_LABELS])
        if len(shown) > SHOWN_LABELS:
            labels += f", … {counted(len(shown) - SHOWN_LABELS, 'more label')}"
        words = counted(round(facts["words_mean"]), "word")
        yield (
            f"{role:6} {counted(facts['texts'], 'text')}, {words} on average, "
            f"the longest {facts['words_longest']:,}" + (f"; {labels}" if labels else "")
        )
    if not found["findings"]:
        yield "nothing suspicious"
    for finding in found["findings"]:
        detail = f" ({finding['detail']})" if finding["detail"] else ""
        if finding["rows"]:
            more = ", …" if finding["count"] > SHOWN_ROWS else ""
            which = ", ".join(_named(finding))
            detail += f": row{'s' if finding['count'] > 1 else ''} {which}{more}"
        sign = "STOP" if finding["fatal"] else "look"
        yield f"{sign}  {finding['count']:>8,}  {finding['what']}{detail}"


def _named(finding: Table) -> list[str]:
    """The first rows of a finding, each with the one that it is like, where there is such."""
    rows, like = finding["rows"][:SHOWN_ROWS], finding["like"][:SHOWN_ROWS]
    if not like:
        return list(map(str, rows))
    return [f"{row} (like {other})" for row, other in zip(rows, like, strict=True)]
