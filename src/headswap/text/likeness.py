"""How much of two texts is the same, from a few numbers of each.

A fingerprint is a hash of the text without case, spacing and punctuation; a sketch is the
smallest hashes of its letter runs, from which the share that two texts have in common is
estimated.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

NOISE = re.compile(r"[\W_]+")
PLAIN_NOISE = re.compile(r"[\x00-/:-@\[-`{-\x7f]+")  # of ASCII, most of it and quick
RUN, SAMPLED, SKETCH, BANDS = 24, 8, 16, 6
NEAR = 0.7
MIXER = np.uint64(0x9E3779B97F4A7C15)

Sketched = tuple[Sequence[int], Sequence[np.ndarray]]
"""The fingerprints and the sketches of a split's texts."""


def fingerprint(text: str) -> int:
    """Equal for texts that differ in case, spacing and punctuation at most; of those that have
    nothing else (emoji, say), in spacing."""
    kept = letters_of(text) or " ".join(text.split())
    return int.from_bytes(hashlib.blake2b(kept.encode(), digest_size=8).digest())


def letters_of(text: str) -> str:
    """What is left of a text without case, spacing and punctuation; signs that combine, such as
    the vowels of Hindi and Thai, belong to letters."""
    kept = PLAIN_NOISE.sub("", text.lower())
    return kept if kept.isascii() else NOISE.sub(_marks, kept)


def _marks(found: re.Match[str]) -> str:
    return "".join(sign for sign in found[0] if unicodedata.category(sign)[0] == "M")


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


def near(splits: Mapping[str, Sketched]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Texts that nearly repeat an earlier one, exact repeats apart: by the names of both splits,
    the places of the earlier text and of the later one."""
    buckets: dict[int, list[tuple[str, int]]] = defaultdict(list)
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for role, (keys, sketches) in splits.items():
        for place, marks in enumerate(sketches):
            if len(marks) < SKETCH // 2:
                continue
            seen: set[tuple[str, int]] = set()
            hit: set[str] = set()
            for mark in marks[:BANDS].tolist():
                seen.update(buckets[mark][-8:])
                buckets[mark].append((role, place))
            for earlier, other in sorted(seen):
                known_keys, known_sketches = splits[earlier]
                if earlier in hit or known_keys[other] == keys[place]:
                    continue
                if alike(known_sketches[other], marks) >= NEAR:
                    hit.add(earlier)
                    found[earlier, role].append((other, place))
    return found
