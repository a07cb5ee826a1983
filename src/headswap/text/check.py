"""What is wrong with a data set before anything is trained on it.

Texts are streamed and only a few numbers of each are kept: a hash of the text without case,
spacing and punctuation, and a sketch of it (the smallest hashes of its letter runs) that
estimates how much two texts share. Memory grows with the number of texts, not their length.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headswap.errors import UsageError
from headswap.text import corpus, files
from headswap.text.corpus import Reading
from headswap.text.tokenizer import TOKENS_A_WORD
from headswap.types import Table
from headswap.wording import counted

SHOWN_ROWS, SHOWN_LABELS = 5, 10
NOISE = re.compile(r"[\W_]+")
HTML = re.compile(r"</?[a-zA-Z][^<>]{0,200}>|&(?:[a-z]{2,8}|#\d{2,6});")
DAMAGE = re.compile("\ufffd|Ã[\u0080-\u00bf©¨§ª]|â€[™œ\u009d]|Â[\u0080-\u00bf]")
RUN, SAMPLED, SKETCH, BANDS = 24, 8, 16, 6
NEAR = 0.7
LEAKS = (
    ("text", "test"),
    ("train", "test"),
    ("valid", "test"),
    ("text", "valid"),
    ("valid", "train"),
    ("text", "train"),
)
MIXER = np.uint64(0x9E3779B97F4A7C15)
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
    html: int = 0
    damaged: int = 0
    languages: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``rows`` are the texts it speaks of, counted from 1 in their
    split. ``fatal`` findings make training meaningless."""

    what: str
    count: int
    detail: str = ""
    fatal: bool = False
    rows: tuple[int, ...] = ()


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


def _read(stream: Iterable[tuple[str, str | None]]) -> Split:
    split = Split()
    for text, label in stream:
        letters = _letters(text)
        split.texts += 1
        split.words.append(text.count(" ") + 1)
        split.keys.append(fingerprint(text))
        split.labels.append(label)
        split.sketches.append(sketch(letters))
        split.empty += not letters
        split.html += HTML.search(text) is not None
        split.damaged += DAMAGE.search(text) is not None
        split.languages[_language(text)] += 1
    return split


def texts(paths: Sequence[Path], reading: Reading) -> Iterator[tuple[str, None]]:
    """Unlabelled texts, as ``examine`` takes them."""
    return ((text, None) for path in paths for text in corpus.documents([path], reading))


def fingerprint(text: str) -> int:
    """Equal for texts that differ in case, spacing and punctuation at most."""
    return int.from_bytes(hashlib.blake2b(_letters(text).encode(), digest_size=8).digest())


def _letters(text: str) -> str:
    return NOISE.sub("", text.lower())


def _rows(paths: Sequence[Path], reading: Reading) -> Iterator[tuple[str, str | None]]:
    for path in paths:
        for row in corpus.labelled(path, reading, missing_ok=True):
            yield row.text, row.label or None


def sketch(letters: str) -> np.ndarray:
    """The smallest hashes of the runs of letters, of those that a rule picks out.

    The rule (hash divisible by ``SAMPLED``) depends on the run alone, so that two texts with
    a passage in common pick the same runs of it.
    """
    data = np.frombuffer(letters.encode("utf-8", "replace"), dtype=np.uint8)
    if len(data) < RUN:
        return np.zeros(0, dtype=np.uint32)
    with np.errstate(over="ignore"):
        hashes = np.zeros(len(data) - RUN + 1, dtype=np.uint64)
        for start in range(0, RUN, 8):
            words = np.lib.stride_tricks.sliding_window_view(data[start:], 8)[: len(hashes)]
            values = np.ascontiguousarray(words).view("<u8")[:, 0]
            hashes = (hashes ^ values) * MIXER
            hashes ^= hashes >> np.uint64(29)
    picked = hashes[hashes % np.uint64(SAMPLED) == 0]
    return np.unique((picked >> np.uint64(32)).astype(np.uint32))[:SKETCH]


def alike(one: np.ndarray, two: np.ndarray) -> float:
    """The estimated share of runs that two texts have in common (Broder 1997)."""
    union = np.union1d(one, two)[:SKETCH]
    if not len(union):
        return 0.0
    return float(np.isin(union, np.intersect1d(one, two)).mean())


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
                fatal = role == "train" and spoilt > 0.5 * splits[other].texts
                yield Finding(what, len(rows), fatal=fatal, rows=tuple(rows))
    for (role, other), pairs in _near(splits).items():
        place = f"inside {role}" if role == other else f"between {role} and {other}"
        yield Finding(f"near duplicates {place}", pairs, f"at least {NEAR:.0%} of runs shared")


def _near(splits: dict[str, Split]) -> Counter[tuple[str, str]]:
    """Texts that nearly repeat an earlier one, by the pair of splits; exact ones apart."""
    buckets: dict[int, list[tuple[str, int]]] = defaultdict(list)
    found: Counter[tuple[str, str]] = Counter()
    for role, split in splits.items():
        for index, marks in enumerate(split.sketches):
            if len(marks) < SKETCH // 2:
                continue
            seen: set[tuple[str, int]] = set()
            hit: set[str] = set()
            for mark in marks[:BANDS].tolist():
                seen.update(buckets[mark][-8:])
                buckets[mark].append((role, index))
            for other_role, other in seen:
                known = splits[other_role]
                if other_role in hit or known.keys[other] == split.keys[index]:
                    continue
                if alike(known.sketches[other], marks) >= NEAR:
                    hit.add(other_role)
            found.update((other_role, role) for other_role in hit)
    return found


def _labels(splits: dict[str, Split]) -> Iterator[Finding]:
    by_text: dict[int, set[str]] = defaultdict(set)
    for role, split in splits.items():
        if role == "text":
            continue
        counts = Counter(label for label in split.labels if label is not None)
        if missing := sum(label is None for label in split.labels):
            yield Finding(f"{role}: rows without a label", missing)
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


def _surface(splits: dict[str, Split]) -> Iterator[Finding]:
    for role, split in splits.items():
        if split.empty == split.texts:
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
            which = ", ".join(map(str, finding["rows"][:SHOWN_ROWS]))
            detail += f": row{'s' if finding['count'] > 1 else ''} {which}{more}"
        sign = "STOP" if finding["fatal"] else "look"
        yield f"{sign}  {finding['count']:>8,}  {finding['what']}{detail}"
