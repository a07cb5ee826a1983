"""Numbers with their nouns."""

from __future__ import annotations

from headswap.wording import counted, quoted, shortened


def test_one_is_one():
    assert counted(1, "text") == "1 text" and counted(0, "text") == "0 texts"
    assert counted(1_200, "test text") == "1,200 test texts" and counted(2, "class") == "2 classes"


def test_names_that_fit_a_line_and_paths_that_can_be_pasted():
    assert shortened("short") == "short" and len(shortened("x" * 500)) == 40
    assert quoted("runs/a b") == "'runs/a b'" and quoted("runs/a") == "runs/a"
