"""The machine a training runs on: device, precision, threads, determinism, memory."""

from __future__ import annotations

import os
import resource
import sys

import torch

from headswap.errors import ResourceError, UsageError
from headswap.training.plan import Plan

COMPILED_MINUTES, COMPILED_STEPS = 4.0, 3_000


def pick_device(name: str = "auto") -> torch.device:
    """``auto`` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"unknown device {name!r}", fix="use cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ResourceError("there is no CUDA GPU that torch can use", fix="use --device cpu")
    if device.type == "cuda" and device.index is not None:
        if device.index >= torch.cuda.device_count():
            raise ResourceError(
                f"there is no {name}: the GPUs here end at cuda:{torch.cuda.device_count() - 1}"
            )
        torch.cuda.set_device(device)  # graphs and kernels of our own go to the current one
    return device


def pick_precision(plan: Plan, device: torch.device) -> tuple[torch.dtype, str | None]:
    """The type of the matrix products, and a line to print when a wish was not granted."""
    if plan.precision == "fp32" or (plan.precision == "auto" and device.type == "cpu"):
        return torch.float32, None
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, None
        return torch.float32, "this GPU has no bf16: training in fp32"
    if _fast_bf16():
        return torch.bfloat16, None
    return torch.float32, "this CPU has no fast bf16 (it would be many times slower): using fp32"


def prepare(plan: Plan, device: torch.device, threads: int, few_shapes: bool) -> None:
    """Set what decides the exact bytes: thread count, algorithms."""
    torch.set_num_threads(threads)
    plan_attention(device, few_shapes)
    if plan.deterministic != torch.are_deterministic_algorithms_enabled():  # loads the compiler
        torch.use_deterministic_algorithms(plan.deterministic)
    if device.type == "cuda" and plan.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def plan_attention(device: torch.device, few_shapes: bool) -> None:
    """Let cuDNN attend where there are ``few_shapes``: it is the quickest, once it has made a
    plan for a shape, and that takes longer than a hundred small steps."""
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(few_shapes)


def compiles(plan: Plan, device: torch.device, steps: int | None, windows: bool) -> bool:
    """Whether the backbone is compiled. Unless the plan says so, it is where the minute that
    it takes comes back: on a GPU, over many steps of one shape."""
    if plan.compile is not None:
        return plan.compile
    long = plan.minutes >= COMPILED_MINUTES if plan.minutes else (steps or 0) >= COMPILED_STEPS
    return device.type == "cuda" and windows and long


def peak_memory(device: torch.device) -> int:
    """Bytes: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _fast_bf16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            flags = stream.read()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
