"""Runs that vote: shares are chosen on validation, and complements help each other."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headswap.experiment import voting
from headswap.predictions import Predictions


def said(truth_N, sure_N):
    """Predictions of two labels, ``sure_N`` of the right one."""
    chances_NC = np.empty((len(truth_N), 2))
    chances_NC[np.arange(len(truth_N)), truth_N] = sure_N
    chances_NC[np.arange(len(truth_N)), 1 - truth_N] = 1 - sure_N
    return Predictions(("a", "b"), truth_N, chances_NC)


@pytest.fixture
def truth_N():
    return np.random.default_rng(0).integers(0, 2, 400)


def test_the_mean_of_equals_is_themselves(truth_N):
    one = said(truth_N, np.random.default_rng(1).random(400))
    assert np.allclose(voting.together([one, one, one]).chances_NC, one.chances_NC)
    assert np.allclose(voting.blended(one, one, 0.3).chances_NC, one.chances_NC)


def test_validation_chooses_the_share(truth_N):
    draw = np.random.default_rng(2)
    good = said(truth_N, np.clip(draw.normal(0.8, 0.1, 400), 0, 1))
    useless = said(truth_N, draw.random(400))
    assert voting.best_share(good, useless) < 0.5 < voting.best_share(useless, good)
    even = np.arange(400) % 2 == 0  # each is sure of what the other barely misses
    one, two = said(truth_N, np.where(even, 0.9, 0.45)), said(truth_N, np.where(even, 0.45, 0.9))
    mixed = voting.blended(one, two, voting.best_share(one, two))
    assert mixed.right_N.mean() == 1 and one.right_N.mean() == 0.5


def test_the_report_has_the_votes(experiment):
    path, _ = experiment
    found = json.loads((path / "report.json").read_text())
    rows = found["votes"]
    neural = {row["name"] for row in found["arms"] if row["kind"] != "linear"}
    assert {row["name"] for row in rows} == neural | {"linear"}
    assert [row["linear_share"] is None for row in rows].count(True) == len(neural) + 1
    for row in rows:
        assert 0 <= row["over_texts"][0] <= row["accuracy"] <= row["over_texts"][1] <= 1
    assert "What if they vote?" in (path / "report.html").read_text()
