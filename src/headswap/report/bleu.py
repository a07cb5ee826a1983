"""Scores of translations against references, with sacreBLEU; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headswap.errors import ResourceError, UsageError
from headswap.randomness import generator
from headswap.types import Table

RESAMPLES = 1_000
OLD = "bleu_tokenized_lowercase"


def scores(said: Sequence[str], right: Sequence[str], language: str = "en") -> Table:
    """BLEU with its signature, chrF and TER of the texts as they are; and the BLEU of older
    papers, on Moses-tokenised lower-cased text, which is comparable with those papers alone."""
    metrics = _library().metrics
    bleu, chrf, ter = metrics.BLEU(), metrics.CHRF(), metrics.TER()
    references = [list(right)]
    found: Table = {
        "bleu": bleu.corpus_score(list(said), references).score,
        "chrf": chrf.corpus_score(list(said), references).score,
        "ter": ter.corpus_score(list(said), references).score,
    }
    old = tokenized_bleu(said, right, language)
    if old is not None:
        found[OLD] = old
    found["signature"] = str(bleu.get_signature())
    return found


def quick(said: Sequence[str], right: Sequence[str]) -> float:
    """BLEU alone, for watching a training."""
    return float(_library().metrics.BLEU().corpus_score(list(said), [list(right)]).score)


def tokenized_bleu(said: Sequence[str], right: Sequence[str], language: str = "en") -> float | None:
    """None where the Moses tokenizer is not installed."""
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        return None
    normal, moses = MosesPunctNormalizer(language), MosesTokenizer(language)

    def cut(texts: Sequence[str]) -> list[str]:
        return [
            moses.tokenize(normal.normalize(text.lower()), return_str=True, escape=False)
            for text in texts
        ]

    metric = _library().metrics.BLEU(tokenize="none", force=True)
    return float(metric.corpus_score(cut(said), [cut(right)]).score)


def paired(one: Sequence[str], two: Sequence[str], right: Sequence[str], seed: int = 0) -> Table:
    """Two's BLEU minus one's with a 95% interval over sentences (Koehn 2004)."""
    if not len(one) == len(two) == len(right):
        raise UsageError("two systems that translated different sentences")
    return difference(resampled([one], right, seed), resampled([two], right, seed))


def sentence_scores(said: Sequence[str], right: Sequence[str]) -> np.ndarray:
    """chrF of every sentence, for finding examples."""
    metric = _library().metrics.CHRF()
    pairs = zip(said, right, strict=True)
    return np.array([metric.sentence_score(one, [other]).score for one, other in pairs])


def resampled(said: Sequence[Sequence[str]], right: Sequence[str], seed: int = 0) -> np.ndarray:
    """The mean BLEU of several systems' translations, first of all sentences as they are,
    then of sentences drawn with replacement; the draws are the same on every call."""
    metric = _library().metrics.BLEU()
    parts = [_statistics(metric, one, right) for one in said]
    draw, count = generator(seed, "bleu"), len(right)
    weights = [np.ones(count, dtype=int)]
    weights += [draw.multinomial(count, np.full(count, 1 / count)) for _ in range(RESAMPLES)]
    return np.array([np.mean([_bleu(metric, w @ part) for part in parts]) for w in weights])


def difference(one: np.ndarray, two: np.ndarray) -> Table:
    """Two's resampled BLEU minus one's with a 95% interval over sentences (Koehn 2004)."""
    gains, gain = (two - one)[1:], float(two[0] - one[0])
    low, high = np.quantile(gains, [0.025, 0.975])
    p = (1 + np.count_nonzero(np.abs(gains - gain) >= abs(gain))) / (1 + len(gains))
    return {"gain": gain, "low": float(low), "high": float(high), "p": float(p)}


def _statistics(metric: Any, said: Sequence[str], right: Sequence[str]) -> np.ndarray:
    """What BLEU adds up, sentence by sentence."""
    return np.array(metric._extract_corpus_statistics(list(said), [list(right)]))


def _bleu(metric: Any, sums: np.ndarray) -> float:
    return float(metric._compute_score_from_stats([int(value) for value in sums]).score)


def _library() -> Any:
    try:
        import sacrebleu
    except ImportError as error:
        raise ResourceError(
            "scoring translations needs sacrebleu", fix="pip install 'headswap[mt]'"
        ) from error
    return sacrebleu
