"""Damaged and hostile checkpoints: found, refused, never executed."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conftest import STACKS, causal_model
from headswap import api, storage
from headswap.errors import DataError
from headswap.training import checkpoint, optim
from headswap.training.plan import Plan

SMALL = [
    {"model": {"width": 16, "layers": 1, "heads": 2, "feedforward": 32, "length": 24}},
    {"tokenizer": {"vocabulary": 330}, "train": {"steps": 2}},
]


@pytest.fixture
def saved(tmp_path):
    model = causal_model(STACKS["classic"], 20)
    optimizer = optim.make_optimizer(model, Plan(steps=1))
    return checkpoint.save(tmp_path / "checkpoints", model, optimizer, checkpoint.State(step=7))


@pytest.fixture
def run(corpus_file, tmp_path):
    return api.train("causal", corpus_file, out=tmp_path / "run", changes=SMALL).run


def reseal(run):
    """What an attacker would do: make the manifest fit the damage."""
    (run.path / storage.MANIFEST).unlink()
    run.finish()


def test_a_thousand_random_damages_are_all_detected(saved):
    draw = random.Random(0)
    files = sorted(saved.iterdir())
    whole = {path: path.read_bytes() for path in files}
    for _ in range(1000):
        path = draw.choice(files)
        content = bytearray(whole[path])
        kind = draw.choice(["flip", "cut", "insert", "swap", "zero"])
        place = draw.randrange(len(content))
        if kind == "flip":
            content[place] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            content = content[:place]
        elif kind == "insert":
            content[place:place] = bytes([draw.randrange(256)])
        elif kind == "swap":
            content[place] = (content[place] + 1) % 256
        else:
            content = bytearray(len(content))
        if bytes(content) == whole[path]:
            continue
        path.write_bytes(content)
        assert storage.problem(saved) is not None, (path.name, kind, place)
        path.write_bytes(whole[path])
    assert storage.problem(saved) is None
    warnings = []
    assert checkpoint.latest(saved.parent, warnings.append) == saved and not warnings


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


@pytest.mark.parametrize("what", ["pickle", "zip", "huge header", "junk", "empty"])
def test_what_is_no_safetensors_is_refused_and_never_run(run, what, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = run.path / "model.safetensors"
    if what == "pickle":
        path.write_bytes(pickle.dumps(Bomb()))
    elif what == "zip":
        torch.save({"x": Bomb()}, path)
    elif what == "huge header":
        path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    else:
        path.write_bytes(b"junk" * 100 if what == "junk" else b"")
    reseal(run)
    with pytest.raises(DataError, match="not a readable safetensors file"):
        api.load(run.path)
    assert not Path("exploded").exists()


def test_wrong_shapes_and_names_are_refused_before_memory_is_taken(run):
    path = run.path / "model.safetensors"
    tensors = checkpoint.read_tensors(path)
    wide = {**tensors, "backbone.embedding.weight": torch.zeros(3, 3)}
    save_file(wide, path)
    reseal(run)
    with pytest.raises(DataError, match=r"has the shape \[3, 3\], not \[330, 16\]"):
        api.load(run.path)
    save_file({**tensors, "heads.evil.weight": torch.zeros(2)}, path)
    reseal(run)
    with pytest.raises(DataError, match=r"unknown tensors: heads\.evil\.weight"):
        api.load(run.path)
    save_file(tensors, path)
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("width = 16", "width = 1600000"))
    reseal(run)
    with pytest.raises(DataError, match=r"not \[330, 1600000"):
        api.load(run.path)


def test_links_and_paths_that_lead_outside_are_refused(run, tmp_path):
    path = run.path / "model.safetensors"
    elsewhere = tmp_path / "elsewhere.safetensors"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    reseal(run)
    with pytest.raises(DataError, match="symbolic link"):
        api.load(run.path)
    path.unlink()
    elsewhere.rename(path)
    manifest = run.path / storage.MANIFEST
    entries = json.loads(manifest.read_text())["files"]
    entries["../../secret"] = entries["scores.json"]
    manifest.write_text(storage._render(entries))
    with pytest.raises(DataError, match="outside the folder"):
        api.load(run.path)


@pytest.mark.parametrize("name", ["config.toml", "scores.json", "tokenizer/tokenizer.json"])
def test_hostile_text_files_are_refused_in_one_line(run, name):
    (run.path / name).write_bytes(b"\xff\x00[" * 50)
    reseal(run)
    for use in (lambda: api.load(run.path), lambda: api.load(run.path).run.scores()):
        try:
            use()
        except Exception as error:
            assert "damaged" in str(error) or "not valid TOML" in str(error)


def test_a_checkpoint_of_something_else_is_refused(saved):
    model = causal_model(STACKS["classic"], 20)
    optimizer = optim.make_optimizer(model, Plan(steps=1))
    whole = (saved / checkpoint.STATE).read_text()
    for content in ("[]", '{"nothing": 1}', "{", '{"step": 1, "extra": 2}'):
        (saved / checkpoint.STATE).write_text(content)
        with pytest.raises(DataError, match="not the state of a training"):
            checkpoint.restore(saved, model, optimizer)
    (saved / checkpoint.STATE).write_text(whole)
    save_file({"heads.evil/exp_avg": torch.zeros(2)}, saved / checkpoint.OPTIMIZER)
    with pytest.raises(DataError, match="belongs to no parameter"):
        checkpoint.restore(saved, model, optimizer)
    (saved.parent / "step-strange").mkdir()
    assert checkpoint.latest(saved.parent, lambda line: None) is None
