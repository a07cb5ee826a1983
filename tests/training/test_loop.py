from __future__ import annotations

import json
import math
import os
import signal

import pytest
import torch

from conftest import STACKS, causal_model
from headswap import api, storage
from headswap.errors import Interrupted, StorageError, UsageError
from headswap.nn.model import new_model
from headswap.objectives import Classify
from headswap.progress import Silent
from headswap.training import loop, machine, optim
from headswap.training.checkpoint import State
from headswap.training.kept import Kept
from headswap.training.plan import Plan, rate

SMALL = [
    {"model": {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "length": 24}},
    {"tokenizer": {"vocabulary": 330}},
]


def metrics(trained):
    return list(trained.run.metrics())


def test_accumulation_changes_nothing_but_rounding(corpus_file, tmp_path):
    runs = [
        api.train(
            "causal",
            corpus_file,
            out=tmp_path / f"a{parts}",
            changes=[*SMALL, {"train": {"steps": 8, "batch": 8, "accumulate": parts}}],
        )
        for parts in (1, 3)
    ]
    first, second = (run.model.tensors() for run in runs)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-5)


def test_the_best_epoch_is_kept_and_patience_stops(reviews_file, tmp_path):
    changes = [*SMALL, {"train": {"epochs": 40, "lr": 0.02, "patience": 3, "keep": "best"}}]
    trained = api.train("classify", reviews_file, out=tmp_path / "r", changes=changes)
    valid = [line for line in metrics(trained) if line["split"] == "valid"]
    best = max(valid, key=lambda line: (line["accuracy"], -line["loss"]))
    scores = trained.run.scores()
    assert scores["training"]["best_step"] == best["step"]
    assert scores["valid"]["accuracy"] == best["accuracy"]
    assert len(valid) < 41 and valid[-1]["step"] > best["step"]
    predictions = (tmp_path / "r/predictions/valid.jsonl").read_text().splitlines()
    right = [json.loads(line) for line in predictions]
    share = sum(line["label"] == line["predicted"] for line in right) / len(right)
    assert share == best["accuracy"]


@pytest.mark.parametrize(
    ("budget", "steps"), [({"steps": 5}, 5), ({"epochs": 2.0}, None), ({"tokens": 900}, 5)]
)
def test_budgets(corpus_file, tmp_path, budget, steps):
    changes = [*SMALL, {"train": {"batch": 8, **budget}}]
    trained = api.train("causal", corpus_file, out=tmp_path / "r", changes=changes)
    last = metrics(trained)[-1]
    assert last["step"] == steps if steps else last["epoch"] == 2.0


def test_a_budget_in_minutes(corpus_file, tmp_path):
    changes = [*SMALL, {"train": {"minutes": 0.02}}]
    trained = api.train("causal", corpus_file, out=tmp_path / "r", changes=changes)
    assert trained.run.scores()["training"]["steps"] > 1


def test_two_seeds_differ_and_one_seed_repeats(corpus_file, tmp_path):
    def weights(name, seed):
        changes = [*SMALL, {"train": {"steps": 3, "seed": seed}, "model": {"dropout": 0.2}}]
        trained = api.train("causal", corpus_file, out=tmp_path / name, changes=changes)
        return (trained.run.path / "model.safetensors").read_bytes()

    assert weights("a", 1) == weights("b", 1) != weights("c", 2)


