"""Starting a command in several processes on this machine, by the machinery of torchrun."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid

import torch

from headswap.errors import Elsewhere, Interrupted, ResourceError, UsageError
from headswap.training.ranks import started, too_few


def wanted(gpus: int | None, processes: int | None) -> bool:
    """Whether this process is to start others. The ones that it starts are given the same
    options, and then are what was wanted."""
    if gpus is not None and processes is not None:
        raise UsageError("--gpus and --processes exclude each other", fix="give one")
    count = gpus if gpus is not None else processes
    if count is None or started():
        return False
    if count < 1:
        raise UsageError(f"{count} processes cannot train", fix="give at least 1")
    if gpus is not None and gpus > torch.cuda.device_count():
        raise too_few(gpus)
    return count > 1


def launch(gpus: int | None, processes: int | None) -> None:
    """Run this very command in several processes, until all have ended; the first that fails
    ends the others. It has told why, unless it was killed."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    count = gpus or processes or 1
    logging.disable(logging.CRITICAL)  # what torchrun would say, the user is told in one line
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "headswap", *sys.argv[1:])
    except SignalException as stopped:
        raise Elsewhere(Interrupted.exit_code) from stopped
    except ChildFailedError as failed:
        followed = (Elsewhere.lost, -signal.SIGTERM)  # those that went because another did
        everyone = sorted(failed.failures.values(), key=lambda one: one.exitcode in followed)
        rank, code = everyone[0].local_rank, everyone[0].exitcode
        if code > 0 and code != Elsewhere.lost:
            raise Elsewhere(code) from failed
        how = f"was killed by signal {-code}" if code < 0 else "lost touch with the others"
        raise ResourceError(
            f"process {rank} {how}",
            fix="go on with headswap resume; a killed process often ran out of memory",
        ) from failed
