"""Kill a training at random instants, resume it, and compare it byte by byte.

    python benchmarks/kills.py --kills 200

Half of the kills come at a random moment, half in the middle of a file operation (a sync,
rename or delete), so that every stage of a save is hit. Each child is forked from a process
that has imported everything, which makes a kill cost as little as the work it interrupts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from headswap import cli, pipeline, use  # noqa: F401 (imported once, before any fork)

CLOCKS = ("timing.jsonl", "provenance.json")
"""Files that hold wall-clock times or the command line, and so may differ."""

OPERATIONS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


def child(arguments: Sequence[str], kill_at_operation: int | None) -> int:
    """Fork a process that runs a command, killing itself at the n-th file operation."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    if kill_at_operation is not None:
        _arm(kill_at_operation)
    code = 70
    try:
        cli.main(list(arguments))
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        os._exit(code)


def _arm(count: int) -> None:
    left = count

    def trap(plain):
        def wrapped(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*arguments, **options)

        return wrapped

    for name in OPERATIONS:
        setattr(os, name, trap(getattr(os, name)))


def wait(pid: int, seconds: float | None = None) -> int | None:
    """The exit code, or None when the process was killed (by itself or after ``seconds``)."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is not None and time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None
        time.sleep(0.002)
    if deadline is not None:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None


def contents(run: Path) -> dict[str, str]:
    """A hash of every file of a run that has to be equal."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file()
        and path.name not in CLOCKS
        and path.relative_to(run) != Path("manifest.json")
    }


def torture(
    arguments: Sequence[str], run: Path, kills: int, seed: int, longest: float
) -> Counter[str]:
    """Run a command into ``run``, killing it ``kills`` times on the way; count what was hit.

    When the run finishes before enough kills, it is deleted and begun again.
    """
    draw = random.Random(seed)
    tally: Counter[str] = Counter()
    while True:
        begun = (run / "config.toml").exists()
        command = ["resume", str(run)] if begun else list(arguments)
        if not begun:
            shutil.rmtree(run, ignore_errors=True)
        if tally["kills"] >= kills:
            code = wait(child(command, None))
        elif draw.random() < 0.5:
            code = wait(child(command, draw.randint(1, 60)), 600)
            tally["in a file operation"] += code is None
        else:
            code = wait(child(command, None), draw.uniform(0.01, longest))
            tally["at a random instant"] += code is None
        tally["kills"] += code is None
        if code == 0 and tally["kills"] >= kills:
            return tally
        if code == 0:
            tally["finished early, begun again"] += 1
            shutil.rmtree(run)
        elif code is not None:
            raise SystemExit(f"the command failed with exit code {code}: {' '.join(command)}")


def write_data(folder: Path) -> tuple[Path, Path]:
    """A little text and a few labels, without needing any corpus."""
    draw = random.Random(0)
    words = "the a story hero ending page was is and but very of with near under".split()
    moods = {"good": ["superb", "lovely", "moving"], "bad": ["awful", "dull", "clumsy"]}
    text, rows = [], []
    for _ in range(400):
        label = draw.choice(sorted(moods))
        line = " ".join(draw.choices([*words, *moods[label]], k=draw.randint(5, 30)))
        text.append(line)
        rows.append(json.dumps({"text": line, "label": label}))
    corpus, table = folder / "corpus.txt", folder / "reviews.jsonl"
    corpus.write_text("\n".join(text))
    table.write_text("\n".join(rows[:160]))
    return corpus, table


def scenarios(folder: Path) -> dict[str, list[str]]:
    """The commands under test: a base with dropout, and a classifier on top of it."""
    corpus, table = write_data(folder)
    small = ["model.width=16", "model.layers=2", "model.heads=2", "model.feedforward=32"]
    small += ["model.length=24", "tokenizer.vocabulary=330"]
    often = ["train.save_minutes=0.0005", "train.log_every=3", "model.dropout=0.1"]
    often += ["train.threads=1"]

    def sets(values: Sequence[str]) -> list[str]:
        return [part for value in values for part in ("--set", value)]

    causal = ["train", "causal", str(corpus), "--steps", "60", "--batch", "8"]
    causal += sets([*small, *often, "train.evaluate_every=10", "train.accumulate=2"])
    classify = ["train", "classify", str(table), "--test", str(table), "--epochs", "4"]
    classify += ["--from", str(folder / "base"), *sets([*often, "train.keep=best"])]
    return {"base": causal, "classifier": classify}


def compare(
    folder: Path, kills: int, seed: int, longest: float, device: str
) -> dict[str, Counter[str]]:
    """Torture each scenario; raise unless it ends at the uninterrupted run's bytes."""
    results = {}
    for name, command in scenarios(folder).items():
        command += ["--device", device] + ([] if device == "cpu" else ["--deterministic"])
        calm, harried = folder / name, folder / f"{name}-killed"
        code = wait(child([*command, "--out", str(calm)], None))
        if code != 0:
            raise SystemExit(f"the uninterrupted {name} failed with exit code {code}")
        results[name] = torture([*command, "--out", str(harried)], harried, kills, seed, longest)
        expected, found = contents(calm), contents(harried)
        different = [file for file in expected if expected[file] != found.get(file)]
        if different or expected.keys() != found.keys():
            raise SystemExit(f"{name} differs after {kills} kills: {different}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="for each scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda with --deterministic")
    parser.add_argument("--longest", type=float, default=1.5, help="seconds before a kill")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["HEADSWAP_CACHE"] = f"{name}/cache"
        started = time.monotonic()
        results = compare(Path(name), options.kills, options.seed, options.longest, options.device)
        seconds = time.monotonic() - started
    result = {
        "command": f"python benchmarks/kills.py --kills {options.kills} --device {options.device}",
        "identical": True,
        "seconds": round(seconds),
        "runs": {name: dict(tally) for name, tally in results.items()},
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
