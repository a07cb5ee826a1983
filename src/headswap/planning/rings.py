"""What GPUs tell each other in a training step, by a model of rings.

Rings after Patarasuk and Yuan 2009; sharding after Rajbhandari et al. 2020, section 7.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from headswap.errors import UsageError

Way = Literal["ddp", "sharded"]
WAYS: tuple[Way, ...] = ("ddp", "sharded")
OVERLAP = 0.7


@dataclass(frozen=True)
class Fleet:
    """``nodes`` of ``gpus`` each. ``link``: GB/s that a GPU sends to others of its node;
    ``fabric``: GB/s that a node sends to other nodes; ``price``: of a GPU's hour; ``overlap``:
    the share of a pass's time that hides sending."""

    nodes: int = 1
    gpus: int = 1
    link: float | None = None
    fabric: float | None = None
    price: float | None = None
    overlap: float = OVERLAP

    def __post_init__(self) -> None:
        for option, count in (("--nodes", self.nodes), ("--gpus-per-node", self.gpus)):
            if count < 1:
                raise UsageError(f"{option} {count}", fix="give 1 or more")
        for option, speed, needed, example in (
            ("--link", self.link, self.gpus > 1, "450, an H100's NVLink"),
            ("--fabric", self.fabric, self.nodes > 1, "50, a 400 Gb/s port a node"),
        ):
            if speed is not None and not 0 < speed < math.inf:
                raise UsageError(f"{option} {speed:g}", fix="give GB/s above 0")
            if speed is None and needed:
                raise UsageError(f"how fast is {option}?", fix=f"give GB/s: {option} {example}")
        if self.price is not None and not 0 <= self.price < math.inf:
            raise UsageError(f"--price {self.price:g}", fix="give dollars a GPU's hour, 0 or more")
        if not 0 <= self.overlap <= 1:
            raise UsageError(f"--overlap {self.overlap:g}", fix="give a share from 0 to 1")

    @property
    def world(self) -> int:
        return self.nodes * self.gpus

    def of(self, world: int) -> Fleet:
        """The same with so many GPUs: part of a node, or whole nodes."""
        if world <= self.gpus:
            return dataclasses.replace(self, nodes=1, gpus=world)
        return dataclasses.replace(self, nodes=world // self.gpus)

    def sizes(self) -> list[int]:
        """From one GPU to all of them, by doubling parts of a node and then nodes."""
        inside = [2**power for power in range(self.gpus.bit_length()) if 2**power < self.gpus]
        between = [self.gpus * 2**power for power in range(self.nodes.bit_length())]
        return [*inside, *(size for size in between if size < self.world), self.world]


@dataclass(frozen=True)
class Sent:
    """Bytes of one step: by each GPU inside its node, by each node to others."""

    inside: float
    between: float

    def seconds(self, fleet: Fleet) -> float:
        within = self.inside / (1e9 * fleet.link) if fleet.link else 0.0
        return within + (self.between / (1e9 * fleet.fabric) if fleet.fabric else 0.0)


def rings(content: float, fleet: Fleet, passes: int) -> Sent:
    """A ring of n passes on (n - 1)/n of the content; an all-reduce does so twice, a gather or
    a scatter once. Between nodes each GPU's ring carries its share, together the whole."""
    inside, between = ((n - 1) / n for n in (fleet.gpus, fleet.nodes))
    return Sent(passes * content * inside, passes * content * between)


def exposed(
    way: Way, gradients: float, weights: float, parts: int, compute: float, fleet: Fleet
) -> tuple[Sent, float]:
    """What a step sends, and the seconds of it that no computation hides."""
    forward, backward = compute / 3, 2 * compute / 3
    if way == "ddp":  # once a step, while the last part's gradients are made
        sent = rings(gradients, fleet, 2)
        return sent, max(0.0, sent.seconds(fleet) - fleet.overlap * backward / parts)
    gather = rings(weights, fleet, parts)
    scatter = rings(gradients, fleet, 1)
    seconds = gather.seconds(fleet)
    late = max(0.0, seconds - fleet.overlap * forward)
    late += max(0.0, seconds + scatter.seconds(fleet) - fleet.overlap * backward)
    sent = Sent(
        2 * gather.inside + scatter.inside,
        2 * gather.between + scatter.between,
    )
    return sent, late
