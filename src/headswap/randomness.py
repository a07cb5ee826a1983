"""Every random stream has its own key, derived from the run's seed and the stream's purpose.

Nothing here keeps state, so nothing has to be saved for a run to resume: the order of the
data and the noise of a step are functions of (seed, purpose, position) alone.
"""

from __future__ import annotations

import hashlib

import numpy as np

from headswap.types import Ids

FEISTEL_ROUNDS = 6


def derive(seed: int, *purpose: object) -> int:
    """A 63-bit key for one purpose; equal on every machine and version."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: object) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive(seed, *purpose)))


def shuffled(positions: Ids, size: int, key: int) -> Ids:
    """Where each position goes in a pseudo-random permutation of ``range(size)``.

    A Feistel network over the smallest even number of bits that holds ``size``, walked
    along its cycle until it lands inside: constant memory however large the corpus is.
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    out = np.asarray(positions, dtype=np.uint64).copy()
    outside = np.ones(out.shape, dtype=bool)
    while outside.any():
        left, right = out[outside] >> shift, out[outside] & mask
        for turn in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (_mix(right, derive(key, turn)) & mask)
        out[outside] = (left << shift) | right
        outside = out >= size
    return out.astype(np.int64)


def _mix(values: np.ndarray, key: int) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014, section 4)."""
    with np.errstate(over="ignore"):
        x = values + np.uint64(key)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
