"""Which texts count as the same."""

from __future__ import annotations

import pytest

from headswap.text.likeness import fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [("🙂🙂", "😡"), (":(", "!!!"), ("दिन", "दान"), ("กิน", "กัน"), ("été", "ete")],
)
def test_different_texts(one, other):
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A good book!", "a  good book"),
        ("L’été_2", "l'été 2"),
        ("🙂  🙂", "🙂 🙂"),
        ("दिन।", "दिन"),
    ],
)
def test_equal_texts(one, other):
    assert fingerprint(one) == fingerprint(other)
