"""Devices that are not here: what they could do, as far as their data sheets tell."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headswap.errors import UsageError, did_you_mean

NEEDED = 7.5  # what torch's standard builds run on
LEGACY = "only torch's CUDA 12.6 builds, the last of which is 2.14, still run on this chip"


@dataclass(frozen=True)
class Device:
    """``teraflops`` is the peak of one GPU in the precision that training would use there;
    ``capability`` decides whether current builds of torch run on it."""

    name: str
    memory_gib: float
    teraflops: float
    capability: float
    bf16: bool
    count: int = 1

    @property
    def precision(self) -> torch.dtype:
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def note(self) -> str:
        return "" if self.capability >= NEEDED else LEGACY

    def flops(self, width: int) -> float:
        """What training reaches, an assumption: 40% of the peak in wide layers, less in narrow
        ones, whose matrices leave most of the chip idle."""
        return 1e12 * self.count * self.teraflops * 0.4 * width / (width + self._narrow)

    @property
    def _narrow(self) -> float:
        """The width at which half of that is reached: wider for faster chips."""
        return 2.0 * self.teraflops


DEVICES = {
    device.name: device
    for device in (
        Device("GTX 1050 Ti", 4, 2.1, 6.1, bf16=False),
        Device("T4", 16, 8.1, 7.5, bf16=False),
        Device("A100", 80, 312, 8.0, bf16=True),
        Device("H100", 80, 989, 9.0, bf16=True),
        Device("H200", 141, 989, 9.0, bf16=True),
        Device("8×P100", 16, 10.6, 6.0, bf16=False, count=8),
    )
}


def named(name: str) -> Device:
    """A device by its name, however it is written."""

    def plain(text: str) -> str:
        return "".join(c for c in text.lower().replace("×", "x") if c.isalnum())

    for device in DEVICES.values():
        if plain(device.name) == plain(name):
            return device
    known = ["auto", "cpu", "cuda", *DEVICES]
    raise UsageError(f"unknown device {name!r}", fix=did_you_mean(name, known))
