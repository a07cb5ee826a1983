"""The processes that train one run together, and what they tell each other.

torchrun starts them and names each by its rank; torch.distributed carries the messages. What
decides the course of a training (counts, clocks, signals, the choice of a checkpoint) is agreed
on here, so that all ranks take the same branches.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from headswap.errors import DataError, Elsewhere, HeadswapError, ResourceError, UsageError
from headswap.progress import Reporter, Silent
from headswap.training import machine
from headswap.training.plan import Plan

MEETING = timedelta(minutes=5)
WAITING = timedelta(hours=12)  # the others wait while one encodes a corpus or translates
GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Gloo")

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among ``world``; ``local`` is its number on this machine. ``again`` where
    torchrun has started them again after a failure."""

    rank: int = 0
    world: int = 1
    local: int = 0
    again: bool = False

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def leads(self) -> bool:
        """Whether this is the one rank that writes and speaks."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, *values: float) -> list[float]:
        """The largest of each value over all ranks."""
        if self.alone:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()

    def gather(self, mine: T) -> list[T]:
        """What each rank has, by rank."""
        if self.alone:
            return [mine]
        everyone: list[T] = [mine] * self.world
        dist.all_gather_object(everyone, mine)
        return everyone

    def from_leader(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank."""
        if self.alone:
            return make()
        held = [make() if self.leads else None]
        dist.broadcast_object_list(held, 0)
        return held[0]  # type: ignore[return-value]

    def in_turn(self, make: Callable[[], T], first: bool) -> T:
        """What each rank makes: the ``first`` ones before the others, which then find it done."""
        if self.alone:
            return make()
        made: list[T] = []
        for turn in (True, False):
            with self.together():
                if first == turn:
                    made.append(make())
        return made[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """All ranks get through or none does: the first that failed tells why."""
        if self.alone:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except Exception as error:  # a bug on one rank ends the others too
            failure = error
        code = 0 if failure is None else 70
        if isinstance(failure, HeadswapError):
            code = failure.exit_code
        codes = self.gather(code)
        if not any(codes):
            return
        speaker = next(rank for rank, code in enumerate(codes) if code)
        if failure is not None and speaker == self.rank:
            raise failure
        raise Elsewhere(codes[speaker]) from failure

    def spoken(self, error: HeadswapError) -> HeadswapError:
        """An error that all ranks have run into, of which one speaks."""
        return error if self.leads else Elsewhere(error.exit_code)

    def reporter(self, report: Reporter) -> Reporter:
        return report if self.leads else Silent()

    def device(self, name: str) -> torch.device:
        """The device of this rank: a GPU of its own, or the CPU."""
        device = machine.pick_device(name)
        if self.alone or device.type != "cuda":
            return device
        if device.index is not None:
            raise UsageError(
                f"--device {name} is one GPU and there are {self.world} processes",
                fix="use --device cuda: each process takes a GPU of its own",
            )
        if self.local >= torch.cuda.device_count():
            raise too_few(self.local + 1)
        device = torch.device("cuda", self.local)
        torch.cuda.set_device(device)
        return device

    def check_batch(self, plan: Plan) -> None:
        """Refuse batches that cannot be shared evenly; those cut by tokens never are."""
        batch, world = plan.batch, self.world
        if plan.batch_tokens is not None or batch % world == 0:
            return
        counts = [count for count in range(1, batch + 1) if batch % count == 0]
        near = {max(count for count in counts if count < world)}
        near |= set([count for count in counts if count > world][:1])
        sizes = {batch // world * world, (batch // world + 1) * world} - {0}
        raise UsageError(
            f"a batch of {batch} cannot be shared evenly by {world} processes",
            fix=f"use {_or(near)} processes, or a train.batch of {_or(sizes)}",
        )

    def compare(self, what: Mapping[str, Any]) -> None:
        """Refuse ranks that were given different things; ``what`` is named and hashed."""
        text = {name: json.dumps(value, sort_keys=True) for name, value in what.items()}
        mine = {name: hashlib.sha256(part.encode()).digest() for name, part in text.items()}
        everyone = self.gather(mine)
        for rank, theirs in enumerate(everyone):
            for name, digest in theirs.items():
                if digest != everyone[0][name]:
                    raise self.spoken(
                        DataError(
                            f"process {rank} has other {name} than process 0",
                            fix="start all of them with the same command on the same files",
                        )
                    )


ALONE = Ranks()


def started() -> bool:
    """Whether torchrun (or whatever sets its variables) started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[Ranks]:
    """Inside, this process is one of those that torchrun started, or alone."""
    if not started():
        yield Ranks(again=_starts() > 0)
        return
    ranks = _meet()
    try:
        yield ranks
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(word in str(error) for word in GONE):
            raise Elsewhere from error
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def too_few(wanted: int) -> ResourceError:
    there = torch.cuda.device_count()
    return ResourceError(
        f"{wanted} GPUs were asked for and there are {there}",
        fix=f"use --gpus {there}" if there else "use --processes to train on the CPU",
    )


def _meet() -> Ranks:
    if not dist.is_available() or not dist.is_gloo_available():
        raise ResourceError("this torch cannot train on several processes (it has no gloo)")
    backend = "gloo"
    if torch.cuda.is_available():
        if not dist.is_nccl_available():
            raise ResourceError("this torch has GPUs but no NCCL", fix="train on one of them")
        backend = "cpu:gloo,cuda:nccl"
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store, rank, world = next(rendezvous("env://", timeout=MEETING))
        if os.environ.get("LOCAL_WORLD_SIZE") == str(world):
            # torchrun keeps its store, and in it the addresses of those it has started again.
            # Only on one machine do all ranks count restarts alike.
            store = PrefixStore(f"start {_starts()}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=WAITING)
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise ResourceError(
                f"the port of {address} is in use", fix="give torchrun another --master-port"
            ) from error
        reason = str(error).strip().split("\n")[0][:200]
        raise ResourceError(f"the processes did not find each other ({reason})") from error
    ranks = Ranks(rank, world, int(os.environ.get("LOCAL_RANK", rank)))
    (starts,) = ranks.largest(_starts())  # machines count their own failures only
    return replace(ranks, again=starts > 0)


def _starts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _or(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))
