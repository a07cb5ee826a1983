"""Lines of progress."""

from __future__ import annotations

from headswap import progress


def test_sizes_have_the_unit_that_fits_them():
    told = [progress.size(count) for count in (12, 999.6, 999_600, 1_234_567, 2e9)]
    assert told == ["12", "1k", "1M", "1.23M", "2G"]


def test_no_time_is_foretold_before_anything_is_done(monkeypatch, capsys):
    clock = iter([0.0, 60.0, 120.0, 180.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = progress.Plain()
    lines.begin("work")
    for share in (0.0, 0.5, None):
        lines.update(share, "3 things")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "work   0%  3 things"
    assert said[1].endswith("2m00s left") and said[2] == "work  3 things"