def test_training_leaves_the_callers_generator_alone(corpus_file, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    changes = [*SMALL, {"train": {"steps": 2}, "model": {"dropout": 0.2}}]
    api.train("causal", corpus_file, out=tmp_path / "r", changes=changes)
    assert torch.equal(torch.rand(3), expected)


def test_continuing_a_base_keeps_its_head(corpus_file, tmp_path):
    changes = [*SMALL, {"train": {"steps": 5, "lr": 0.01}}]
    api.train("causal", corpus_file, out=tmp_path / "a", changes=changes)
    report = Silent()
    more = [{"train": {"steps": 5, "lr": 0.01}}]
    again = api.train(
        "causal", corpus_file, out=tmp_path / "b", base=tmp_path / "a", changes=more, report=report
    )
    assert any("the head included" in line for line in report.lines)
    assert metrics(again)[0]["loss"] < math.log(330) - 0.1


def test_schedules():
    cosine = Plan(steps=1, lr=2.0, warmup=0.1, schedule="cosine", final_lr=0.5)
    assert rate(cosine, 0.05) == pytest.approx(1.0)
    assert rate(cosine, 0.1) == pytest.approx(2.0)
    assert rate(cosine, 0.55) == pytest.approx(1.25)
    assert rate(cosine, 1.0) == pytest.approx(0.5)
    linear = Plan(steps=1, lr=2.0, warmup=0.0, schedule="linear")
    assert [rate(linear, x) for x in (0.0, 0.5, 1.0)] == pytest.approx([2.0, 1.0, 0.0])
    stable = Plan(steps=1, lr=2.0, warmup=0.1, decay=0.2, schedule="wsd")
    assert [rate(stable, x) for x in (0.5, 0.8, 0.9, 1.0)] == pytest.approx([2.0, 2.0, 1.0, 0.0])
    assert rate(Plan(steps=1, lr=3.0, warmup=0.0, schedule="constant"), 0.7) == 3.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 1, "epochs": 1.0},
        {"steps": 0},
        {"batch": 0},
        {"lr": 0.0},
        {"lr": math.nan},
        {"warmup": 2.0},
        {"batch": 2, "accumulate": 3},
        {"clip": -1.0},
        {"weight_decay": -5.0},
        {"freeze_layers": -1},
        {"evaluate_every": 0},
        {"betas": (0.9,)},
        {"betas": (0.9, 1.0)},
        {"layer_decay": 0.0},
        {"schedule": "inverse_sqrt", "warmup": 0.0},
        {"schedule": "wsd", "warmup": 0.5, "decay": 0.6},
    ],
)
def test_impossible_plans(wrong):
    with pytest.raises(UsageError):
        Plan(**wrong)


