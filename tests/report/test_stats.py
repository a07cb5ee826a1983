"""The statistics are right: coverage on simulated nulls, power on a planted effect."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from headswap.report import stats


def arms(draw, seeds, texts, gain):
    """Two arms whose texts have their own difficulty, shared by both."""
    ease = draw.beta(2, 1, texts)
    one = draw.random((seeds, texts)) < ease
    two = draw.random((seeds, texts)) < np.clip(ease + gain, 0, 1)
    return one.astype(float), two.astype(float)


def test_intervals_over_seeds_cover_the_truth():
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        interval = stats.over_seeds(draw.normal(0.3, 1.0, 5))
        hits += interval.low <= 0.3 <= interval.high
    assert 0.93 <= hits / 2000 <= 0.97


def test_intervals_over_texts_cover_the_null(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 1000)
    draw = np.random.default_rng(1)
    hits = 0
    for trial in range(1000):
        one, two = arms(draw, 3, 400, 0.0)
        interval = stats.over_texts(one, two, seed=trial)
        hits += interval.low <= 0 <= interval.high
    assert 0.93 <= hits / 1000 <= 0.97


def test_p_values_over_texts_are_fair_under_the_null(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 500)
    draw = np.random.default_rng(2)
    values = [stats.over_texts(*arms(draw, 2, 300, 0.0), seed=i).p for i in range(600)]
    assert abs(np.mean(np.array(values) < 0.05) - 0.05) < 0.025
    assert abs(np.mean(values) - 0.5) < 0.05


def test_a_planted_effect_is_found():
    draw = np.random.default_rng(3)
    one, two = arms(draw, 5, 2000, 0.05)
    over_texts = stats.over_texts(one, two)
    over_seeds = stats.over_seeds((two.mean(1) - one.mean(1)).tolist())
    assert over_texts.excludes_zero() and over_texts.p < 0.001
    assert over_seeds.excludes_zero()


def test_pairing_is_what_makes_it_sharp():
    draw = np.random.default_rng(4)
    ease = draw.beta(0.3, 0.2, 1000)
    one = (ease > 0.5).astype(float)[None]
    two = one.copy()
    two[0, draw.choice(1000, 30, replace=False)] = 1.0
    paired = stats.over_texts(one, two)
    shuffled = stats.over_texts(one, draw.permutation(two[0])[None])
    assert paired.high - paired.low < 0.5 * (shuffled.high - shuffled.low)


def test_one_seed_has_no_seed_interval():
    assert stats.over_seeds([0.1]) is None
    assert stats.over_seeds([0.1, 0.1]) == stats.Interval(0.1, 0.1, 0.0)


def test_holm():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_calibration():
    draw = np.random.default_rng(5)
    confidence = draw.random(20_000)
    honest = (draw.random(20_000) < confidence).astype(float)
    assert stats.calibration_error(confidence, honest) < 0.02
    assert stats.calibration_error(np.full(100, 0.9), np.full(100, 0.0)) == pytest.approx(0.9)


def test_the_bootstrap_is_repeatable():
    draw = np.random.default_rng(6)
    one, two = arms(draw, 2, 100, 0.02)
    assert stats.over_texts(one, two) == stats.over_texts(one, two)


SIZES = (100, 300, 1000, 3000)


def right(draw, accuracy, texts, seeds=4):
    """For each text the share of seeds that were right."""
    return (draw.random((seeds, texts)) < accuracy).mean(0)


def simulated_worth(draw, needed, texts=2000):
    """A scratch arm that gains with the logarithm of its labels, and a target on its curve."""

    def accuracy(labels):
        return 0.5 + 0.06 * np.log(labels / 50)

    curve_KN = np.stack([right(draw, accuracy(size), texts) for size in SIZES])
    return stats.worth_in_labels(SIZES, curve_KN, right(draw, accuracy(needed), texts))


def test_worth_in_labels_recovers_a_known_curve(monkeypatch):
    monkeypatch.setattr(stats, "WORTH_RESAMPLES", 300)
    draw = np.random.default_rng(5)
    found = [simulated_worth(draw, 700) for _ in range(150)]
    values = [worth.value for worth in found]
    assert 600 < np.median(values) < 800
    covered = np.mean([worth.low <= 700 <= (worth.high or np.inf) for worth in found])
    assert 0.88 <= covered <= 1.0


def test_worth_beyond_the_curve_and_before_it():
    draw = np.random.default_rng(6)
    curve_KN = np.stack([right(draw, accuracy, 2000) for accuracy in (0.6, 0.65, 0.7, 0.72)])
    beyond = stats.worth_in_labels(SIZES, curve_KN, right(draw, 0.9, 2000))
    assert beyond.value is None and beyond.low is None and beyond.high is None
    before = stats.worth_in_labels(SIZES, curve_KN, right(draw, 0.4, 2000))
    assert before.value == before.low == before.high == SIZES[0]


def test_a_dent_in_the_curve_is_evened_out():
    assert stats._monotone(np.array([1.0, 3.0, 2.0, 4.0])).tolist() == [1.0, 2.5, 2.5, 4.0]
    assert stats._monotone(np.array([3.0, 2.0, 1.0])).tolist() == [2.0, 2.0, 2.0]


def test_temperature_undoes_false_confidence():
    draw = np.random.default_rng(7)
    logits = draw.normal(0, 1, (4000, 3))
    honest = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = np.array([draw.choice(3, p=row) for row in honest])
    sure = stats.tempered(honest, 1 / 3)
    scale = stats.temperature(sure, truth)
    assert scale == pytest.approx(3, rel=0.1)
    hits = sure.argmax(1) == truth
    before = stats.calibration_error(sure.max(1), hits)
    after = stats.calibration_error(stats.tempered(sure, scale).max(1), hits)
    assert after < 0.03 < before


def test_whole_null_experiments_are_covered(monkeypatch):
    """Both arms alike: 95% of the experiments' intervals, of both kinds, hold zero."""
    monkeypatch.setattr(stats, "RESAMPLES", 500)
    draw = np.random.default_rng(8)
    over_seeds = over_texts = 0
    for trial in range(800):
        skill = draw.normal(0, 0.02, (2, 5, 1))
        ease = draw.beta(2, 1, 500)
        one, two = (draw.random((5, 500)) < np.clip(ease + skill[i], 0, 1) for i in range(2))
        seeds = stats.over_seeds((two.mean(1) - one.mean(1)).tolist())
        over_seeds += seeds.low <= 0 <= seeds.high
        fixed = (draw.random((5, 500)) < ease), (draw.random((5, 500)) < ease)
        texts = stats.over_texts(fixed[0].astype(float), fixed[1].astype(float), seed=trial)
        over_texts += texts.low <= 0 <= texts.high
    assert 0.93 <= over_seeds / 800 <= 0.97
    assert 0.93 <= over_texts / 800 <= 0.97


def test_worth_takes_no_more_room_for_more_texts():
    """Texts on which all did alike are drawn together."""
    draw = np.random.default_rng(8)
    curve_KN = np.stack([right(draw, accuracy, 300_000) for accuracy in (0.6, 0.65, 0.7, 0.75)])
    tracemalloc.start()
    found = stats.worth_in_labels(SIZES, curve_KN, right(draw, 0.7, 300_000))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 300e6 and found.low < SIZES[2] * 1.1 and found.high > SIZES[2] * 0.9


def test_intervals_over_seeds_are_students():
    from scipy import stats as oracle

    values = [0.01, 0.04, -0.01, 0.03, 0.02]
    wanted = oracle.ttest_1samp(values, 0.0)
    low, high = wanted.confidence_interval(0.95)
    found = stats.over_seeds(values)
    assert (found.low, found.high, found.p) == pytest.approx((low, high, wanted.pvalue))
