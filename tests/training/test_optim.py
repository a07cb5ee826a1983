from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from conftest import STACKS, causal_model
from headswap import api
from headswap.errors import ResourceError
from headswap.progress import Silent
from headswap.training import machine, optim
from headswap.training.adamw import AdamW
from headswap.training.muon import Muon, orthogonal
from headswap.training.plan import Plan, doubts

SMALL = [
    {"model": {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "length": 24}},
    {"tokenizer": {"vocabulary": 330}},
]


def test_newton_schulz_brings_singular_values_near_one():
    matrices = torch.randn(5, 12, 30, generator=torch.Generator().manual_seed(0))
    for some in (matrices, matrices.mT.contiguous()):
        values = torch.linalg.svdvals(orthogonal(some))
        assert values.min() > 0.6 and values.max() < 1.3
    alone = torch.stack([orthogonal(matrix[None])[0] for matrix in matrices])
    torch.testing.assert_close(orthogonal(matrices), alone, rtol=1e-4, atol=1e-5)


def test_muon_takes_the_matrices_of_layers_and_adamw_the_rest():
    model = causal_model(STACKS["modern"], 40)
    optimizer = optim.make_optimizer(model, Plan(steps=1, optimizer="muon"))
    assert isinstance(optimizer, Muon)
    names = {id(p): n for n, p in model.tensors().items()}
    parts = {names[id(p)]: g["parts"] for g in optimizer.param_groups for p in g["params"]}
    assert parts["backbone.layers.0.attention.qkv.weight"] == 3
    assert parts["backbone.layers.0.feedforward.up.weight"] == 2
    assert parts["backbone.layers.0.feedforward.down.weight"] == 1
    assert parts["backbone.embedding.weight"] == parts["heads.token.weight"] == 0
    assert parts["backbone.final_norm.weight"] == 0


def test_muons_other_half_is_adamw():
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(7)) for _ in range(2))
    muon = Muon([{"params": [ours], "parts": 0}], 0.1, (0.9, 0.95), 1e-8, 0.1)
    adamw = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    for _ in range(4):
        gradient = torch.randn(7)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        muon.step()
        adamw.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "muon", "lr": 0.01},
        {"ema": 0.8},
        {"ema": 0.8, "keep": "best"},
        {"average_last": 2},
        {"average_last": 2, "keep": "best"},
        {"unfreeze": 0.2},
        {"optimizer": "muon", "ema": 0.9, "accumulate": 2},
    ],
    ids=str,
)
def test_resumed_equals_uninterrupted(corpus_file, tmp_path, changes):
    """Stop after a few steps by a budget, go on with the larger one: the same bytes."""
    often = {"save_minutes": 0.0, "evaluate_every": 4}
    plan = {"train": {"steps": 12, "batch": 8, **often, **changes}}
    whole = api.train("causal", corpus_file, out=tmp_path / "a", changes=[*SMALL, plan])
    part = api.train("causal", corpus_file, out=tmp_path / "b", changes=[*SMALL, plan])
    folder = part.run.path
    (folder / "manifest.json").unlink()
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    for path in newest.iterdir():
        path.write_bytes(b"")
    api.resume(folder)
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (whole.run.path / name).read_bytes()


def test_it_learns_with_muon_and_with_an_average(corpus_file, tmp_path):
    def last_loss(name, **changes):
        plan = {"train": {"steps": 40, "batch": 8, "lr": 0.01, **changes}}
        trained = api.train("causal", corpus_file, out=tmp_path / name, changes=[*SMALL, plan])
        return trained.run.scores()["valid"]["loss"]

    start = 5.8
    assert last_loss("a", optimizer="muon") < start - 1.5
    assert last_loss("b", ema=0.9) < start - 1.0


def test_the_last_states_are_averaged(corpus_file, tmp_path):
    plan = {"steps": 12, "batch": 8, "evaluate_every": 4, "save_minutes": 0.0}
    runs = {}
    for name, more in (("plain", {}), ("average", {"average_last": 2})):
        for steps in (8, 12) if name == "plain" else (12,):
            changes = [*SMALL, {"train": {**plan, **more, "schedule": "constant", "steps": steps}}]
            changes[-1]["train"]["warmup"] = 0.0
            made = api.train(
                "causal", corpus_file, out=tmp_path / f"{name}{steps}", changes=changes
            )
            runs[name, steps] = made.model.tensors()
    for key, tensor in runs["average", 12].items():
        mean = (runs["plain", 8][key] + runs["plain", 12][key]) / 2
        torch.testing.assert_close(tensor, mean, rtol=1e-4, atol=1e-6)


def test_a_budget_in_minutes_has_no_last_states(corpus_file, tmp_path):
    changes = [*SMALL, {"train": {"minutes": 0.02, "average_last": 3, "evaluate_every": 2}}]
    made = api.train("causal", corpus_file, out=tmp_path / "run", changes=changes)
    losses = [line["loss"] for line in made.run.metrics() if line["split"] == "valid"]
    assert made.run.scores()["valid"]["loss"] == losses[-1] < losses[0]


