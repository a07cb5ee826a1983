"""An experiment used as one classifier says what its report says of its vote."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import headswap as product
from headswap import cli
from headswap.errors import DataError, StorageError
from headswap.experiment import verdict
from headswap.experiment.design import Folder
from headswap.experiment.voters import Voters, chosen
from headswap.run import Run


@pytest.fixture
def copied(experiment, tmp_path):
    """The experiment, to be changed."""
    return shutil.copytree(experiment[0], tmp_path / "copied")


def vote_for(path, name, share):
    """Let validation prefer this vote."""
    report = json.loads((path / "report.json").read_text())
    for row in report["votes"]:
        row["valid_accuracy"] = float(row["name"] == name and row["linear_share"] is not None)
        row["linear_share"] = share if row["valid_accuracy"] else row["linear_share"]
    (path / "report.json").write_text(json.dumps(report))
    return report


def test_it_scores_what_the_report_says(experiment):
    path, _ = experiment
    report = json.loads((path / "report.json").read_text())
    model = product.load(path)
    assert isinstance(model, Voters) and model.labels == tuple(report["labels"])
    best = max(row["valid_accuracy"] for row in report["votes"])
    assert model.chosen["valid_accuracy"] == best
    found = model.evaluate([Folder(path).data("test")])
    assert found["accuracy"] == pytest.approx(model.chosen["accuracy"])


def test_seeds_count_alike_and_the_linear_model_its_share(copied):
    report = vote_for(copied, "masked", 0.25)
    lines = Folder(copied).data("test").read_text("utf-8").splitlines()[:20]
    texts = [json.loads(line)["text"] for line in lines]
    mixed = [list(one.probabilities.values()) for one in product.load(copied).predict(texts)]
    rows = {row["name"]: row for row in report["arms"] if row["labels"] == report["main"]}

    def mean(name):
        each = [product.load(copied / run).predict(texts) for run in rows[name]["runs"]]
        return np.mean([[list(p.probabilities.values()) for p in one] for one in each], axis=0)

    assert len(rows["masked"]["runs"]) == 2
    wanted = 0.75 * mean("masked") + 0.25 * mean("linear")
    np.testing.assert_allclose(mixed, wanted, atol=1e-6)


def test_fewer_models_where_validation_cannot_tell():
    alone, mixed = ({"valid_accuracy": 0.9, "linear_share": share} for share in (None, 0.3))
    assert chosen({"votes": [mixed, alone]}) is alone
    assert chosen({"votes": [], "best": {"arm": "masked"}})["name"] == "masked"


def test_commands(experiment, capfd):
    given = [str(experiment[0]), "--text", "What a book!"]
    with pytest.raises(SystemExit, match="0"):
        cli.main(["predict", *given])
    out = capfd.readouterr().out.splitlines()[-1]
    assert set(json.loads(out)) == {"row", "label", "probabilities"}
    with pytest.raises(SystemExit, match="2"):
        cli.main(["generate", given[0], "What a book!"])
    assert "an experiment cannot generate" in capfd.readouterr().err


def test_what_is_unfinished_or_damaged_is_refused(copied):
    report = copied / "report.json"
    report.write_text('{"labels": []}')
    with pytest.raises(DataError, match="damaged"):
        product.load(copied)
    report.unlink()
    with pytest.raises(StorageError, match="not finished"):
        product.load(copied)
    assert Run(copied / "best").finished


def test_a_report_of_what_is_unfinished_says_how_to_go_on(copied):
    def refused():
        with pytest.raises(StorageError, match="not finished") as error:
            verdict.write(copied)
        assert f"headswap resume {copied}" in str(error.value)

    tested = next(copied.glob("runs/*/tested.json"))
    tested.rename(copied / "kept")  # trained, and killed before the test
    refused()
    (copied / "kept").rename(tested)
    assert verdict.write(copied)["verdict"]
    shutil.rmtree(next(copied.glob("runs/scratch-*")))
    refused()
