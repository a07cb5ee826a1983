"""The machine a training runs on: device, precision, threads, determinism, memory."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable

import torch

from headswap.errors import ResourceError, UsageError
from headswap.nn.model import Model
from headswap.nn.visibility import Inputs, Visibility
from headswap.training.plan import Plan


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


def prepare(plan: Plan, device: torch.device, threads: int) -> None:
    """Set what decides the exact bytes: thread count, algorithms."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(plan.deterministic)
    if device.type == "cuda" and plan.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def compile_backbone(model: Model, warn: Callable[[str], None]) -> None:
    """Compile the backbone in place; a compiler that fails costs one line, not the run."""
    backbone = model.backbone
    backbone.compile(dynamic=True)
    ids = torch.zeros((2, min(8, backbone.stack.length)), dtype=torch.long, device=model.device)
    try:
        with torch.no_grad():
            backbone(Inputs(ids, Visibility("causal")))
    except Exception as error:  # the compiler's failures have no common type
        backbone._compiled_call_impl = None
        reason = str(error).strip().split("\n")[0][:200]
        warn(f"torch.compile failed ({reason}): training without it")


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
