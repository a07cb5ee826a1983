"""Sharding by two workers beside one, and a large text by four: how fast, and to the same bytes.

    python benchmarks/sharding.py --out docs/results/sharding.json

Each worker is the command that a user would run, held to a core of its own. The text is made up
(as in benchmarks/memory.py); one and two workers take turns, and medians count. How busy the
machine was with other work is part of the result; where it was, the workers' own CPU time tells
what two free cores would do: the one worker's, over that of the longer of the two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import memory

from headswap.text import corpus, tokenizer
from headswap.text.tokenizer import TokenizerPlan

LARGE_SHARD_MEGABYTES = 32


def busy() -> float:
    """The share of all cores' time that anyone used over a second."""

    def times() -> tuple[int, int]:
        fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]

    total, idle = times()
    time.sleep(1)
    after, rest = times()
    return 1 - (rest - idle) / max(after - total, 1)


def seconds(arguments: list[str], out: Path, workers: int) -> tuple[float, float]:
    """All parts at once, each on a core of its own: by the clock, and the most CPU time."""
    began = time.perf_counter()
    running = []
    for number in range(workers):
        part = ["--out", str(out), "--part", f"{number + 1}/{workers}"]
        command = [sys.executable, "-m", "headswap", "shards", *arguments, *part]
        pinned = ["taskset", "-c", str(number % (os.cpu_count() or 1)), *command]
        running.append(subprocess.Popen(pinned, stdout=subprocess.DEVNULL))
    used = []
    for process in running:
        _, status, facts = os.wait4(process.pid, 0)
        if status:
            raise SystemExit("a worker failed")
        used.append(facts.ru_utime + facts.ru_stime)
    return time.perf_counter() - began, max(used)


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--text-megabytes", type=int, default=128)
    parser.add_argument("--shard-megabytes", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--large-megabytes", type=int, default=2_000, help="for four workers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        memory.write_text(text, options.text_megabytes * 10**6)
        large = folder / "large.txt"
        memory.write_text(large, options.large_megabytes * 10**6)
        plan = TokenizerPlan(vocabulary=8_000, sample_megabytes=5)
        (folder / "words").mkdir()
        reading = corpus.Reading("line")
        tokenizer.train(corpus.documents([text], reading), plan).save(folder / "words")
        arguments = [str(text), "--tokenizer", str(folder / "words"), "--documents", "line"]
        arguments += ["--megabytes", str(options.shard_megabytes)]
        tries: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        others, digests = [], set()
        for turn in range(options.repeats):
            for workers in tries:
                others.append(busy())
                out = folder / f"shards-{turn}-{workers}"
                tries[workers].append(seconds(arguments, out, workers))
                digests.add(digest(out))
                clock, cpu = tries[workers][-1]
                print(f"{workers}: {clock:.1f} s, CPU {cpu:.1f} s, {others[-1]:.0%} busy before")
        given = [str(large), *arguments[1:-1], str(LARGE_SHARD_MEGABYTES)]
        whole: dict[str, float] = {}
        same = set()
        for workers in (1, 4):
            out = folder / f"large-{workers}"
            whole[str(workers)] = seconds(given, out, workers)[0]
            same.add(digest(out))
            shutil.rmtree(out)
            print(f"{options.large_megabytes} MB by {workers}: {whole[str(workers)]:.0f} s")
    medians = {
        kind: [statistics.median(one[place] for one in tries[workers]) for workers in tries]
        for place, kind in enumerate(("clock", "cpu"))
    }
    found = {
        "command": f"python benchmarks/sharding.py --text-megabytes {options.text_megabytes} "
        f"--shard-megabytes {options.shard_megabytes} --repeats {options.repeats}",
        "cores": os.cpu_count(),
        "megabytes": options.text_megabytes,
        "seconds": {str(workers): some for workers, some in tries.items()},
        "times_as_fast": {kind: one / two for kind, (one, two) in medians.items()},
        "identical": len(digests) == 1,
        "busy_before": others,
        "large": {
            "megabytes": options.large_megabytes,
            "seconds": whole,
            "identical": len(same) == 1,
        },
    }
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
