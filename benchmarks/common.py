"""What the benchmarks share: running headswap as a user would."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time

BEGAN = time.monotonic()


def headswap(*arguments: object, quiet: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command, printing it; stop at the first that fails."""
    command = [sys.executable, "-m", "headswap", *map(str, arguments)]
    print(f"[{time.monotonic() - BEGAN:.0f} s] $ headswap {shlex.join(command[3:])}", flush=True)
    progress = subprocess.PIPE if quiet else None
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=progress, text=True)
    if done.returncode:
        raise SystemExit(done.stderr or done.returncode)
    return done
