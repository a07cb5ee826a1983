"""An experiment made one command at a time, as another scheduler would."""

from __future__ import annotations

import dataclasses
import shlex
import shutil

import pytest

from experiment.small import QUICK, design, files
from headswap import cli
from headswap.errors import UsageError
from headswap.experiment import conduct, findings, remaining
from headswap.experiment.design import Folder
from headswap.progress import Silent
from headswap.run import Run

RESULTS = ("model.safetensors", "metrics.jsonl", "scores.json", "predictions/test.jsonl")


@pytest.fixture
def headswap(capfd):
    def run(*arguments):
        capfd.readouterr()
        code = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
        found = capfd.readouterr()
        return code, found.out.splitlines(), found.err

    return run


def transfer(paths, out):
    given = ["transfer", paths["table"], "--test", paths["test"], "--text", paths["text"]]
    given += ["--out", out, "--workers", 1, "--seeds", 2, "--labels", 20, "--no-probe"]
    given += ["--pretraining-minutes", 0.01, "--set", "train.epochs=2", "--device", "cpu"]
    given += ["--objectives", "causal"]
    for change in QUICK["base_changes"]:
        given += ["--set-base", change]
    return given


def test_the_commands_make_the_experiment(headswap, tmp_path):
    out = tmp_path / "out"
    code, lines, err = headswap(*transfer(files(tmp_path), out), "--list")
    assert code == 0, err
    stages = []
    while lines:
        stages.append(len(lines))
        assert len(stages) < 9
        before = list(lines)
        for line in lines:
            words = shlex.split(line)
            assert words[:3] == ["headswap", "resume", str(out)]
            code, told, err = headswap(*words[1:])
            assert code == 0 and len(told) == 1, err
        if "--run" in before[0]:  # each is idempotent
            name = before[0].split()[-1]
            stamp = (out / name / "manifest.json").stat().st_mtime_ns
            assert headswap(*shlex.split(before[0])[1:])[0] == 0
            assert (out / name / "manifest.json").stat().st_mtime_ns == stamp
        code, lines, err = headswap("resume", out, "--list")
        assert code == 0, err
    assert stages[0] == 1 and stages[-1] == 1 and (out / "report.html").exists()
    # A run that the experiment makes itself has the same bytes.
    shop = conduct.workshop(Folder(out))
    rates = findings.chosen_rates(shop.folder, shop.plan)
    path = shop.path(shop.plan.final(rates)[-1])
    kept = [(path / name).read_bytes() for name in RESULTS]
    shutil.rmtree(path)
    conduct.conduct(Folder(out), Silent())
    assert kept == [(path / name).read_bytes() for name in RESULTS]


def test_names_with_spaces_can_be_pasted(tmp_path):
    paths = files(tmp_path)
    shop = conduct.workshop(conduct.begin(design(paths, seeds=1), tmp_path / "out", Silent()))
    bases = tuple(dataclasses.replace(base, name="my base") for base in shop.plan.bases)
    named = dataclasses.replace(shop, plan=dataclasses.replace(shop.plan, bases=bases))
    (line,) = remaining.commands(named)
    assert shlex.split(line)[-1] == "bases/my base"


def test_nothing_is_made_out_of_turn(headswap, tmp_path):
    paths = files(tmp_path)
    wanted = design(paths, objectives=("causal", "masked"), labels=(20,), seeds=1)
    folder = conduct.begin(wanted, tmp_path / "out", Silent())
    shop = conduct.workshop(folder)
    assert not list(folder.path.glob("runs/*")) and not list(folder.path.glob("bases/*"))
    assert remaining.stage(shop).names == ("bases/causal",)
    with pytest.raises(UsageError, match="begins from bases/causal"):
        remaining.make(shop, "bases/masked", Silent())
    neural = remaining._name(shop, shop.plan.trials()[-1])
    with pytest.raises(UsageError, match="begins from bases/"):
        remaining.make(shop, neural, Silent())
    name = remaining._name(shop, shop.plan.final({})[0])
    assert name == "runs/linear-20-seed-0"
    (folder.path / name).mkdir(parents=True)  # as a worker leaves it that is killed at once
    (folder.path / name / "provenance.json").touch()
    remaining.make(shop, name, Silent())
    assert Run(folder.path / name).finished
    (folder.path / "bases/causal").mkdir(parents=True)
    (folder.path / "bases/causal/provenance.json").touch()
    remaining.make(shop, "bases/causal", Silent())
    remaining.make(shop, "bases/masked", Silent())
    (folder.path / neural).mkdir(parents=True)
    (folder.path / neural / "provenance.json").touch()
    remaining.make(shop, neural, Silent())
    assert Run(folder.path / neural).finished
    with pytest.raises(UsageError, match="did you mean 'runs/linear-20-seed-0'"):
        remaining.make(shop, "runs/linear-20-seed-9", Silent())
    assert headswap("resume", folder.path, "--run", "nonsense")[0] == 2


def test_what_goes_with_experiments_alone(headswap, tmp_path):
    code, _, err = headswap("resume", "english-small", "--list")
    assert code == 2 and "go with an experiment" in err
    (tmp_path / "experiment.toml").write_text("table = ['x']\n")
    code, _, err = headswap("resume", tmp_path, "--list")
    assert code == 2 and "stopped before it was planned" in err
