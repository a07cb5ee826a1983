"""Kill one rank of several at random instants and compare the run with one left in peace.

    python benchmarks/ranks.py --kills 20

torchrun starts the group again after every kill, and the training goes on from its last
checkpoint. Most kills come while the ranks train or save, some while they start. A run that
ends before enough kills is compared, deleted and begun again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kills import contents, write_data


def command(folder: Path, out: str, ranks: int, shard: bool, restarts: int) -> list[str]:
    corpus, _ = write_data(folder)
    settings = ["model.width=16", "model.layers=2", "model.heads=2", "model.feedforward=32"]
    settings += ["model.length=24", "model.dropout=0.1", "tokenizer.vocabulary=330"]
    settings += ["train.threads=1", "train.save_minutes=0.003", "train.log_every=3"]
    settings += ["train.evaluate_every=100", f"train.shard={str(shard).lower()}"]
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words += ["--monitor-interval", "0.1", "--nproc-per-node", str(ranks)]
    words += ["--max-restarts", str(restarts), "-m", "headswap", "train", "causal", str(corpus)]
    words += ["--out", str(folder / out), "--steps", "400", "--batch", str(4 * ranks)]
    return words + [part for setting in settings for part in ("--set", setting)]


def begin(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(words, stdout=stream, stderr=stream)


def ranks_of(agent: int) -> list[int]:
    """The processes that torchrun has started and that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == agent and state != "Z":
            found.append(int(entry.name))
    return sorted(found)


def torture(
    words: Sequence[str], run: Path, calm: Path, ranks: int, kills: int, seed: int
) -> Counter[str]:
    """Run a command, killing one rank at a time, and count what the kills hit. Raise unless
    every run that ends has the bytes of the one that was left alone."""
    draw = random.Random(seed)
    tally: Counter[str] = Counter()
    while tally["kills"] < kills:
        shutil.rmtree(run, ignore_errors=True)
        process = begin(words, run.with_suffix(".log"))
        hit: set[int] = set()
        while process.poll() is None and tally["kills"] < kills:
            alive = [pid for pid in ranks_of(process.pid) if pid not in hit]
            if len(alive) < ranks:
                time.sleep(0.01)
                continue
            trains = draw.random() < 0.75
            if trains:
                _wait_for_a_save(process, run)
            time.sleep(draw.uniform(0.0, 2.0 if trains else 4.0))
            victim = draw.choice(alive)
            if process.poll() is not None or victim not in ranks_of(process.pid):
                continue
            os.kill(victim, signal.SIGKILL)
            hit.update(alive)
            tally["kills"] += 1
            tally["while training"] += trains
            tally["at any instant"] += not trains
            tally["rank 0" if victim == alive[0] else "another rank"] += 1
        if process.wait() != 0:
            raise SystemExit(run.with_suffix(".log").read_text()[-4000:])
        expected, found = contents(calm), contents(run)
        different = [file for file in expected | found if expected.get(file) != found.get(file)]
        if different:
            raise SystemExit(f"differs after {tally['kills']} kills: {different}")
        tally["finished and identical"] += 1
    return tally


def _wait_for_a_save(process: subprocess.Popen[bytes], run: Path) -> None:
    """Until the ranks have committed one more checkpoint."""
    before = _newest(run)
    while process.poll() is None and _newest(run) == before:
        time.sleep(0.005)


def _newest(run: Path) -> str | None:
    return max((path.name for path in run.glob("checkpoints/step-*")), default=None)


def compare(folder: Path, ranks: int, shard: bool, kills: int, seed: int) -> Counter[str]:
    """Leave one run alone, and kill another's ranks."""
    if subprocess.run(command(folder, "calm", ranks, shard, 0), capture_output=True).returncode:
        raise SystemExit("the uninterrupted run failed")
    words = command(folder, "killed", ranks, shard, kills)
    return torture(words, folder / "killed", folder / "calm", ranks, kills, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="for each way of training")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="*", default=["DDP", "FSDP2"])
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    started, results = time.monotonic(), {}
    for way in options.ways:
        with tempfile.TemporaryDirectory() as name:
            os.environ["HEADSWAP_CACHE"] = f"{name}/cache"
            shard = way == "FSDP2"
            tally = compare(Path(name), options.ranks, shard, options.kills, options.seed)
            results[way] = dict(tally)
    result = {
        "command": f"python benchmarks/ranks.py --kills {options.kills} --ranks {options.ranks}",
        "identical": True,
        "seconds": round(time.monotonic() - started),
        "runs": results,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
