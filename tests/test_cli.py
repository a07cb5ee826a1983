"""The command line: what it does, and what it says when it cannot."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import corpus_text, review_rows, write_jsonl
from headswap import cli, storage

SMALL = [
    f"--set={setting}"
    for setting in (
        "model.width=16",
        "model.layers=2",
        "model.heads=2",
        "model.feedforward=32",
        "model.length=24",
        "tokenizer.vocabulary=330",
    )
]


@pytest.fixture
def headswap(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, stdin=None):
        capfd.readouterr()
        code = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def base(headswap, corpus_file):
    code, _, err = headswap("train", "causal", corpus_file, "--out", "base", "--steps", 6, *SMALL)
    assert code == 0, err
    return Path("base")


def refused(result, code, *words):
    found, out, err = result
    assert found == code, err
    assert out == ""
    last = err.strip().split("\n")[-1]
    assert last.startswith("headswap: ") and "Traceback" not in err
    for word in words:
        assert word in last


# What it does


def test_the_whole_slice(headswap, base, reviews_file):
    """Text file, base, swapped head, predictions."""
    code, out, err = headswap(
        "train",
        "classify",
        reviews_file,
        "--from",
        base,
        "--out",
        "clf",
        "--epochs",
        6,
        "--lr",
        0.01,
    )
    assert code == 0 and out == "clf\n"
    assert "carried over 14 tensors" in err
    code, out, _ = headswap("predict", "clf", "--text", "superb lovely charming book")
    line = json.loads(out)
    assert line["label"] in ("good", "bad")
    assert abs(sum(line["probabilities"].values()) - 1) < 1e-9
    code, out, _ = headswap("evaluate", "clf", reviews_file, "--json")
    assert json.loads(out)["accuracy"] > 0.9
    code, out, _ = headswap("evaluate", base, "corpus.txt", "--json")
    assert {"loss", "bits_per_byte"} <= json.loads(out).keys()
    code, out, _ = headswap("generate", base, "the book", "--length", 5)
    assert code == 0 and out.startswith("the book")
    code, out, _ = headswap("inspect", "clf", "--json")
    counted = json.loads(out)["parameters"]["total"]
    from safetensors.numpy import load_file

    assert counted == sum(tensor.size for tensor in load_file("clf/model.safetensors").values())


def test_the_run_folder(headswap, base):
    names = {path.name for path in base.iterdir()}
    assert names == {
        "config.toml",
        "provenance.json",
        "tokenizer",
        "metrics.jsonl",
        "timing.jsonl",
        "checkpoints",
        "model.safetensors",
        "predictions",
        "scores.json",
        "manifest.json",
    }
    provenance = json.loads((base / "provenance.json").read_text())
    assert provenance["libraries"]["torch"] and provenance["data"]["train"]["sha256"]
    metrics = [json.loads(line) for line in (base / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["split"] == "valid" and metrics[0]["step"] == 0
    assert not any("time" in key for line in metrics for key in line)


def test_results_are_not_written_over_what_they_are_made_of(headswap, base):
    table = Path("in.jsonl")
    table.write_text('{"text": "a book"}\n', "utf-8")
    before = table.read_text("utf-8")
    refused(headswap("embed", base, table, "--out", "./in.jsonl"), 2, "where the texts come from")
    assert table.read_text("utf-8") == before


def test_two_budgets_are_refused_wherever_they_stand(headswap, corpus_file):
    command = ("train", "causal", corpus_file, "--out", "x", "--steps", 3)
    refused(headswap(*command, "--set", "train.epochs=2"), 2, "two budgets")


def test_predict_reads_files_and_lines_up_with_them(headswap, base, reviews_file):
    headswap("train", "classify", reviews_file, "--from", base, "--out", "clf", "--epochs", 1)
    Path("new.txt").write_text("superb book\n\nawful book\n")
    code, out, _ = headswap("predict", "clf", "new.txt")
    assert code == 0 and len(out.splitlines()) == 3
    code, out, _ = headswap("predict", "clf", reviews_file)
    assert len(out.splitlines()) == 120


def test_help_is_quick_and_imports_no_torch():
    started = time.monotonic()
    code = (
        "import sys; from headswap import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    )
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "train" in done.stdout
    assert time.monotonic() - started < 2  # 0.2 s here; generous for a busy machine


def test_inspect_a_recipe(headswap):
    _, out, _ = headswap("inspect", "course", "--json")
    assert json.loads(out)["parameters"]["total"] == 21_018_401
    _, out, _ = headswap("inspect", "course", "--objective", "classify", "--classes", 2, "--json")
    assert json.loads(out)["parameters"]["total"] == 10_968_602
    _code, out, _ = headswap("inspect", "course")
    assert "21,018,401" in out
    assert "course" in headswap("recipes")[1]


def test_a_reader_who_leaves_ends_it_quietly(headswap, base, reviews_file):
    headswap("train", "classify", reviews_file, "--from", base, "--out", "clf", "--epochs", 1)
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "headswap"]
    for arguments in (
        ["--help"],
        ["inspect", "tiny"],
        ["predict", "clf", reviews_file],
        ["generate", base, "the book"],
    ):
        done = subprocess.run([*command, *arguments], stdout=write, stderr=subprocess.PIPE)
        assert done.returncode == 141 and not done.stderr
    wrong = [*command, "predict", "nowhere", reviews_file]
    assert subprocess.run(wrong, stdout=write, stderr=write).returncode == 74
    closed = f"{sys.executable} -m headswap recipes >&-"
    assert subprocess.run(closed, shell=True, stderr=subprocess.PIPE).stderr == b""
    os.close(write)


# What it refuses


def train(headswap, *more, objective="causal", out="new"):
    return headswap("train", objective, *more, "--out", out, "--steps", 4, *SMALL)


def test_missing_and_empty_files(headswap, tmp_path):
    refused(train(headswap, "nothing.txt"), 74, "nothing.txt", "no such file")
    Path("empty.txt").write_text("")
    refused(train(headswap, "empty.txt"), 65, "empty.txt", "no text")
    (tmp_path / "hollow").mkdir()
    refused(train(headswap, tmp_path / "hollow"), 74, "no text files there")
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"fine\nbad \0 byte\n", ["line 2", "NUL"]),
        (b"fine\ncaf\xe9\n", ["line 2", "invalid UTF-8", "iconv"]),
        ("fine".encode("utf-16"), ["UTF-16"]),
    ],
)
def test_bad_bytes(headswap, content, words):
    Path("bad.txt").write_bytes(content)
    refused(train(headswap, "bad.txt"), 65, "bad.txt", *words)


def test_a_byte_order_mark_does_no_harm(headswap):
    Path("bom.txt").write_bytes(b"\xef\xbb\xbf" + corpus_text().encode())
    code, _, err = train(headswap, "bom.txt")
    assert code == 0, err


def test_wrong_columns(headswap):
    Path("a.csv").write_text("words,tag\nhello,x\nbye,y\n")
    refused(train(headswap, "a.csv", objective="classify"), 65, "no text column", "--text-column")
    refused(
        train(headswap, "a.csv", "--text-column", "word", objective="classify"),
        2,
        "did you mean 'words'?",
    )
    refused(
        train(headswap, "a.csv", "--text-column", "words", objective="classify"),
        65,
        "no label column",
    )


def test_unknown_names_get_a_suggestion(headswap, corpus_file):
    refused(headswap("trian"), 2, 'Did you mean "train"?')
    refused(headswap("train", "causl", "x", "--out", "y"), 2, "did you mean 'causal'?")
    refused(train(headswap, corpus_file, "--recipe", "tinny"), 2, "did you mean 'tiny'?")
    refused(train(headswap, corpus_file, "--set", "model.widht=3"), 2, "did you mean 'width'?")
    refused(train(headswap, corpus_file, "--set", "trian.lr=3"), 2, "did you mean 'train'?")
    refused(train(headswap, corpus_file, "--stpes", 3), 2, "Did you mean --steps?")


def test_a_label_seen_only_in_test(headswap, reviews_file, tmp_path):
    odd = write_jsonl(tmp_path / "odd.jsonl", [{"text": "hm", "label": "neutral"}])
    refused(
        train(headswap, reviews_file, "--test", odd, objective="classify"),
        65,
        "odd.jsonl",
        "'neutral' is not among the training labels (bad, good)",
    )


def test_one_class_only(headswap, tmp_path):
    rows = [{"text": row["text"], "label": "same"} for row in review_rows(10)]
    path = write_jsonl(tmp_path / "one.jsonl", rows)
    refused(train(headswap, path, objective="classify"), 65, "only one label, 'same'")


def test_text_shorter_than_a_window(headswap):
    Path("short.txt").write_text("only a few words here\n")
    refused(train(headswap, "short.txt"), 65, "shorter than one window of 24", "model.length")


def test_a_vocabulary_larger_than_the_text_allows_is_capped_with_a_warning(headswap, corpus_file):
    code, _, err = headswap(
        "train", "causal", corpus_file, "--out", "new", "--steps", 2, *SMALL[:-1]
    )
    assert code == 0 and "too small for 4,000 tokens: the vocabulary has" in err


def test_a_base_with_another_tokenizer(headswap, base, reviews_file, corpus_file):
    headswap("train", "causal", corpus_file, "--out", "other", "--steps", 2, *SMALL[:-1])
    refused(
        headswap(
            "train",
            "classify",
            reviews_file,
            "--from",
            base,
            "--out",
            "new",
            "--tokenizer",
            "other/tokenizer/sentencepiece.model",
        ),
        2,
        "another tokenizer",
    )


def test_a_base_with_the_tokenizer_that_it_was_made_with(headswap, base, reviews_file, corpus_file):
    """A masked base has added its own tokens to it."""
    given = ("--tokenizer", f"{base}/tokenizer/sentencepiece.model")
    assert not headswap("train", "masked", corpus_file, *given, "--out", "m", "--steps", 1, *SMALL)[
        0
    ]
    words = ("train", "classify", reviews_file, "--from", "m", *given, "--out", "c", "--dry-run")
    assert not headswap(*words)[0]


def test_changing_the_model_of_a_base(headswap, base, reviews_file):
    refused(
        headswap(
            "train",
            "classify",
            reviews_file,
            "--from",
            base,
            "--out",
            "n",
            "--set",
            "model.width=8",
        ),
        2,
        "model.width comes from the base",
    )


def test_wrong_uses_of_runs(headswap, base, reviews_file, corpus_file):
    refused(headswap("predict", base, "--text", "x"), 2, "has no labels", "headswap train classify")
    refused(headswap("predict", "nowhere", "--text", "x"), 74, "no such run")
    refused(headswap("predict", reviews_file.parent, "--text", "x"), 2, "not a run folder")
    refused(
        train(headswap, corpus_file, out="base"), 2, "a run is already there", "headswap resume"
    )
    headswap("train", "classify", reviews_file, "--from", base, "--out", "clf", "--epochs", 1)
    refused(headswap("generate", "clf", "x"), 2, "cannot generate")
    Path("odd.jsonl").write_text('{"text": "x", "label": "strange"}\n')
    refused(headswap("evaluate", "clf", "odd.jsonl"), 65, "'strange' is unknown to the run")


def test_no_gpu_here(headswap, corpus_file):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused(train(headswap, corpus_file, "--device", "cuda"), 69, "no CUDA GPU", "--device cpu")
    assert not Path("new").exists()
    refused(train(headswap, corpus_file, "--device", "gpu9", out="n2"), 2, "unknown device")


def test_a_loss_that_turns_infinite(headswap, corpus_file):
    result = headswap(
        "train",
        "causal",
        corpus_file,
        "--out",
        "new",
        "--steps",
        200,
        "--lr",
        1e9,
        "--set",
        "train.clip=0",
        "--set",
        "train.schedule=constant",
        "--set",
        "train.warmup=0",
        *SMALL,
    )
    refused(result, 65, "infinite or not a number", "lower train.lr")
    assert not Path("new").exists()  # nothing was saved yet, so the name is free again


def test_a_full_disk(headswap, corpus_file, monkeypatch):
    plain = storage.os.fsync
    calls = 0

    def filling(descriptor):
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(descriptor)

    monkeypatch.setattr(storage.os, "fsync", filling)
    command = ("train", "causal", corpus_file, "--out", "new", "--steps", 6, *SMALL)
    refused(headswap(*command, "--set", "train.evaluate_every=2"), 74, "the disk is full")
    monkeypatch.setattr(storage.os, "fsync", plain)
    code, _, err = headswap("resume", "new")
    assert code == 0, err
    assert not list(Path("new").rglob(f"{storage.STAGING}*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path, corpus_file, number):
    command = [sys.executable, "-m", "headswap", "train", "causal", corpus_file, "--out", "run"]
    process = subprocess.Popen(
        [*map(str, command), "--steps", "100000", *SMALL],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for _ in range(600):
        metrics = tmp_path / "run/metrics.jsonl"
        if metrics.exists() and metrics.stat().st_size:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped and saved at step" in err and "headswap resume run" in err
    assert len(list((tmp_path / "run/checkpoints").glob("step-*"))) == 1


# Coming back


def test_damage_is_found_and_mended(headswap, base):
    path = base / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(headswap("generate", base, "x"), 65, "damaged", "headswap resume base")
    code, _, _err = headswap("resume", base)
    assert code == 0 and path.read_bytes() == whole
    assert headswap("resume", base)[2].strip().endswith("is finished already")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(headswap, corpus_file):
    command = ("train", "causal", corpus_file, *SMALL, "--set", "train.evaluate_every=2")
    command += ("--set", "train.save_minutes=0.0")
    headswap(*command, "--steps", 8, "--out", "whole")
    headswap(*command, "--steps", 8, "--out", "run")
    (Path("run") / "manifest.json").unlink()
    newest = sorted(Path("run/checkpoints").iterdir())[-1] / "optimizer.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(content)
    code, _, err = headswap("resume", "run")
    assert code == 0 and "damaged checkpoint" in err and "using the one before" in err
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (Path("run") / name).read_bytes() == (Path("whole") / name).read_bytes()


def test_a_run_resumes_elsewhere_when_the_data_matches(headswap, base, corpus_file, tmp_path):
    (base / "manifest.json").unlink()
    base.rename("moved")
    away = tmp_path / "away"
    away.mkdir()
    corpus_file.rename(away / corpus_file.name)
    refused(headswap("resume", "moved"), 74, "not there", "--data")
    code, _, err = headswap("resume", "moved", "--data", away)
    assert code == 0, err
    (Path("moved") / "manifest.json").unlink()
    (away / corpus_file.name).write_text("something else\n" * 50)
    refused(headswap("resume", "moved", "--data", away), 65, "has changed since the run began")


# Breadth


def test_print_config_and_dry_run(headswap, reviews_file):
    import tomllib

    command = ("train", "classify", reviews_file, "--out", "new", "--recipe", "tiny")
    code, out, _ = headswap(*command, "--set", "train.lr=0.5", "--print-config")
    assert code == 0 and tomllib.loads(out)["train"]["lr"] == 0.5
    Path("mine.toml").write_text(out)
    code, again, _ = headswap(*command[:-1], "mine.toml", "--print-config")
    assert tomllib.loads(again)["train"] == tomllib.loads(out)["train"]
    code, out, _ = headswap(*command, "--dry-run")
    assert code == 0 and "labels: bad, good" in out and "budget: 8 epochs" in out
    assert not Path("new").exists()
    refused(headswap(*command, "--set", "recipe=small"), 2, "recipe is not a setting")
    refused(headswap(*command, "--set", "objective.x=1"), 2, "objective is not a setting")
    Path("bad.jsonl").write_text('{"text": "x"}\n')
    refused(headswap("train", "classify", "bad.jsonl", "--out", "n", "--dry-run"), 65, "no label")


def test_masked_fill_embed_and_table_output(headswap, corpus_file, reviews_file):
    import csv

    import numpy as np

    code, _, err = headswap("train", "masked", corpus_file, "--out", "m", "--steps", 20, *SMALL)
    assert code == 0, err
    code, out, _ = headswap("fill", "m", "the <mask> was superb", "--most", 3)
    assert code == 0 and out.startswith("mask 1: ") and len(out.split("  ")) == 3
    code, out, _ = headswap("fill", "m", "the <mask> was <mask>", "--json")
    found = json.loads(out)
    assert found["text"] == "the <mask> was <mask>" and list(map(len, found["masks"])) == [5, 5]
    refused(headswap("fill", "m", "a <mask>", "--most", 0), 2, "cannot show 0 candidates")
    refused(headswap("generate", "m", "x"), 2, "a masked run cannot generate")
    code, out, _ = headswap("embed", "m", reviews_file, "--out", "v.npy")
    assert code == 0 and np.load("v.npy").shape == (120, 16)
    code, _, _ = headswap("embed", "m", reviews_file, "--tokens", "--out", "v.jsonl")
    first = json.loads(Path("v.jsonl").read_text().splitlines()[0])
    assert len(first["pieces"]) == len(first["vectors"])
    refused(headswap("embed", "m", reviews_file, "--tokens", "--out", "v.npy"), 2, "use .jsonl")
    headswap("train", "classify", reviews_file, "--from", "m", "--out", "c", "--epochs", 1)
    code, out, _ = headswap("predict", "c", reviews_file, "--out", "p.csv")
    assert code == 0 and out == "120 predictions in p.csv\n"
    with open("p.csv", newline="") as stream:
        assert next(csv.reader(stream)) == [
            "row",
            "label",
            "probabilities.bad",
            "probabilities.good",
        ]
    refused(headswap("predict", "c", reviews_file, "--out", "p.xls"), 2, "cannot write .xls")


def test_check(headswap, reviews_file, tmp_path):
    rows = review_rows(30, seed=5)
    test = write_jsonl(tmp_path / "test.jsonl", [*rows, review_rows(1)[0]])
    code, out, _ = headswap("check", reviews_file, "--test", test)
    assert code == 0 and "train texts that also stand in test: row 1" in out
    code, out, _ = headswap("check", reviews_file, "--test", test, "--json")
    assert json.loads(out)["splits"]["test"]["texts"] == 31
    one = write_jsonl(tmp_path / "one.jsonl", [{"text": r["text"], "label": "x"} for r in rows])
    code, out, err = headswap("check", one)
    assert code == 65 and "STOP" in out and "training would be meaningless" in err
    refused(headswap("check"), 2, "nothing to check")
    refused(headswap("check", reviews_file, "--length", 0), 2, "cannot read 0 tokens")


def test_folders_patterns_and_compressed_tables(headswap, tmp_path):
    import gzip

    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        data = corpus_text(60, seed=number).encode()
        (folder / f"{number}.txt.gz").write_bytes(gzip.compress(data))
    code, _, err = headswap("train", "causal", folder, "--out", "a", "--steps", 2, *SMALL)
    assert code == 0, err
    code, _, err = headswap("train", "causal", "texts/*.gz", "--out", "b", "--steps", 2, *SMALL)
    assert (
        code == 0
        and Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()
    )


def test_the_choice_for_long_texts_is_said_aloud(headswap, tmp_path):
    rows = [{"text": row["text"] * 9, "label": row["label"]} for row in review_rows(40)]
    path = write_jsonl(tmp_path / "long.jsonl", rows)
    said = {"head": "their beginning is read", "windows": "overlapping windows"}
    for number, (choice, words) in enumerate(said.items()):
        code, _, err = headswap(
            "train", "classify", path, "--out", f"r{number}", "--epochs", 1, *SMALL,
            "--set", f"classify.long={choice}",
        )  # fmt: skip
        assert code == 0 and words in err, err


def test_a_failure_before_learning_leaves_the_name_free(headswap, corpus_file):
    Path("short.txt").write_text("only a few words here\n")
    refused(train(headswap, "short.txt"), 65, "shorter than one window")
    assert not Path("new").exists()
    code, _, err = train(headswap, corpus_file)
    assert code == 0, err


def test_standard_input_is_held_to_the_same_rules(headswap, base, monkeypatch):
    import io

    class Input:
        buffer = io.BytesIO(b"the book\nbad \xff byte\n")

    monkeypatch.setattr(sys, "stdin", Input)
    refused(headswap("generate", base), 65, "standard input, line 2: invalid UTF-8")


def test_a_dash_is_standard_input(headswap, base, reviews_file, monkeypatch):
    import io

    headswap("train", "classify", reviews_file, "--from", base, "--out", "clf", "--epochs", 1)
    for command in (
        ("predict", "clf", "-"),
        ("predict", "clf"),
        ("generate", base, "-", "--length", 1),
        ("embed", base, "-", "--out", "v.jsonl"),
        ("embed", base, "--out", "v.jsonl"),
    ):
        given = io.BytesIO(b"the book\na lovely book\n")
        monkeypatch.setattr(sys, "stdin", type("Input", (), {"buffer": given}))
        code, out, err = headswap(*command)
        assert code == 0, err
        shown = Path("v.jsonl").read_text() if command[0] == "embed" else out
        assert len(shown.splitlines()) == 2


def test_whoever_waits_sees_how_far_it_is(headswap, base, reviews_file, monkeypatch):
    from headswap import progress

    headswap("train", "classify", reviews_file, "--from", base, "--out", "clf", "--epochs", 1)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    for command, doing in (
        (("embed", base, reviews_file, "--out", "v.npy"), "embedding"),
        (("predict", "clf", reviews_file, "--out", "p.jsonl"), "predicting"),
    ):
        code, _, err = headswap(*command)
        assert code == 0 and f"{doing}  50%  60 texts" in err and "s left" in err


def test_texts_are_never_ignored(headswap, base, reviews_file):
    headswap("train", "classify", reviews_file, "--from", base, "--out", "clf", "--epochs", 1)
    refused(headswap("predict", "clf", reviews_file, "--text", "hi"), 2, "give one of them")
    refused(headswap("generate", base, "x", "--top-k", 3), 2, "need a temperature")
    refused(headswap("resume", "clf", "--data", "nowhere"), 74, "no such folder")


def test_two_rows_train_with_a_warning_and_no_noise(headswap, tmp_path):
    path = write_jsonl(tmp_path / "two.jsonl", [*review_rows(1), {"text": "b", "label": "x"}])
    code, _, err = train(headswap, path, objective="classify")
    assert code == 0 and "nothing is validated" in err and "nan" not in err.lower()


def test_semicolons_are_understood(headswap):
    rows = "".join(f"{row['text']};{row['label']}\n" for row in review_rows(40))
    Path("a.csv").write_text("text;label\n" + rows)
    assert train(headswap, "a.csv", objective="classify")[0] == 0


def test_held_out_texts_are_not_in_the_tokenizer(headswap, tmp_path):
    """A word that only a validation text has must not become a piece."""
    from headswap import api
    from headswap.prepare import hold_out
    from headswap.text.corpus import LabelledText

    for place in range(60):
        rows = review_rows(60)
        rows[place]["text"] += " zzyzx" * 200
        _, held = hold_out([LabelledText(r["text"], r["label"]) for r in rows], 0.1, 0)
        if any("zzyzx" in row.text for row in held):
            break
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    changes = [*(setting.removeprefix("--set=") for setting in SMALL), "train.steps=1"]
    trained = api.train("classify", path, out="r", changes=changes)
    assert not any("zz" in piece for piece in trained.tokens.pieces(range(trained.tokens.size)))


def test_a_bug_says_so_and_exits_with_70(headswap, monkeypatch):
    from headswap import settings

    monkeypatch.setattr(settings, "recipes", lambda: 1 / 0)
    code, _, err = headswap("recipes")
    assert code == 70 and "ZeroDivisionError" in err
    assert err.strip().endswith("this is a bug in Headswap; please report the lines above")


def test_an_interrupt_before_the_training_is_told_too(headswap, corpus_file, monkeypatch):
    from headswap.text import tokenizer

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "train", interrupted)
    refused(train(headswap, corpus_file), 130, "interrupted")


def test_what_would_be_ignored_is_refused(headswap, corpus_file, reviews_file):
    made = ["train", "causal", corpus_file, "--out", "x", "--steps", 2, *SMALL]
    refused(headswap(*made, "--test", corpus_file), 2, "--test", "headswap evaluate")
    made[1:3] = ["classify", reviews_file]
    refused(headswap(*made, "--set", "train.freeze_layers=9"), 2, "freeze_layers is 9")
    made[-len(SMALL) - 2 : -len(SMALL)] = ["--epochs", "nan"]
    refused(headswap(*made), 2, "train.epochs must be a number, not nan")
    refused(headswap("inspect", "course", "--swap", 0), 2, "--swap 2")
    refused(headswap("inspect", "english-small", "--classes", 3), 2, "--classes")
    refused(headswap("inspect", "course", "--width", 5), 2, "--complexity")
    refused(headswap("inspect", "course", "--complexity"), 2, "layers alone")
    refused(headswap("inspect", "english-small", "--text", "x", "--classes", 3), 2, "--text")
    refused(headswap("inspect", "english-small", "--text", "x", "--label", "a"), 2, "classifier")
    refused(headswap("inspect", "course", "--html", "."), 74, "cannot write")
    assert not Path("x").exists()


def test_bytes_that_are_no_text_are_read_as_such(headswap, base):
    code, out, err = headswap("generate", base, "\udcff the book", "--length", 2)
    assert code == 0 and "the book" in out, err


def test_a_language_model_has_nothing_to_compare(headswap, base):
    refused(headswap("compare", base, base), 2, "predicts no labels")


def test_no_checkpoints_are_promised_where_there_are_none(headswap, corpus_file):
    code, _, err = headswap(
        "train", "causal", corpus_file, "--out", "x", "--steps", 20, "--lr", 1e30, *SMALL
    )
    assert code != 0 and "train.lr" in err and "checkpoints from before" not in err


def test_what_a_command_cannot_use_is_named(headswap, reviews_file):
    refused(headswap("predict", "r", reviews_file, "more.csv"), 2, "'more.csv' is more", "--help")
    refused(headswap("inspect", "runs/nope"), 2, "runs/nope: no such run", "name a recipe")


def test_all_files_of_a_run_may_be_read_by_the_same_people(headswap, reviews_file):
    model = ["--set", "model.width=16", "--set", "model.layers=1", "--set", "model.heads=2"]
    words = ["--set", "tokenizer.vocabulary=330", "--steps", "2"]
    code, _, err = headswap("train", "classify", reviews_file, "--out", "r", *model, *words)
    assert code == 0, err
    files = [path for path in Path("r").rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1, {p: p.stat().st_mode for p in files}
