"""One GPU for several small trainings.

Kernels of different processes take turns unless NVIDIA's multi-process service (MPS) runs
them side by side. It comes with the driver; an experiment starts one of its own, in a folder of
its own, and ends it afterwards. Without it everything works, only slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

COMMAND = "nvidia-cuda-mps-control"
FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
SECONDS = 20


@contextmanager
def side_by_side(device: str, workers: int) -> Iterator[None]:
    """Inside, new processes share the GPU's kernels, where that can be arranged."""
    command = shutil.which(COMMAND)
    if device != "cuda" or workers < 2 or command is None or FOLDERS[0] in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="headswap-mps-") as folder:
        os.environ.update(dict.fromkeys(FOLDERS, folder))
        started = _run([command, "-d"])
        if not started:
            _forget()
        try:
            yield
        finally:
            if started:
                _run([command], "quit\n")
            _forget()


def _forget() -> None:
    for name in FOLDERS:
        os.environ.pop(name, None)


def _run(command: list[str], told: str = "") -> bool:
    try:
        done = subprocess.run(
            command, input=told, text=True, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
