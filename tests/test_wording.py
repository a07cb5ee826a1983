"""Numbers with their nouns."""

from __future__ import annotations

from headswap.wording import counted


def test_one_is_one():
    assert counted(1, "text") == "1 text" and counted(0, "text") == "0 texts"
    assert counted(1_200, "test text") == "1,200 test texts" and counted(2, "class") == "2 classes"
