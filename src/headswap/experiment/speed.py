"""How fast this machine is, measured for a second before a plan is made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from headswap.nn.backbone import Backbone
from headswap.nn.spec import Stack
from headswap.nn.visibility import Inputs, Visibility
from headswap.training import machine
from headswap.training.evaluate import autocast
from headswap.training.plan import Plan

REPEATS = 3
SHARING = 1.15
GPU_WORKERS = 12
GPU_SHARING = 0.5


def step_seconds(stack: Stack, batch: int, length: int, device: str, threads: int) -> float:
    """Forward and backward of a backbone over random tokens: the best of a few tries."""
    place = machine.pick_device(device)
    precision, _ = machine.pick_precision(Plan(), place)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            backbone = Backbone(stack, 1_000).to(place)
            ids = torch.randint(0, 1_000, (batch, length), device=place)
        lengths = torch.full((batch,), length, device=place)
        inputs = Inputs(ids, Visibility.of_lengths("full", lengths, length))

        def once() -> None:
            with autocast(place, precision):
                total = backbone(inputs).float().square().mean()
            total.backward()
            if place.type == "cuda":
                torch.cuda.synchronize()

        once()
        return min(_timed(once) for _ in range(REPEATS))
    finally:
        torch.set_num_threads(before)


def share_out(device: str, wanted: int | None) -> tuple[int, int]:
    """How many runs go side by side, and how many threads each has."""
    cores = _cores()
    if machine.pick_device(device).type == "cuda":
        workers = wanted or min(GPU_WORKERS * torch.cuda.device_count(), max(1, cores // 2))
    else:
        workers = wanted or cores
    return workers, max(1, cores // workers)


def effective(device: str, workers: int) -> float:
    """How many times faster several workers are than one: they share a GPU's kernels."""
    place = machine.pick_device(device)
    if place.type != "cuda":
        return workers
    each = max(1.0, workers / torch.cuda.device_count())
    return float(workers / each * each**GPU_SHARING)


def _cores() -> int:
    """As many as torch would use, which OMP_NUM_THREADS can lower."""
    try:
        return min(len(os.sched_getaffinity(0)), torch.get_num_threads())
    except AttributeError:  # not on every system
        return torch.get_num_threads()


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
