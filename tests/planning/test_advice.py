"""The planner's arithmetic, and its command."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from headswap import settings
from headswap.cli import main as run
from headswap.errors import ResourceError, UsageError
from headswap.planning import advice, complexity, devices, memory, rates
from headswap.progress import Silent

CPU = torch.device("cpu")


def main(arguments):
    """The command line's exit status."""
    with pytest.raises(SystemExit) as stop:
        run(arguments)
    return stop.value.code


def test_time_is_put_together_from_its_parts():
    points = ((64.0, 1e-6), (128.0, 4e-6), (256.0, 16e-6))
    found = rates.Rates("cpu", points, 0.0, points, 1e-9, 0.0)
    assert rates._at(points, 128) == pytest.approx(4e-6)
    assert rates._at(points, 512) == pytest.approx(64e-6), "beyond the last along the same line"
    one, two = (
        rates.step_seconds(found, settings.resolve("causal", "tiny", [change]), 4_000, 32)
        for change in ({"model": {"layers": 2}}, {"model": {"layers": 4}})
    )
    assert one < two < 2 * one
    made = settings.resolve("causal", "tiny")
    assert rates.step_seconds(found, made, 4_000, 32) == pytest.approx(
        rates.step_seconds(found, made, 4_000, 8)
    ), "parts of a batch do the same arithmetic"


def test_a_calibration_times_a_machine(monkeypatch):
    monkeypatch.setattr(rates, "WIDTHS", {"cpu": (8, 16, 32)})
    monkeypatch.setattr(rates, "TOKENS", {"cpu": 64})
    monkeypatch.setattr(rates, "UPDATED", {"cpu": 4_000})
    made = settings.resolve("masked", "tiny", [{"train": {"steps": 100}}])
    found = advice.make(made, [], CPU, devices.named("T4"))
    here = found["here"]
    assert here["fits"] and here["minutes"] > 0 and here["size"]["recipe"]
    assert any("bf16" in row["change"] for row in here["changes"])
    assert "fits" in "\n".join(advice.lines(found))


def test_what_is_slower_is_no_advice(monkeypatch):
    made = settings.resolve("causal", "tiny")
    monkeypatch.setattr(rates, "measure", lambda *_: None)
    for seconds, told in ((0.5, "2 times as fast, "), (3.0, "would not help here, a step takes")):
        monkeypatch.setattr(rates, "step_seconds", lambda *_, then=seconds: then)
        first = next(iter(advice._changes(made, CPU, torch.float32, 8, 1.0)))
        assert first["change"] == "train.precision=bf16" and first["effect"].startswith(told)


def test_a_translators_batch_is_counted_by_the_side():
    made = settings.resolve("translate", "transformer-base")
    assert memory.sequences(made) == 25_000 // memory.SENTENCE
    assert advice.tokens_a_step(made) == 50_000
    row = advice.make(made, [], None, devices.named("A100"))["elsewhere"][0]
    assert row["paper_hours"] == pytest.approx(row["minutes"] / 60), "the recipe is the paper's"


@pytest.mark.parametrize("name", ["GTX 1050 Ti", "gtx-1050ti", "8xP100", "8×p100", "h200"])
def test_devices_are_found_however_they_are_written(name):
    assert devices.named(name).memory_gib


def test_an_unknown_device_is_named():
    with pytest.raises(UsageError, match="unknown device 'V2'"):
        devices.named("V2")


def test_old_chips_come_with_a_warning(capsys):
    assert not main(["plan", "transformer-base", "--device", "GTX 1050 Ti"])
    told = capsys.readouterr().out
    assert "CUDA 12.6" in told and "the paper's training: 100,000 steps of 25,000 source" in told
    assert not main(["plan", "tiny", "--device", "H200", "--steps", "100", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["elsewhere"]
    assert row["estimate"] and not row["note"] and row["minutes"] > 0


def test_text_decides_the_size(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a few words\n\n" * 50)
    made = settings.resolve("causal", "tiny")
    found = advice.make(made, [short], None, devices.named("T4"))
    assert 100 < found["text_tokens"] < 1_000
    size = advice._sensible(1e12, 60, found["text_tokens"])
    assert size["limited_by"] == "text" and size["recipe"] == "tiny"
    assert advice._sensible(1e12, 60, None)["limited_by"] == "time"


def test_exponents_and_crossings(monkeypatch, capsys, tmp_path):
    assert complexity.exponent([(n, 3 * n**2) for n in (8, 16, 64)]) == pytest.approx(2)
    monkeypatch.setattr(complexity, "LENGTHS", {"cpu": (4, 8, 16)})
    found = complexity.measure(16, CPU, Silent())
    assert {row["mixer"] for row in found["mixers"]} == {
        "attention", "lstm", "bilstm", "convolution",
    }  # fmt: skip
    by_flops = {row["mixer"]: row["n_by_flops"] for row in found["crossings"]}
    assert by_flops["lstm"] == 32 and by_flops["bilstm"] == 16, "2d and d"
    page = tmp_path / "page.html"
    assert not main(["inspect", "--complexity", "--width", "16", "--html", str(page)])
    assert "n²·d" in capsys.readouterr().out and "<svg" in page.read_text()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert not main(["inspect", "--complexity", "--width", "16", "--html", str(page)])
    assert "pip install vl-convert-python" in capsys.readouterr().err
    assert "n²·d" in page.read_text() and "<svg" not in page.read_text()
    with pytest.raises(UsageError, match="width of 12"):
        complexity.measure(12, CPU, Silent())


def test_the_ledger_is_shown(capsys, tmp_path):
    assert not main(["inspect", "course", "--swap", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["before"]["parameters"]["total"] == 21_018_401
    assert found["after"]["parameters"]["total"] == 10_968_602
    page = tmp_path / "page.html"
    assert not main(["inspect", "course", "--html", str(page)])
    assert "3d·d" in capsys.readouterr().out and "21,018,401" in page.read_text()
    assert main(["inspect"]) == 2


def test_classifiers_read_texts_and_translators_pairs(tmp_path):
    table = tmp_path / "reviews.csv"
    table.write_text("text,label\n" + "a good film,good\na bad film,bad\n" * 80)
    made = settings.resolve("classify", "tiny", [{"train": {"epochs": 2, "batch": 16}}])
    read = advice.amount([table], made)
    assert read.texts == 160 and advice.steps_of(made, read) == 20, "however short they are"
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("one two\teins zwei\n" * 30)
    other = settings.resolve("translate", "tiny-translate", [{"train": {"epochs": 1}}])
    read = advice.amount([pairs], other)
    assert read.texts == 30 and read.tokens == pytest.approx(30 * 4 * 1.4)
    assert advice.steps_of(other, read) >= 1
    here = advice.make(made, [table], torch.device("cpu"), None)["here"]
    assert "size" not in here, "a size is for pretraining"


def test_parts_of_a_batch_keep_two_rows_where_sentences_are_paired(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda place: 2 * 2**20)

    def needed(*arguments):
        return memory.Memory(0, 0, 0, 0, 0, 0, 2**20 if arguments[-1] == 1 else 2**30)

    monkeypatch.setattr(memory, "needed", needed)
    changes = [{"train": {"batch": 8}}, {"masked": {"next_sentence": True}}]
    plain, _ = advice.line(settings.resolve("masked", "tiny", changes[:1]), CPU)
    assert plain.train.accumulate == 8
    with pytest.raises(ResourceError, match="two sequences"):
        advice.line(settings.resolve("masked", "tiny", changes), CPU)
