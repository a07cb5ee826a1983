"""The server under load, over the loopback: batching, a crowd, slow clients, a huge body.

    python benchmarks/load.py RUN --texts FILE --exported FILE.onnx --out docs/results/load.json

RUN is a classifier and FILE has a text a line. Each part starts a server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 8.0


@contextmanager
def serving(run: Path, *options: object) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "headswap", "serve", run, "--port", port, *options]
    process = subprocess.Popen(
        [str(part) for part in (*command, "--device", "cpu")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.05)
    try:
        yield port, process
    finally:
        process.terminate()
        process.wait(20)


def resident(process: subprocess.Popen[str]) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def request(run: Path, text: str) -> bytes:
    body = json.dumps({"texts": [text]}).encode()
    head = f"POST /v1/models/{run.resolve().name}/classify HTTP/1.1\r\nHost: x\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    sizes = [line for line in head.split("\r\n") if line.lower().startswith("content-length")]
    body = await reader.readexactly(int(sizes[0].split(":")[1])) if sizes else b""
    return int(head.split()[1]), body


async def client(port: int, asked: Sequence[bytes], until: float, times: list[float]) -> None:
    """One request after another on one connection, until the time is up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while time.monotonic() < until:
        began = time.monotonic()
        writer.write(asked[number % len(asked)])
        status, _ = await answer(reader)
        assert status == 200, status
        times.append(time.monotonic() - began)
        number += 1
    writer.close()


async def crowd(port: int, asked: Sequence[bytes], clients: int, seconds: float) -> list[float]:
    times: list[float] = []
    until = time.monotonic() + seconds
    some = [asked[i:] + asked[:i] for i in range(clients)]
    await asyncio.gather(*(client(port, mine, until, times) for mine in some))
    return times


def batching(run: Path, asked: Sequence[bytes]) -> dict[str, Any]:
    """Requests a second of 32 clients, one text at a time and together, in turns."""
    rates: dict[str, list[float]] = {"one at a time": [], "together": []}
    for _ in range(3):
        for name, most in (("one at a time", 1), ("together", 32)):
            with serving(run, "--batch", most, "--queue", 256) as (port, _process):
                asyncio.run(crowd(port, asked, 4, 1.0))
                times = asyncio.run(crowd(port, asked, 32, SECONDS / 2))
                rates[name].append(len(times) / (SECONDS / 2))
    found = {name: statistics.median(some) for name, some in rates.items()}
    return {"requests_a_second": found, "ratio": found["together"] / found["one at a time"]}


def too_many(run: Path, asked: Sequence[bytes]) -> dict[str, Any]:
    """500 clients at once, ten times, against a queue of 64."""

    async def once(port: int, one: bytes) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(one)
        status, _ = await answer(reader)
        writer.close()
        return status

    async def all_at_once(port: int) -> list[Any]:
        work = [once(port, asked[i % len(asked)]) for i in range(500)]
        return await asyncio.gather(*work, return_exceptions=True)

    statuses: dict[str, int] = {}
    with serving(run, "--queue", 64) as (port, process):
        asyncio.run(crowd(port, asked, 32, 3.0))
        asyncio.run(all_at_once(port))
        before = resident(process)
        for _ in range(10):
            for status in asyncio.run(all_at_once(port)):
                statuses[str(status)] = statuses.get(str(status), 0) + 1
        grown = resident(process) / before - 1
        alive = process.poll() is None
    return {"answers": statuses, "memory_grew_by": grown, "alive": alive}


def slow(run: Path, asked: Sequence[bytes]) -> dict[str, Any]:
    """200 clients that send a byte a second, while 8 others ask as always."""

    async def dawdle(port: int, closed: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = time.monotonic()
        for byte in asked[0]:
            writer.write(bytes([byte]))
            try:
                found = await asyncio.wait_for(reader.read(1), 1.0)
            except TimeoutError:
                continue
            except ConnectionError:
                found = b""
            if not found:
                closed.append(time.monotonic() - began)
                return

    async def both(port: int) -> tuple[list[float], list[float]]:
        closed: list[float] = []
        dawdlers = [asyncio.create_task(dawdle(port, closed)) for _ in range(200)]
        times = await crowd(port, asked, 8, 9.0)
        await asyncio.wait(dawdlers, timeout=10)
        return times, closed

    with serving(run) as (port, _):
        asyncio.run(crowd(port, asked, 8, 2.0))
        alone = asyncio.run(crowd(port, asked, 8, SECONDS))
        beside, closed = asyncio.run(both(port))
    at = [statistics.quantiles(times, n=100)[98] for times in (alone, beside)]
    return {
        "closed": len(closed),
        "longest_seconds": max(closed, default=None),
        "p99_alone": at[0],
        "p99_beside": at[1],
        "ratio": at[1] / at[0],
    }


def metric(port: int, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def huge(run: Path) -> dict[str, Any]:
    """A gigabyte, declared and in chunks: how much was taken before the refusal."""
    found = {}
    block = b"x" * 65_536
    with serving(run) as (port, process):
        before = resident(process)
        for kind in ("declared", "chunked"):
            link = socket.create_connection(("127.0.0.1", port), 10)
            size = (
                "Content-Length: 1000000000" if kind == "declared" else "Transfer-Encoding: chunked"
            )
            path = f"/v1/models/{run.resolve().name}/classify"
            link.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{size}\r\n\r\n".encode())
            link.settimeout(0.002)
            sent, status = 0, b""
            while sent < 1_000_000_000 and not status:
                try:
                    status = link.recv(12)
                    break
                except TimeoutError:
                    pass
                try:
                    data = block if kind == "declared" else b"10000\r\n" + block + b"\r\n"
                    link.settimeout(1.0)
                    link.sendall(data)
                    link.settimeout(0.002)
                    sent += len(block)
                except OSError:
                    link.settimeout(1.0)
                    status = link.recv(12) or b"closed"
            link.close()
            read = metric(port, "headswap_body_bytes_total")
            found[kind] = {
                "status": status.decode("latin-1")[-3:],
                "sent_bytes": sent,
                "read_bytes": read,
            }
        found["memory_grew_by_mib"] = (resident(process) - before) / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--exported", type=Path, help="the same in ONNX, for the batching too")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    lines = [line for line in options.texts.read_text("utf-8").splitlines() if line.strip()]
    asked = [request(options.run, text[:400]) for text in lines[:200]]
    found: dict[str, Any] = {"command": "python benchmarks/load.py RUN --texts FILE"}
    if options.exported:
        short = [request(options.exported, text[:400]) for text in lines[:200]]
        found["batching, exported"] = batching(options.exported, short)
        print("batching, exported", found["batching, exported"], flush=True)
    for part in (batching, too_many, slow):
        found[part.__name__] = part(options.run, asked)
        print(part.__name__, found[part.__name__], flush=True)
    found["huge"] = huge(options.run)
    print("huge", found["huge"])
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
