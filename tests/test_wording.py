"""Numbers with their nouns."""

from __future__ import annotations

from headswap.wording import counted, gib, quoted, shortened


def test_one_is_one():
    assert counted(1, "text") == "1 text" and counted(0, "text") == "0 texts"
    assert counted(1_200, "test text") == "1,200 test texts" and counted(2, "class") == "2 classes"


def test_memory_is_told_without_powers_of_ten():
    sizes = [gib(value * 2**30) for value in (0.84, 7.74, 22.8, 99.4, 99.6, 134.2, 1200)]
    told = ["0.84", "7.7", "23", "99", "100", "134", "1200"]
    assert sizes == [f"{value} GiB" for value in told]


def test_names_that_fit_a_line_and_paths_that_can_be_pasted():
    assert shortened("short") == "short" and len(shortened("x" * 500)) == 40
    assert quoted("runs/a b") == "'runs/a b'" and quoted("runs/a") == "runs/a"
