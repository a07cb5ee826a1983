from __future__ import annotations

import numpy as np
import pytest

from headswap.experiment.explain import words


class Counting:
    """Likes every `good`, a little every other word, and says so in its first label."""

    def logits(self, texts):
        scores = [2.0 * t.split().count("good") + 0.1 * len(t.split()) for t in texts]
        return np.array([[score, 0.0] for score in scores])


def test_a_words_weight_is_what_its_absence_takes():
    found = words(Counting(), "a good film")
    assert [row["text"] for row in found] == ["a", "good", "film"]
    assert found[1]["weight"] > found[0]["weight"] == found[2]["weight"] > 0


@pytest.mark.parametrize("text", ["good", "好电影"])
def test_a_single_word_has_a_weight_too(text):
    (row,) = words(Counting(), text)
    assert row["text"] == text and row["weight"] > 0
    assert words(Counting(), " ") == [{"text": " ", "weight": 0.0}]
