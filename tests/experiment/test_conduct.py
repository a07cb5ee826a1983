"""A whole small experiment: its arms, its report, its end after a kill, its refusals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import review_rows, write_jsonl
from experiment.small import QUICK, SHAPE, design, files
from headswap import api, linear, storage, use
from headswap.errors import DataError, StorageError, UsageError
from headswap.experiment import conduct, findings, verdict
from headswap.experiment.design import Design, Folder
from headswap.progress import Silent
from headswap.report import compare
from headswap.run import Run


def test_all_arms_are_there_and_paired(experiment):
    path, report = experiment
    found = json.loads((path / "report.json").read_text())
    names = {row["name"] for row in found["arms"]}
    assert names == {
        "linear", "scratch-causal", "scratch-masked", "causal", "masked", "probe-causal",
        "probe-masked",
    }  # fmt: skip
    pairs = {(row["to"], row["from"]) for row in found["differences"]}
    assert ("causal", "scratch-causal") in pairs and ("masked", "scratch-masked") in pairs
    assert found["leaked_test_texts"] >= 1
    assert any(line.startswith("plan: ") for line in report.lines)
    for row in found["arms"]:
        assert len(row["accuracy_by_seed"]) == 2
        assert (row["labels"] == 120) <= (row["kind"] in ("linear", "scratch"))
        total = np.sum(row["confusion"])
        assert total == 2 * found["test_texts"]
        assert np.trace(row["confusion"]) / total == pytest.approx(row["accuracy"])


def test_scratch_differs_from_pretrained_in_its_first_weights_alone(experiment):
    path, _ = experiment
    found = json.loads((path / "report.json").read_text())
    runs = {row["name"]: Run(path / row["runs"][0]) for row in found["arms"] if row["labels"] == 20}
    one, two = runs["scratch-causal"].settings(), runs["causal"].settings()
    assert one["model"] == two["model"] and one["classify"] == two["classify"]
    assert one["data"]["train"] == two["data"]["train"] and "base" not in one["data"]
    for key in set(one["train"]) - {"lr"}:
        assert one["train"][key] == two["train"][key], key
    tokens = [
        (run.path / "tokenizer/sentencepiece.model").read_bytes()
        for run in runs.values()
        if (run.path / "tokenizer").exists()
    ]
    assert len(set(tokens)) == 1


def test_the_test_set_is_touched_only_by_runs_that_count(experiment):
    path, _ = experiment
    found = json.loads((path / "report.json").read_text())
    counted = {run for row in found["arms"] for run in row["runs"]}
    for run in (path / "runs").iterdir():
        assert (run / "predictions/test.jsonl").exists() == (f"runs/{run.name}" in counted)


def test_every_run_predicts_and_is_compared(experiment):
    path, _ = experiment
    found = json.loads((path / "report.json").read_text())
    for name in ("linear", "masked"):
        row = next(r for r in found["arms"] if (r["name"], r["labels"]) == (name, 60))
        model = use.load(Run.open(path / row["runs"][0]), "cpu")
        said = list(model.predict(["a wonderful story", "a dreadful story"]))
        assert {p.label for p in said} <= {"good", "bad"}
        again = model.evaluate([path / "data/test.jsonl"])
        assert again["accuracy"] == pytest.approx(row["accuracy_by_seed"][0])
    best = api.load(path / "best", device="cpu")
    assert list(best.predict(["a lovely book"]))
    assert (path / "best/README.md").read_text().startswith("# ")


def test_the_report_is_computed_anew_without_torch(experiment):
    path, _ = experiment
    before = (path / "report.json").read_bytes(), (path / "report.html").read_bytes()
    code = (
        "import sys\nfrom pathlib import Path\nfrom headswap.experiment import verdict\n"
        f"verdict.write(Path({str(path)!r}))\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert before == ((path / "report.json").read_bytes(), (path / "report.html").read_bytes())


def test_going_on_with_a_finished_experiment_changes_nothing(experiment):
    path, _ = experiment
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*.safetensors")}
    page = (path / "report.html").read_bytes()
    conduct.conduct(Folder.open(path), Silent())
    assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*.safetensors")}
    assert page == (path / "report.html").read_bytes()


def test_without_the_chart_library_everything_but_the_charts_is_made(experiment, monkeypatch):
    path, _ = experiment
    page = (path / "report.html").read_text("utf-8")
    report = Silent()
    with monkeypatch.context() as lacking:
        lacking.setitem(sys.modules, "vl_convert", None)
        for name in ("report.html", "report.json", "card.md"):
            (path / name).unlink()
        conduct.conduct(Folder.open(path), report)
        bare = (path / "report.html").read_text("utf-8")
    assert [line for line in report.lines if "vl-convert-python" in line] == [
        f"the charts were not drawn: pip install vl-convert-python, then: headswap report {path}"
    ]
    assert "<svg" not in bare and "The charts were not drawn" in bare
    assert bare.count("<details open>") == page.count("<details>")
    verdict.write(path)
    assert page == (path / "report.html").read_text("utf-8")


def test_a_lost_run_is_made_again_to_the_same_bytes(experiment, tmp_path):
    path, _ = experiment
    found = json.loads((path / "report.json").read_text())
    row = next(r for r in found["arms"] if (r["name"], r["labels"]) == ("masked", 20))
    run = path / row["runs"][1]
    results = ("model.safetensors", "metrics.jsonl", "predictions/test.jsonl", "scores.json")
    kept = {name: (run / name).read_bytes() for name in results}
    shutil.rmtree(run)
    conduct.conduct(Folder.open(path), Silent())
    assert kept == {name: (run / name).read_bytes() for name in results}


def test_a_damaged_run_is_mended_and_tested_again(experiment):
    path, _ = experiment
    found = json.loads((path / "report.json").read_text())
    row = next(r for r in found["arms"] if (r["name"], r["labels"]) == ("masked", 20))
    run = path / row["runs"][0]
    results = ("model.safetensors", "predictions/test.jsonl", "tested.json")
    kept = {name: (run / name).read_bytes() for name in results}
    weights = kept["model.safetensors"]
    (run / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    conduct.conduct(Folder.open(path), Silent())
    assert kept == {name: (run / name).read_bytes() for name in results}


def test_few_labels_of_many_classes_early_stops_and_test_texts_in_related_ones(tmp_path):
    paths = files(tmp_path)
    words = [f"word{number}" for number in range(12)]
    rows = [
        {"text": f"{words[i % 12]} and {words[i % 12]} of {i}", "label": f"c{i % 12}"}
        for i in range(180)
    ]
    table = write_jsonl(tmp_path / "many.jsonl", rows)
    unseen = [{**row, "text": row["text"] + " more"} for row in rows[:24]]
    test = write_jsonl(tmp_path / "unseen.jsonl", unseen)
    related = write_jsonl(tmp_path / "related.jsonl", [*unseen[:10], *rows[24:60]])
    wanted = design(
        paths, table=(str(table),), test=(str(test),), via=(str(related),), labels=(10, 60),
        objectives=("masked",), probe=False,
        changes=("train.epochs=6", "train.patience=1", "train.evaluate_every=3"),
    )  # fmt: skip
    folder = conduct.start(wanted, tmp_path / "out", Silent())
    found = findings.compute(folder.path)
    assert len(found["labels"]) == 12 and found["leaked_test_texts"] == 10
    assert any("via texts that also stand in test" in f["what"] for f in found["check"]["findings"])
    for row in found["epochs"]:
        epochs = [band["epoch"] for band in row["valid"]]
        assert epochs == sorted(set(epochs)) and epochs[0] == 0 and epochs[-1] <= 20
        assert [band["epoch"] for band in row["train"]] == epochs[1:]


def test_bases_of_the_same_name_are_told_apart(tmp_path):
    paths = files(tmp_path)
    bases = [tmp_path / "mine", tmp_path / "mine-adapted"]
    for base in bases:
        api.train("masked", paths["text"], out=base, changes=list(SHAPE), device="cpu")
    wanted = design(paths, bases=tuple(map(str, reversed(bases))), probe=False)
    folder = conduct.begin(wanted, tmp_path / "out", Silent())
    plan = conduct.workshop(folder).plan
    names = [base.name for base in plan.bases]
    assert len(names) == len(set(names)) == 4
    arms = [arm.name for arm in plan.arms]
    assert len(arms) == len(set(arms))


@contextlib.contextmanager
def under_way(folder, epochs, made, lines=1):
    """An experiment in a process of its own that has written so much of a file in a run."""
    paths = files(folder)
    arguments = ["transfer", paths["table"], "--test", paths["test"], "--text", paths["text"]]
    arguments += ["--out", folder / "out", "--workers", 2, "--seeds", 2, "--labels", "20,60"]
    arguments += ["--pretraining-minutes", 0.01, "--set", f"train.epochs={epochs}"]
    for change in QUICK["base_changes"]:
        arguments += ["--set-base", change]
    command = [sys.executable, "-m", "headswap", *map(str, arguments), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    with (folder / "said").open("w") as said:
        running = subprocess.Popen(
            command, start_new_session=True, env=environment, stdout=said, stderr=said
        )
    try:
        deadline = time.monotonic() + 90
        while not any(
            len(path.read_text("utf-8").splitlines()) >= lines
            for path in (folder / "out").glob(f"runs/*/{made}")
        ):
            assert running.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def test_a_killed_experiment_goes_on_where_it_was(tmp_path):
    with under_way(tmp_path, 2, "manifest.json") as running:
        running.send_signal(signal.SIGKILL)
        running.wait()
    done = list((tmp_path / "out").glob("runs/*/manifest.json"))
    stamps = {p: p.stat().st_mtime_ns for p in done if "linear" not in str(p)}
    again = [sys.executable, "-m", "headswap", "resume", str(tmp_path / "out")]
    finished = subprocess.run(again, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "out/report.html").exists()
    untested = {p for p in stamps if not (p.parent / "tested.json").exists()}
    assert all(p.stat().st_mtime_ns == stamps[p] for p in untested)


@pytest.mark.parametrize("by", ["a scheduler", "Ctrl-C"])
def test_who_asks_to_stop_is_not_kept_waiting_and_loses_nothing(tmp_path, by):
    with under_way(tmp_path, 3000, "metrics.jsonl", lines=5) as running:
        if by == "Ctrl-C":  # reaches every process of the terminal
            os.killpg(running.pid, signal.SIGINT)
        else:
            running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 130
    assert f"headswap resume {tmp_path / 'out'}" in (tmp_path / "said").read_text()
    assert not list((tmp_path / "out").glob("runs/*/manifest.json"))
    assert list((tmp_path / "out").glob("runs/*/checkpoints/*"))


def test_an_existing_base_another_text_and_related_labels(tmp_path):
    paths = files(tmp_path)
    base = tmp_path / "mine"
    api.train("masked", paths["text"], out=base, changes=list(SHAPE), device="cpu")
    related = write_jsonl(tmp_path / "related.jsonl", review_rows(60, 4))
    wanted = design(paths, bases=(str(base),), via=(str(related),), seeds=1, labels=(40,))
    folder = conduct.start(wanted, tmp_path / "out", Silent())
    found = findings.compute(folder.path)
    names = {row["name"] for row in found["arms"] if row["kind"] == "pretrained"}
    assert names == {"mine", "mine-adapted", "mine-via", "mine-adapted-via"}
    assert [row["name"] for row in found["arms"] if row["kind"] == "scratch"] == ["scratch"]
    assert found["differences"][0]["over_seeds"] is None
    assert "no seed interval" in verdict.verdict(found)
    aided = {row["name"] for row in found["arms"] if row["other_labels"]}
    assert aided == {"mine-via", "mine-adapted-via", "probe-mine-via", "probe-mine-adapted-via"}
    told = verdict.verdict({**found, "winner": "mine-via"})
    assert told.startswith("Pretraining and other labels ")
    assert re.search(r"; pretraining alone \(mine(-adapted)?\) gives 0\.\d{3};", told)
    told = verdict.verdict({**found, "winner": "mine"})
    assert told.startswith("Pretraining ") and "other labels" not in told


def test_bases_that_differ_only_in_what_the_design_sets_share_a_scratch_arm(tmp_path):
    paths = files(tmp_path)
    text, rated = tmp_path / "text", tmp_path / "rated"
    api.train("masked", paths["text"], out=text, changes=list(SHAPE), device="cpu")
    related = write_jsonl(tmp_path / "related.jsonl", review_rows(60, 4))
    api.train(
        "classify", related, base=text, out=rated, device="cpu",
        changes=["model.dropout=0.1", "train.epochs=1"],
    )  # fmt: skip
    given = {"bases": (str(text), str(rated)), "text": (), "labels": (20,), "seeds": 1}

    def scratch(**changed):
        arms = conduct.workshop(
            conduct.begin(design(paths, **given, **changed), tmp_path / str(changed), Silent())
        ).plan.arms
        return [arm.name for arm in arms if arm.kind == "scratch"]

    assert scratch() == ["scratch-text", "scratch-rated"]
    assert scratch(changes=("model.dropout=0.2",)) == ["scratch"]


def test_refusals_leave_nothing_behind(tmp_path):
    paths = files(tmp_path)
    out = tmp_path / "out"

    def refused(error, message, **given):
        with pytest.raises(error, match=message):
            conduct.start(design(paths, **given), out, Silent())
        assert not out.exists()

    one = write_jsonl(tmp_path / "one.jsonl", [{**r, "label": "x"} for r in review_rows(40)])
    refused(DataError, "only one label", table=(str(one),), test=())
    refused(UsageError, "unknown objective", objectives=("casual",))
    refused(UsageError, "unknown setting", changes=("train.rate=1",))
    refused(UsageError, "no bleu to select by", changes=("train.select=bleu",))
    refused(UsageError, "labels are whole numbers", labels=("40", "100"))
    refused(UsageError, "class weights", changes=("classify.class_weights=[1,2,3,4,5]",))
    same = {"table": (str(paths["table"]),), "test": (str(paths["table"]),)}
    refused(DataError, "meaningless", **same)
    out.mkdir()
    (out / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="not an empty folder"):
        conduct.start(design(paths), out, Silent())


def test_a_base_for_another_language_is_refused(tmp_path):
    paths = files(tmp_path)
    greek = "Μια υπέροχη ιστορία που δεν θα ξεχάσω ποτέ στη ζωή μου {}"
    rows = [{"text": greek.format(i), "label": str(i % 2)} for i in range(60)]
    table = write_jsonl(tmp_path / "greek.jsonl", rows)
    wanted = design(paths, table=(str(table),), test=(), text=(), bases=("english-small",))
    with pytest.raises(DataError, match="another language"):
        conduct.start(wanted, tmp_path / "out", Silent())


def test_a_worth_that_may_be_noise_is_not_told():
    row = {"arm": "a", "labels": 100, "most": 500, "value": None, "low": 100.0, "high": None}
    assert verdict.worth_sentence({"winner": "a", "worth": [row]}) == ""
    sure = row | {"low": 180.0}
    assert "at least 180" in verdict.worth_sentence({"winner": "a", "worth": [row, sure]})
    assert "more than 500" in verdict.worth_sentence(
        {"winner": "a", "worth": [row | {"low": None}]}
    )


def test_what_an_experiment_settles_itself_is_refused():
    for change in ("data.clean=['html']", "train.seed=3", "classify.labels=['a', 'b']"):
        with pytest.raises(UsageError, match="settles"):
            Design(table=("x",), changes=(change,))
    for change in ("train.steps=9", "train.tokens=9", "train.minutes=1", "train.keep='last'"):
        with pytest.raises(UsageError, match="settles"):
            Design(table=("x",), changes=(change,))
    for change in ("train.steps=9", "train.epochs=2", "data.documents='line'", "data.clean=[]"):
        with pytest.raises(UsageError, match="settles"):
            Design(table=("x",), base_changes=(change,))
    with pytest.raises(UsageError, match="their base's tokenizer"):
        Design(table=("x",), changes=("tokenizer.vocabulary=900",))
    Design(table=("x",), changes=("train.epochs=2",), base_changes=("train.lr=0.1",))


def test_only_text_pretrains_and_only_bases_made_here_are_shaped(tmp_path):
    paths = files(tmp_path)
    with pytest.raises(UsageError, match="learns from text alone"):
        conduct.start(design(paths, objectives=("classify",)), tmp_path / "x", Silent())
    del paths["text"]
    with pytest.raises(UsageError, match="there are none"):
        wanted = design(paths, bases=("english-small",), base_changes=("train.batch=4",))
        conduct.start(wanted, tmp_path / "x", Silent())
    assert not (tmp_path / "x").exists()


def test_bad_numbers_are_usage_errors():
    wrong = ({"seeds": 0}, {"minutes": 0.0}, {"labels": (1,)}, {"table": ()}, {"workers": 0})
    endless = ({"minutes": float("inf")}, {"pretraining_minutes": -5.0})
    for given in (*wrong, {"workers": -1}, *endless):
        with pytest.raises(UsageError):
            Design(**{"table": ("x",), **given})


def test_with_all_labels_one_linear_model_is_fitted_for_all_seeds(tmp_path, monkeypatch):
    fitted = []
    fit = linear.fit
    monkeypatch.setattr(linear, "fit", lambda *given: fitted.append(given[3].name) or fit(*given))
    wanted = design(files(tmp_path), objectives=("masked",), labels=(20, 10_000), probe=False)
    folder = conduct.start(wanted, tmp_path / "out", Silent())
    found = json.loads((folder.path / "report.json").read_text())
    full = found["main"]
    assert len(fitted) == 3
    assert set(fitted) == {"linear-20-seed-0", "linear-20-seed-1", f"linear-{full}-seed-0"}
    runs = [folder.path / f"runs/linear-{full}-seed-{seed}" for seed in (0, 1)]
    assert [Run(run).settings()["train"]["seed"] for run in runs] == [0, 1]
    assert Run(runs[1]).seconds() == 0 < Run(runs[0]).seconds()
    for name in ("predictions/test.jsonl", "scores.json", "model.safetensors"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes()
    assert all(storage.problem(run) is None and Run(run).tested for run in runs)


def test_changed_results_are_not_reported(experiment, tmp_path):
    path, _ = experiment
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    said = next((copy / "runs").glob("*-seed-1")) / "predictions/test.jsonl"
    said.write_text(said.read_text().replace("good", "bad"))
    with pytest.raises(StorageError, match="does not match"):
        verdict.write(copy)


def test_a_language_without_spaces_is_not_taken_for_a_foreign_one(tmp_path):
    from headswap.experiment import bases

    texts = ["这是一本非常好的书我很喜欢它的故事和人物"] * 20
    bases._check_language(Run.open(Path("english-small")), texts, Silent())


def test_a_half_made_run_of_a_moved_experiment_is_made_anew(tmp_path):
    paths = files(tmp_path)
    folder = conduct.begin(design(paths, labels=(20,), seeds=1), tmp_path / "one", Silent())
    shop = conduct.workshop(folder)
    for base in shop.plan.bases:
        shop.make_base(base)
    job = next(job for job in shop.plan.trials() if job.arm.kind == "scratch")
    shop.make(job)
    (shop.path(job) / "manifest.json").unlink()  # as if it had been killed
    moved = (tmp_path / "one").rename(tmp_path / "two")
    again = conduct.workshop(Folder(moved))
    again.make(job)
    assert Run(again.path(job)).finished
    assert Run(again.path(job)).settings()["data"]["train"][0].startswith(str(moved))


def test_a_reach_that_adds_nothing_is_told(tmp_path):
    report = Silent()
    given = design(files(tmp_path), reach=(5_000,), seeds=1)
    conduct.begin(given, tmp_path / "out", report)
    assert any("--reach adds nothing" in line for line in report.lines)


def test_every_base_is_tried_around_its_own_rate(tmp_path):
    paths = files(tmp_path)
    for name, recipe in (("fast", "mini"), ("slow", "large")):
        changes = list(SHAPE)
        api.train("masked", paths["text"], out=tmp_path / name, recipe=recipe, changes=changes)
    rates = []
    for order in (("fast", "slow"), ("slow", "fast")):
        bases = tuple(str(tmp_path / name) for name in order)
        wanted = design(paths, bases=bases, text=(), probe=False)
        plan = conduct.workshop(conduct.begin(wanted, tmp_path / f"of-{order[0]}", Silent())).plan
        rates.append({arm.name: plan.rates(arm) for arm in plan.arms if arm.kind == "pretrained"})
    assert rates[0] == rates[1] and rates[0]["fast"][0] > rates[0]["slow"][0]


def test_a_difference_that_seeds_hide_is_not_called_small():
    def found(low, high, seeds):
        rows = {"linear": 0.93, "scratch": 0.6, "pretrained": 0.6}
        arms = [
            {"name": name, "accuracy": value, "labels": 9, "kind": name, "other_labels": False}
            for name, value in rows.items()
        ]
        flat = {"low": -0.1, "high": 0.1}
        gains = [
            ("scratch", "pretrained", 0.0, flat, None),
            ("linear", "pretrained", -0.33, {"low": low, "high": high}, seeds),
        ]
        differences = [
            {"from": one, "to": two, "labels": 9, "gain": gain, "over_texts": t, "over_seeds": s}
            for one, two, gain, t, s in gains
        ]
        return {
            "arms": arms,
            "differences": differences,
            "main": 9,
            "scratch": "scratch",
            "winner": "pretrained",
            "worth": [],
        }

    wide = {"low": -2.0, "high": 1.3}
    assert "above on these texts, but the seeds" in verdict.verdict(found(-0.45, -0.2, wide))
    assert "above it: use that" in verdict.verdict(found(-0.45, -0.2, None))
    assert "too near to tell apart" in verdict.verdict(found(-0.45, 0.2, wide))


def test_the_seeds_of_an_arm_are_compared_as_one(experiment):
    path, _ = experiment
    found = json.loads((path / "report.json").read_text())
    rows = {
        row["kind"]: row for row in found["arms"] if row["labels"] == 60 and row["kind"] != "probe"
    }
    given = [path / run for kind in ("scratch", "pretrained") for run in rows[kind]["runs"]]
    told = compare.compare(given)
    assert [len(arm["seeds"]) for arm in told["arms"]] == [2, 2]
    assert [arm["accuracy"] for arm in told["arms"]] == [
        pytest.approx(rows[kind]["accuracy"]) for kind in ("scratch", "pretrained")
    ]
    assert told["differences"][0]["paired_seeds"] == [0, 1]


def test_a_test_whose_listing_was_killed_is_listed_later(experiment, tmp_path, monkeypatch):
    path, _ = experiment
    run = next(run for run in sorted((path / "runs").iterdir()) if Run(run).tested)
    copy = Run(tmp_path / run.name)
    shutil.copytree(run, copy.path)
    whole = (run / storage.MANIFEST).read_bytes()
    for name in ("tested.json", "predictions/test.jsonl"):
        (copy.path / name).unlink()
    copy.finish()

    class Killed(BaseException):
        pass

    def killed(self):
        raise Killed

    monkeypatch.setattr(Run, "finish", killed)
    lines = (run / "predictions/test.jsonl").read_text("utf-8")
    table = json.loads((run / "tested.json").read_text())
    with pytest.raises(Killed):
        copy.add_test(lines, table["scores"], table["data"])
    monkeypatch.undo()
    assert (copy.path / storage.MANIFEST).read_bytes() != whole
    copy.seal()
    assert (copy.path / storage.MANIFEST).read_bytes() == whole
