"""A command as several ranks: forked from this process, so that nothing is imported again."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor

from headswap import cli, pipeline

ONCE = (torch._dynamo, torch.distributed.fsdp, torch.distributed.tensor, pipeline)
"""Imported here, before any fork."""

GRACE = 5.0
SMALL = [
    f"--set={setting}"
    for setting in (
        "model.width=16",
        "model.layers=2",
        "model.heads=2",
        "model.feedforward=32",
        "model.length=24",
        "model.dropout=0.0",
        "tokenizer.vocabulary=330",
        "train.threads=1",
    )
]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Group:
    """``world`` ranks of one command; ``change`` is called in each, before it begins."""

    def __init__(
        self,
        folder: Path,
        world: int,
        *arguments: object,
        change: Callable[[int], None] = lambda rank: None,
        attempt: int = 0,
        port: int | None = None,
    ) -> None:
        self.folder, port = folder, port or free_port()
        self.pids = []
        for rank in range(world):
            settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
            settings |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            settings |= {"TORCHELASTIC_RESTART_COUNT": attempt}
            self.pids.append(self._fork(rank, settings, [str(a) for a in arguments], change))

    def _fork(
        self,
        rank: int,
        settings: dict[str, object],
        arguments: Sequence[str],
        change: Callable[[int], None],
    ) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            os.environ |= {name: str(value) for name, value in settings.items()}
            os.chdir(self.folder)
            for number, name in ((1, "out"), (2, "err")):
                target = os.open(f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(target, number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            change(rank)
            cli.main(arguments)
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float = 120) -> list[int]:
        """The exit codes; negative for signals. As under torchrun, a rank that fails ends the
        others soon; whoever is late is killed."""
        codes: dict[int, int] = {}
        end = time.monotonic() + seconds
        while len(codes) < len(self.pids):
            left = [pid for pid in self.pids if pid not in codes]
            for pid in left:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                    if codes[pid] != 0:
                        end = min(end, time.monotonic() + GRACE)
                elif time.monotonic() > end:
                    os.kill(pid, signal.SIGTERM if time.monotonic() < end + 5 else signal.SIGKILL)
                    time.sleep(0.2)
            time.sleep(0.01)
        return [codes[pid] for pid in self.pids]

    def lines(self) -> list[str]:
        """The errors that all ranks have told the user."""
        told = [(self.folder / f"err-{rank}").read_text() for rank in range(len(self.pids))]
        assert not any("Traceback" in text for text in told), told
        return [line for text in told for line in text.splitlines() if line.startswith("headswap")]


def train(folder: Path, world: int, out: str, *more: object, **how: object) -> Path:
    """A finished run of so many ranks."""
    group = Group(folder, world, "train", *more, "--out", out, **how)  # type: ignore[arg-type]
    codes = group.wait()
    assert codes == [0] * world, (codes, (folder / "err-0").read_text())
    return folder / out
