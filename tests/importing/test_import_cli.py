"""``--from hf:FOLDER`` through the command line and through a whole small experiment."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from conftest import review_rows, write_jsonl
from headswap import cli
from headswap.api import read_report
from headswap.experiment import conduct
from headswap.experiment.design import Design, Folder
from headswap.progress import Silent

pytest.importorskip("transformers")
from importing import foreign

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def headswap(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["headswap"])

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
            sys.exit(0)
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run


def test_from_a_folder_to_predictions(headswap, tmp_path, reviews_file):
    foreign.save("roberta", tmp_path / "model")
    train = ("train", "classify", reviews_file, "--from", "hf:model", "--out", "clf")
    code, out, err = headswap(*train, "--epochs", 1, "--set", "model.length=30")
    assert code == 0 and out == "clf\n", err
    assert "model: RoBERTa, 2 layers of width 32" in err and "carried over 28 tensors" in err
    code, out, _ = headswap("predict", "clf", "--text", "superb lovely charming book")
    assert code == 0 and json.loads(out)["label"] in ("good", "bad")
    code, out, _ = headswap("evaluate", "clf", reviews_file)
    assert code == 0 and "accuracy" in out
    code, out, err = headswap("resume", "clf")
    assert code == 0 and "finished already" in err
    code, out, _ = headswap("inspect", "clf")
    assert code == 0 and "position_embedding" in out
    code, _, err = headswap("train", "classify", reviews_file, "--from", "hf:none", "--out", "n")
    assert code == 74 and err.endswith("no such folder; name a local folder: hf:FOLDER\n")
    assert not (tmp_path / "n").exists()
    command = ("train", "classify", reviews_file, "--from", "hf:model", "--out", "n")
    code, _, err = headswap(*command, "--tokenizer", "clf/tokenizer", "--dry-run")
    assert code == 0, err


def test_the_help_says_so(headswap):
    for command in ("train", "transfer"):
        code, out, _ = headswap(command, "--help")
        assert code == 0 and "hf:FOLDER" in out


def test_an_import_is_an_arm_of_an_experiment(tmp_path):
    table = write_jsonl(tmp_path / "table.jsonl", review_rows(80))
    test = write_jsonl(tmp_path / "test.jsonl", review_rows(30, 9))
    folder, _ = foreign.save("bert", tmp_path / "bert")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    design = Design(
        table=(str(table),), test=(str(test),), bases=(f"hf:{folder}",), labels=(40,), seeds=1,
        minutes=1.0, probe=False, changes=("train.epochs=1",), workers=1, device="cpu",
    )  # fmt: skip
    report = Silent()
    conduct.start(design, tmp_path / "experiment", report)
    found = read_report(tmp_path / "experiment")
    assert {row["name"] for row in found["arms"]} == {"linear", "scratch", "pretrained"}
    assert found["cost"]["bases"][0]["imported"] == {"family": "BERT", "licence": "mit"}
    page = (tmp_path / "experiment/report.html").read_text("utf-8")
    assert "BERT, a model from elsewhere (licence: mit" in page
    shutil.rmtree(tmp_path / "cache")
    conduct.conduct(Folder(tmp_path / "experiment"), report)
    assert list((tmp_path / "cache/imports").glob("*/bert/config.toml"))
    plan = json.loads((tmp_path / "experiment/plan.json").read_text())
    assert [base["rate"] for base in plan["bases"]] == [3e-4]
