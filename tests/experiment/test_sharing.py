"""The service that lets processes share a GPU is started and ended, or done without."""

from __future__ import annotations

import os

import pytest

from headswap.experiment import sharing


def fake(folder, status):
    """A control program that notes what it was told."""
    path = folder / sharing.COMMAND
    path.write_text(f'#!/bin/sh\necho "$@ $(cat)" >> {folder}/told\nexit {status}\n')
    path.chmod(0o755)


@pytest.mark.parametrize("status", [0, 1])
def test_it_is_started_and_ended_where_it_works(status, tmp_path, monkeypatch):
    fake(tmp_path, status)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with sharing.side_by_side("cuda", 4):
        assert (sharing.FOLDERS[0] in os.environ) == (status == 0)
    assert sharing.FOLDERS[0] not in os.environ
    told = (tmp_path / "told").read_text()
    assert ("quit" in told) == (status == 0)


@pytest.mark.parametrize(("device", "workers"), [("cpu", 4), ("cuda", 1)])
def test_nothing_is_started_where_nothing_is_shared(device, workers, tmp_path, monkeypatch):
    fake(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with sharing.side_by_side(device, workers):
        assert sharing.FOLDERS[0] not in os.environ
    assert not (tmp_path / "told").exists()
