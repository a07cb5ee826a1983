"""SIGKILL at random instants, mid-save included: the run still ends at the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_ten_kills_change_nothing(tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--kills", "10", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["identical"]
    for tally in result["runs"].values():
        assert tally["kills"] == 10 and tally["in a file operation"] > 1
