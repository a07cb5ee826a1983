"""The metrics of a run, as they are written and cut back."""

from __future__ import annotations

from headswap.run import Run
from headswap.training.journal import Journal
from headswap.training.plan import Plan


def test_it_is_cut_back_and_never_filled_up(tmp_path):
    journal = Journal(Run(tmp_path), Plan(steps=1), keeps=True)
    journal.write({"step": 1})
    length = journal.bytes
    journal.write({"step": 2})
    journal.sync()
    journal.forget_after(length)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    journal.forget_after(1_000)
    assert journal.bytes == length and b"\0" not in (tmp_path / "metrics.jsonl").read_bytes()
