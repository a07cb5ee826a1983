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
GPU_WORKERS = 6


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


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
