"""Lines of progress."""

from __future__ import annotations

from headswap import progress


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
