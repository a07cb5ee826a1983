"""Several ranks do the arithmetic of one, and a run does not show how many made it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kills import contents
from safetensors.torch import load_file

from conftest import STACKS
from headswap import storage
from headswap.errors import UsageError
from headswap.objectives import Causal, Context
from headswap.text.loader import Window
from headswap.training import machine, several
from headswap.training.plan import Plan
from headswap.training.ranks import Ranks
from together import SMALL, Group, train

WEIGHTS, METRICS = "model.safetensors", "metrics.jsonl"
OFTEN = ["--set=train.log_every=1", "--set=train.evaluate_every=7"]


def slowly(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture
def causal(corpus_file):
    def arguments(*more, steps=20):
        return ["causal", corpus_file, "--steps", steps, "--batch", 12, *SMALL, *OFTEN, *more]

    return arguments


def curve(run):
    lines = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    return [(line["split"], line["step"], line["tokens"]) for line in lines], [
        line["loss"] for line in lines
    ]


def assert_same_course(run, other, rel=1e-5):
    (where, losses), (there, others) = curve(run), curve(other)
    assert where == there
    assert losses == pytest.approx(others, rel=rel)


def assert_close(run, other):
    found, expected = load_file(run / WEIGHTS), load_file(other / WEIGHTS)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        if name.endswith(("qkv.bias", "kv.bias")):  # of keys: no gradient but rounding
            continue
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


# The same arithmetic


@pytest.mark.parametrize("shard", ["false", "true"])
def test_two_hundred_steps_of_two_ranks_are_those_of_one(causal, tmp_path, shard):
    arguments = causal(f"--set=train.shard={shard}", steps=200)
    one, two = train(tmp_path, 1, "one", *arguments), train(tmp_path, 2, "two", *arguments)
    assert_same_course(one, two)
    assert_close(one, two)
    assert (one / "config.toml").read_bytes() == (two / "config.toml").read_bytes()


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        ("masked", ["masked.next_sentence=true", "train.accumulate=2"]),
        ("hybrid", ["hybrid.masked.next_sentence=true", "hybrid.masked_share=0.5"]),
        ("causal", ["train.shard=true", "train.ema=0.8", "train.accumulate=2", "model.tied=true"]),
        slowly("hybrid", ["hybrid.masked_share=0.5", "train.ema=0.8", "train.keep=best"]),
        slowly("causal", ["train.unfreeze=0.01", "train.optimizer=muon", "train.average_last=2"]),
        slowly("causal", ["train.shard=true", "train.average_last=2", "train.keep=best"]),
        slowly("causal", ["train.freeze=embedding", "train.clip=0.01"]),
    ],
    ids=str,
)
def test_what_is_drawn_and_averaged_does_not_depend_on_the_ranks(
    corpus_file, tmp_path, objective, more
):
    sets = [f"--set={setting}" for setting in more]
    arguments = [objective, corpus_file, "--steps", 16, "--batch", 12, *SMALL, *OFTEN, *sets]
    one, two = train(tmp_path, 1, "one", *arguments), train(tmp_path, 2, "two", *arguments)
    assert_same_course(one, two)
    assert_close(one, two)


@pytest.mark.skipif(not machine._fast_bf16(), reason="needs a CPU with bf16")
@pytest.mark.parametrize("shard", ["false", slowly("true")])
def test_bf16_too(causal, tmp_path, shard):
    arguments = causal(f"--set=train.shard={shard}", "--set=train.precision=bf16")
    one, two = train(tmp_path, 1, "one", *arguments), train(tmp_path, 2, "two", *arguments)
    assert_same_course(one, two, rel=1e-3)


@pytest.mark.parametrize("shard", ["false", slowly("true")])
def test_classifiers_and_translators_too(reviews_file, tmp_path, shard):
    sets = [*SMALL, *OFTEN, f"--set=train.shard={shard}", "--set=train.log_every=1"]
    texts = ["classify", reviews_file, "--epochs", 2, "--batch", 9, *sets]
    texts += ["--set=classify.long=windows", "--set=classify.token_dropout=0.1"]
    rows = [json.loads(line)["text"].split() for line in reviews_file.read_text().splitlines()]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))
    pieces = ["translate", pairs, "--steps", 8, *sets, "--set=model.decoder_layers=1"]
    pieces += ["--recipe", "tiny-translate", "--set=train.batch_tokens=200"]
    for arguments in (texts, pieces):
        name = arguments[0]
        one, three = (train(tmp_path, n, f"{name}{n}", *arguments) for n in (1, 3))
        assert_same_course(one, three)
        assert_close(one, three)
        found, expected = (json.loads((run / "scores.json").read_text()) for run in (three, one))
        assert found["training"] == expected["training"]
        assert (three / "predictions/valid.jsonl").exists()


@given(st.integers(1, 13), st.integers(0, 99))
def test_ranks_read_the_batch_in_its_order(tokens, rows, seed):
    stack = STACKS["modern"]
    draw = np.random.default_rng(seed)
    examples = [Window(draw.integers(4, tokens.size, 9)) for _ in range(rows)]
    whole = Causal().batch(examples, Context(stack, tokens, draw))
    for world in (1, 2, 3, 4):
        read = torch.zeros_like(whole.inputs.ids_BT)
        for rank in range(world):
            part = whole.of_rank(rank, world)
            assert part.counts == whole.counts and part.tokens == whole.tokens
            if rank < rows:
                read[rank::world] = part.inputs.ids_BT
            else:
                assert float(part.targets["causal"].weights_N.sum()) == 0
        assert torch.equal(read, whole.inputs.ids_BT)


# The same bytes


def test_equal_groups_end_at_equal_bytes(causal, tmp_path):
    arguments = causal("--set=model.dropout=0.1", "--set=train.accumulate=2")
    first, second = (train(tmp_path, 4, name, *arguments) for name in ("a", "b"))
    assert contents(first) == contents(second)


def stopped(folder, world, out, arguments, at=8):
    """A run that was asked to stop, on one rank only, and left a checkpoint."""
    group = Group(folder, world, "train", *arguments, "--out", out)
    metrics = folder / out / METRICS
    while not metrics.exists() or metrics.read_text().count("\n") < at:
        time.sleep(0.002)
    os.kill(group.pids[-1], signal.SIGTERM)
    assert group.wait() == [130] * world
    (line,) = group.lines()
    assert "stopped and saved at step" in line and f"headswap resume {out}" in line
    return folder / out


@pytest.mark.parametrize(
    ("before", "after", "shard"),
    [(2, 1, "false"), (1, 2, "true"), slowly(1, 2, "false"), slowly(2, 3, "true")],
)
def test_a_run_goes_on_with_another_number_of_ranks(causal, tmp_path, before, after, shard):
    rarely = ["--set=train.evaluate_every=100", "--set=train.ema=0.9"]
    arguments = causal(f"--set=train.shard={shard}", *rarely, steps=100)
    whole = train(tmp_path, 1, "whole", *arguments)
    run = stopped(tmp_path, before, "run", arguments)
    assert Group(tmp_path, after, "resume", "run").wait() == [0] * after
    assert_same_course(run, whole)
    assert_close(run, whole)
    assert sorted(contents(run)) == sorted(contents(whole))


@pytest.mark.parametrize(("world", "shard"), [(3, "false"), slowly(2, "true")])
def test_a_restart_after_a_kill_ends_at_the_same_bytes(causal, tmp_path, world, shard):
    often = ["--set=train.save_minutes=0.002", "--set=train.evaluate_every=100"]
    arguments = causal(f"--set=train.shard={shard}", *often, "--set=model.dropout=0.1", steps=300)
    calm = train(tmp_path, world, "calm", *arguments)
    draw = random.Random(0)
    for attempt in range(3):
        command = ("train", *arguments, "--out", "killed")
        group = Group(tmp_path, world, *command, attempt=attempt)
        if attempt == 2:
            assert group.wait() == [0] * world
            break
        before = saves(tmp_path / "killed")
        while saves(tmp_path / "killed") == before:
            time.sleep(0.002)
        time.sleep(draw.uniform(0.0, 0.05))
        victim = draw.randrange(world)
        os.kill(group.pids[victim], signal.SIGKILL)
        codes = group.wait()
        assert codes.pop(victim) == -signal.SIGKILL
        assert set(codes) <= {75, -signal.SIGTERM}
        assert group.lines() == []
    assert contents(tmp_path / "killed") == contents(calm)


def saves(run):
    return sorted(path.name for path in run.glob("checkpoints/step-*"))


@pytest.mark.slow
def test_ranks_killed_under_torchrun(tmp_path):
    script, out = Path(__file__).parents[2] / "benchmarks/ranks.py", tmp_path / "result.json"
    command = [sys.executable, str(script), "--kills", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["identical"] and [run["kills"] for run in found["runs"].values()] == [2, 2]


@pytest.mark.slow
def test_one_command_starts_and_stops_them_all(causal, tmp_path):
    command = [sys.executable, "-m", "headswap", "train", *causal(steps=100_000), "--out", "run"]
    process = subprocess.Popen(
        [*map(str, command), "--processes", "2"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run" / METRICS
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.strip().splitlines()[-1].startswith("headswap: stopped and saved at step")
    assert "Traceback" not in told and len(saves(tmp_path / "run")) == 1
    command = [sys.executable, "-m", "headswap", "resume", "nowhere", "--processes", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 74 and done.stderr.count("\n") == 1


# What is refused


def refused(group, code, *words):
    assert set(group.wait(60)) == {code}
    (line,) = group.lines()
    for word in words:
        assert word in line


def test_batches_that_cannot_be_shared(causal, tmp_path):
    group = Group(tmp_path, 2, "train", *causal("--set=train.batch=7"), "--out", "run")
    refused(group, 2, "a batch of 7 cannot be shared evenly by 2 processes", "6 or 8")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match=r"use 4 or 8 processes, or a train.batch of 5 or 10"):
        Ranks(0, 5).check_batch(Plan(steps=1, batch=8))
    with pytest.raises(UsageError, match=r"use 8 processes, or a train.batch of 16"):
        Ranks(0, 16).check_batch(Plan(steps=1, batch=8))
    Ranks(0, 5).check_batch(Plan(steps=1, batch=8, batch_tokens=100))


def test_ranks_that_were_given_different_things(causal, tmp_path, corpus_file, monkeypatch):
    def other_version(rank):
        if rank == 1:
            monkeypatch.setattr("headswap.pipeline.__version__", "9.9")

    def other_data(rank):
        if rank == 2:
            corpus_file.with_name("away.txt").write_text("Other text.\n" * 500)
            os.chdir(tmp_path)
            monkeypatch.setattr("headswap.pipeline.files.sha256", lambda paths: "other")

    def other_settings(rank):
        if rank == 1:
            monkeypatch.setattr("headswap.settings.DEFAULT_RECIPE", "small")

    command = ("train", *causal(), "--out", "run")
    refused(Group(tmp_path, 2, *command, change=other_version), 65, "1 has other versions than")
    refused(Group(tmp_path, 3, *command, change=other_data), 65, "process 2 has other data than")
    refused(Group(tmp_path, 2, *command, change=other_settings), 65, "other settings")
    assert not (tmp_path / "run").exists()


def test_one_rank_that_fails_speaks_and_ends_all(causal, tmp_path, corpus_file):
    def hide(rank):
        if rank == 1:
            import headswap.prepare

            def missing(*arguments):
                raise storage.StorageError("no permission to read", where=corpus_file)

            headswap.prepare.shards.prepare = missing

    group = Group(tmp_path, 2, "train", *causal(), "--out", "run", change=hide)
    refused(group, 74, "no permission to read")
    assert (tmp_path / "err-0").read_text().count("headswap:") == 0


def test_an_infinite_loss_is_told_once(causal, tmp_path):
    wild = ["--lr", 1e9, "--set=train.clip=0", "--set=train.schedule=constant"]
    group = Group(tmp_path, 2, "train", *causal(*wild, "--set=train.warmup=0"), "--out", "run")
    refused(group, 65, "infinite or not a number")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_there_and_a_port_that_is_taken(causal, tmp_path):
    train(tmp_path, 2, "run", *causal(steps=2))
    refused(Group(tmp_path, 2, "train", *causal(steps=2), "--out", "run"), 2, "already there")
    other = Group(tmp_path, 2, "train", *causal(steps=3), "--out", "run", attempt=1)
    refused(other, 2, "already there")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        group = Group(tmp_path, 1, "resume", "run", port=port, change=pretend_to_be_two)
        assert group.wait(30) == [69]
        (line,) = group.lines()
        assert "in use" in line and "--master-port" in line


def pretend_to_be_two(rank):
    os.environ["WORLD_SIZE"] = "2"


def test_what_is_not_there(causal, tmp_path):
    for more, code, word in (
        (["--device", "cuda"], 69, "no CUDA GPU"),
        (["--set=train.shard=true", "--set=train.optimizer=muon"], 2, "muon needs whole matrices"),
        (["--set=model.widht=1"], 2, "did you mean"),
        (["--stpes", 3], 2, "Did you mean"),
    ):
        refused(Group(tmp_path, 2, "train", *causal(*more), "--out", "run"), code, word)


def test_a_machine_without_gpus(monkeypatch):
    from headswap.errors import ResourceError

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ResourceError, match=r"4 GPUs were asked for and there are 2; use --gpus 2"):
        several.wanted(4, None)
    with pytest.raises(UsageError, match="exclude each other"):
        several.wanted(2, 2)
    with pytest.raises(UsageError, match="at least 1"):
        several.wanted(None, 0)
    assert several.wanted(2, None) and several.wanted(None, 5)
    assert not several.wanted(None, 1) and not several.wanted(None, None)