def test_the_average_is_a_moving_average():
    model = causal_model(STACKS["modern"], 40)
    average = optim.Average(model)
    weight = model.backbone.embedding.weight
    first = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    average.update(0.25)
    torch.testing.assert_close(average.tensors["backbone.embedding.weight"], first + 0.25)
    average.swap()
    torch.testing.assert_close(weight.detach(), first + 0.25)
    average.swap()
    torch.testing.assert_close(weight.detach(), first + 1.0)


def test_layers_thaw_from_the_top():
    model = causal_model(STACKS["classic"], 40)
    plan = Plan(steps=1, unfreeze=1.0)

    def learning(epoch):
        optim.freeze(model, plan, epoch)
        return {
            name.removeprefix("backbone.").split(".attention")[0].split(".feed")[0]
            for name, tensor in model.tensors().items()
            if tensor.requires_grad and name.startswith("backbone")
        }

    assert learning(0.5) == set()
    assert learning(1.0) == {"layers.1"}
    assert learning(2.0) == {"layers.0", "layers.1"}
    assert "embedding.weight" in learning(3.0)


def test_a_layer_thaws_at_its_very_step():
    """Not one later, because 0.3 / 0.1 is a little less than 3."""
    model = causal_model(replace(STACKS["classic"], layers=6), 40)
    plan = Plan(steps=1, unfreeze=0.1)
    for step in range(1, 7):
        optim.freeze(model, plan, step / 10)
        learn = {
            name.split(".")[2]
            for name, tensor in model.tensors().items()
            if ".layers." in name and tensor.requires_grad
        }
        assert len(learn) == step


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    with pytest.raises(ResourceError, match="end at cuda:1"):
        machine.pick_device("cuda:2")
    assert machine.pick_device("cuda:1") == chosen[0] == torch.device("cuda", 1)


def test_an_early_end_averages_nothing_and_is_told_before():
    told = list(doubts(Plan(steps=100, average_last=4, patience=2), 100))
    assert len(told) == 1 and "patience" in told[0]


def test_a_compiler_that_fails_costs_one_line(corpus_file, tmp_path, monkeypatch):
    def broken(self, *arguments, **options):
        def fail(*inner, **more):
            raise RuntimeError("no compiler here")

        self._compiled_call_impl = fail

    monkeypatch.setattr(torch.nn.Module, "compile", broken)
    report = Silent()
    plan = {"train": {"steps": 2, "compile": True}}
    api.train("causal", corpus_file, out=tmp_path / "r", changes=[*SMALL, plan], report=report)
    assert any("torch.compile failed (no compiler here)" in line for line in report.lines)


def test_tensorboard_writes_beside_the_run(corpus_file, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    plan = {"train": {"steps": 2, "tensorboard": True}}
    trained = api.train("causal", corpus_file, out=tmp_path / "r", changes=[*SMALL, plan])
    assert list((trained.run.path / "tensorboard").glob("events*"))
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ResourceError, match=r"headswap\[track\]"):
        api.train("causal", corpus_file, out=tmp_path / "s", changes=[*SMALL, plan])


def test_peak_memory_is_a_number():
    assert machine.peak_memory(torch.device("cpu")) > 10**6


def test_training_does_not_load_the_compiler(tmp_path):
    """It takes as long to load as torch itself, and every training begins with it."""
    text = tmp_path / "text.txt"
    text.write_text("one two three four five\n" * 200)
    code = "import atexit, sys; from headswap.cli import main; sys.argv[1:] = sys.argv[1].split(); "
    code += "atexit.register(lambda: print('torch._dynamo' in sys.modules)); main()"
    for optimizer in ("adamw", "muon"):
        words = f"train causal {text} --recipe tiny --steps 1 --device cpu --out {tmp_path}/"
        words += f"{optimizer} --set train.optimizer={optimizer} --set tokenizer.vocabulary=300"
        command = [sys.executable, "-c", code, words]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        assert told.stdout.split()[-1] == "False"


def test_adamw_is_torch_s():
    """Its step, its checkpoints and its groups, of which only the wrapping is left out."""
    weights = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    found = []
    for kind in (torch.optim.AdamW, AdamW):
        parameter = torch.nn.Parameter(weights.clone())
        optimizer = kind([{"params": [parameter], "weight_decay": 0.5}], lr=0.1, fused=True)
        for _ in range(3):
            (parameter**2).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            assert parameter.grad is None
        again = kind([{"params": [parameter]}], lr=1.0, fused=True)
        again.load_state_dict(optimizer.state_dict())
        assert again.param_groups[0]["weight_decay"] == 0.5
        found.append((parameter.detach(), again.state[parameter]["exp_avg"]))
    (torch_s, its_mean), (ours, our_mean) = found
    assert torch.equal(torch_s, ours) and torch.equal(its_mean, our_mean)
    assert not torch.equal(ours, weights)