def test_layerwise_rates_and_decay():
    model = causal_model(STACKS["classic"], 40)
    optimizer = optim.make_optimizer(model, Plan(steps=1, layer_decay=0.5, weight_decay=0.3))
    optim.set_rate(optimizer, 1.0)
    rates, decays = {}, {}
    names = {id(p): n for n, p in model.tensors().items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            rates[names[id(parameter)]] = group["lr"]
            decays[names[id(parameter)]] = group["weight_decay"]
    assert rates["heads.token.weight"] == 1.0
    assert rates["backbone.layers.1.attention.qkv.weight"] == 0.5
    assert rates["backbone.layers.0.attention.qkv.weight"] == 0.25
    assert rates["backbone.embedding.weight"] == 0.125
    assert decays["backbone.embedding.weight"] == 0.3
    assert decays["backbone.layers.0.attention_norm.weight"] == 0.0


@pytest.mark.parametrize(
    ("plan", "learning"),
    [
        (Plan(freeze="backbone"), {"heads"}),
        (Plan(freeze="embedding"), {"heads", "layers.0", "layers.1"}),
        (Plan(freeze_layers=1), {"heads", "layers.1"}),
    ],
)
def test_frozen_parts_do_not_move(reviews_file, tmp_path, plan, learning):
    stack = STACKS["classic"]
    model = new_model(stack, 40, Classify(("a", "b")).heads(stack, 40), seed=0)
    optim.freeze(model, plan)
    parts = {
        "heads" if name.startswith("heads") else ".".join(name.split(".")[1:3])
        for name, tensor in model.tensors().items()
        if tensor.requires_grad
    }
    assert parts == learning


def test_a_probe_changes_the_head_only(corpus_file, reviews_file, tmp_path):
    base = api.train(
        "causal", corpus_file, out=tmp_path / "a", changes=[*SMALL, {"train": {"steps": 2}}]
    )
    probe = api.train(
        "classify",
        reviews_file,
        out=tmp_path / "b",
        base=tmp_path / "a",
        changes=[{"train": {"epochs": 2, "freeze": "backbone"}}],
    )
    before, after = base.model.tensors(), probe.model.tensors()
    shared = [name for name in after if name.startswith("backbone.")]
    assert all(torch.equal(before[name], after[name]) for name in shared)


def test_precision_and_device():
    cpu = torch.device("cpu")
    assert machine.pick_precision(Plan(), cpu) == (torch.float32, None)
    kind, note = machine.pick_precision(Plan(precision="bf16"), cpu)
    assert (kind == torch.bfloat16) == (note is None)
    assert machine.pick_device("cpu") == cpu


def test_a_cpu_without_fast_bf16_gets_fp32_and_a_line(monkeypatch):
    monkeypatch.setattr(machine, "_fast_bf16", lambda: False)
    kind, note = machine.pick_precision(Plan(precision="bf16"), torch.device("cpu"))
    assert kind == torch.float32 and "no fast bf16" in note


def test_of_equally_accurate_evaluations_the_lower_loss_is_kept():
    model = causal_model(STACKS["classic"], 40)
    kept, state = Kept(model, Plan(steps=9, keep="best"), every=1, total=9), State()
    for step, (accuracy, loss) in enumerate([(0.9, 0.7), (0.9, 0.5), (0.9, 0.6), (0.8, 0.1)]):
        state.step = step
        kept.remember(state, accuracy, False, loss)
    assert (state.best_step, state.best_value, state.best_loss) == (1, 0.9, 0.5)
    assert state.stale == 2


def test_what_an_objective_cannot_give_is_refused_before_the_data_is_read(corpus_file, tmp_path):
    for change, said in (
        ({"train": {"steps": 1, "select": "accuracy"}}, "no accuracy to select by"),
        ({"train": {"steps": 1, "batch_tokens": 100}}, "a translator's"),
    ):
        with pytest.raises(UsageError, match=said):
            api.train("causal", corpus_file, out=tmp_path / "no", changes=[*SMALL, change])
    alone = [{"train": {"steps": 1, "batch": 4, "accumulate": 4}}, "masked.next_sentence=true"]
    with pytest.raises(UsageError, match="same part of a batch"):
        api.train("masked", corpus_file, out=tmp_path / "no", changes=[*SMALL, *alone])
    assert not (tmp_path / "no").exists()


def test_an_average_that_looks_back_too_far_is_told(corpus_file, tmp_path):
    class Loud(Silent):
        def warn(self, text):
            said.append(text)

    said = []
    plan = {"train": {"steps": 2, "ema": 0.999}}
    out = tmp_path / "r"
    api.train("causal", corpus_file, out=out, changes=[*SMALL, plan], report=Loud())
    assert any("near the first weights" in line for line in said)


def test_an_interrupted_run_that_keeps_its_last_weights_ends_with_the_same_files(
    reviews_file, tmp_path, monkeypatch
):
    """Interrupted at its best step, whose weights are then the checkpoint's own."""
    plan = {"steps": 8, "evaluate_every": 2, "keep": "last", "lr": 0.01}
    changes = [*SMALL, {"train": plan}]
    whole = api.train("classify", reviews_file, out=tmp_path / "a", changes=changes)
    step = loop._Training._step

    def stopping(self, feed):
        step(self, feed)
        self.state.best_step, self.state.best_value = self.state.step + 1, 2.0
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop._Training, "_step", stopping)
    with pytest.raises(Interrupted):
        api.train("classify", reviews_file, out=tmp_path / "b", changes=changes)
    monkeypatch.setattr(loop._Training, "_step", step)
    again = api.resume(tmp_path / "b")
    found = [
        sorted(path.relative_to(run.run.path) for path in run.run.path.rglob("checkpoints/*/*"))
        for run in (whole, again)
    ]
    assert found[0] == found[1]


def test_a_run_that_is_being_trained_is_not_resumed(reviews_file, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "WAIT_S", 0.0)
    step = loop._Training._step

    def resuming(self, feed):
        with pytest.raises(StorageError, match="another process is working on it"):
            api.resume(tmp_path / "a")
        step(self, feed)

    monkeypatch.setattr(loop._Training, "_step", resuming)
    changes = [*SMALL, {"train": {"steps": 1}}]
    made = api.train("classify", reviews_file, out=tmp_path / "a", changes=changes)
    assert made.run.finished


def test_a_run_that_was_deleted_meanwhile_is_no_success(corpus_file, tmp_path, monkeypatch):
    step = loop._Training._step

    def deleting(self, feed):
        step(self, feed)
        if self.state.step == 1:
            for path in sorted(self.run.path.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()

    monkeypatch.setattr(loop._Training, "_step", deleting)
    plan = {"train": {"steps": 3, "save_minutes": 0.0}}
    with pytest.raises(StorageError, match="moved or deleted while it was trained"):
        api.train("causal", corpus_file, out=tmp_path / "a", changes=[*SMALL, plan])
