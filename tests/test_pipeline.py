"""Training on shards: what it gives, and what it refuses before any work."""

from __future__ import annotations

import contextlib
import json

import fsspec
import pytest

from conftest import corpus_text
from headswap import api, cli, pipeline, settings, storage
from headswap.errors import DataError, StorageError, UsageError
from headswap.planning import advice
from headswap.text import remote, sharding, stretches
from headswap.text.tokenizer import SentencePieceTokenizer

SMALL = ["model.width=16", "model.layers=1", "model.heads=2", "model.feedforward=32"]
SMALL += ["model.length=24", "train.steps=6", "train.batch=4"]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    cut = stretches.cut
    monkeypatch.setattr(sharding.stretches, "cut", lambda paths, size: cut(paths, 4_000))
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    fsspec.filesystem("memory").store.clear()
    paths = [tmp_path / "web.txt", tmp_path / "books.txt"]
    for number, path in enumerate(paths):
        path.write_text(corpus_text(100, number), "utf-8")
    return paths


@pytest.fixture
def folders(texts, tokens, tmp_path):
    for path in texts:
        sharding.make([path], tokens, tmp_path / path.stem)
    return [tmp_path / path.stem for path in texts]


def elsewhere(folder):
    store = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            store.pipe(f"/{folder.name}/{path.relative_to(folder)}", path.read_bytes())
    return f"memory://{folder.name}"


def trained(data, out, *changes, objective="causal"):
    api.train(objective, data, out=out, changes=[*SMALL, *changes], device="cpu")
    names = ("model.safetensors", "metrics.jsonl", "scores.json")
    return [(out / name).read_bytes() for name in names]


def test_shards_train_as_their_text_does(texts, folders, tokens, tmp_path):
    (tmp_path / "words").mkdir()
    tokens.save(tmp_path / "words")
    same = f"tokenizer.model={tmp_path / 'words'}"
    assert trained(folders[0], tmp_path / "a") == trained(texts[0], tmp_path / "b", same)
    trained(folders[0], tmp_path / "c", objective="hybrid")  # a special is appended


def test_a_run_does_not_depend_on_where_its_shards_lie(folders, tmp_path):
    urls = [elsewhere(folder) for folder in folders]
    weights = "data.weights=[3, 1]"
    assert trained(folders, tmp_path / "a", weights, "data.near=16") == trained(
        urls, tmp_path / "b", weights
    ), "what lies elsewhere is read a few shards at a time"
    assert trained(folders, tmp_path / "c") != trained(folders, tmp_path / "d", weights)


def test_a_stopped_run_goes_on_with_shards_elsewhere(folders, tmp_path):
    url = elsewhere(folders[0])
    whole = trained(url, tmp_path / "a")
    for name in ("manifest.json", "model.safetensors"):
        (tmp_path / "a" / name).unlink()
    api.resume(tmp_path / "a", device="cpu")
    assert (tmp_path / "a/model.safetensors").read_bytes() == whole[0]


def test_refusals(folders, texts, tokens, tmp_path, capsys):
    other = SentencePieceTokenizer(tokens.model, None, ["<odd>"])
    sharding.make([texts[0]], other, tmp_path / "other")
    out = tmp_path / "out"

    def refused(kind, message, data, *changes, objective="causal", **given):
        with pytest.raises(kind, match=message):
            api.train(objective, data, out=out, changes=[*SMALL, *changes], **given)
        assert not out.exists()

    refused(UsageError, "classify cannot read", folders[0], objective="classify")
    refused(UsageError, "different tokenizers", [folders[0], tmp_path / "other"])
    refused(UsageError, "goes with a sharded corpus", texts[0], "data.near=4")
    refused(UsageError, "several sources", folders[0], valid=folders)
    refused(UsageError, "cannot be -1", folders[0], "data.near=-1")
    refused(StorageError, "is not there", "memory://nowhere")
    base = tmp_path / "base"
    words = [*SMALL, "tokenizer.vocabulary=340"]
    api.train("causal", texts[0], out=base, changes=words, device="cpu")
    steps = ["train.steps=6", "train.batch=4"]
    with pytest.raises(UsageError, match="another tokenizer than the model's"):
        api.train("causal", folders[0], base=base, out=out, changes=steps, device="cpu")
    assert not out.exists()


def test_a_base_goes_on_with_shards_of_its_tokenizer(folders, tmp_path):
    trained(folders[0], tmp_path / "base")
    steps = ["train.steps=6", "train.batch=4"]
    more = api.train(
        "masked", folders[1], base=tmp_path / "base", out=tmp_path / "more", changes=steps
    )
    assert more.run.finished


def test_a_plan_knows_how_long_shards_are(folders, texts):
    made = settings.resolve("causal", "tiny")
    known = json.loads((folders[0] / "shards.json").read_text())["tokens"]
    assert advice.amount([folders[0]], made).tokens == known
    both = advice.amount([folders[0], texts[1]], made).tokens
    assert both == known + advice.amount([texts[1]], made).tokens


def test_a_dry_run_knows_shards(folders, tmp_path, capsys):
    arguments = ["train", "causal", elsewhere(folders[0]), str(folders[1])]
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments, "--out", str(tmp_path / "out"), "--steps", "5", "--dry-run"])
    told = capsys.readouterr().out
    assert not stop.value.code and "memory://web (" in told and "tokens in shards" in told


def test_a_run_that_another_process_took_over_is_not_deleted(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "WAIT_S", 0.0)
    create = pipeline.create
    with contextlib.ExitStack() as held:

        def taken(*given, **more):
            run = create(*given, **more)
            held.enter_context(storage.alone(run.path, print))
            return run

        monkeypatch.setattr(pipeline, "create", taken)
        with pytest.raises(StorageError, match="another process"):
            trained(texts[0], tmp_path / "a")
    assert (tmp_path / "a" / "config.toml").exists()


def test_what_nobody_would_look_at_is_refused(corpus_file, tmp_path, capsys):
    def told(*words):
        with pytest.raises(SystemExit) as stop:
            cli.main([*words])
        return stop.value.code

    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "a fine day,yes\na bad day,no\n" * 20)
    usual = ["--recipe", "tiny", "--steps", "1", "--device", "cpu", "--out", str(tmp_path / "run")]
    mixed = ["train", "classify", str(table), str(table), "--set", "data.weights=[1,9]", *usual]
    assert told(*mixed) == 2
    assert "reads all its files alike" in capsys.readouterr().err
    assert told("train", "causal", str(corpus_file), "--pieces", "nowhere.txt", *usual) == 2
    assert "there is none; give its file with --tokenizer" in capsys.readouterr().err
    assert told("inspect", "course", "--swap", "2", "--html", str(tmp_path / "a.html")) == 2
    assert not list(tmp_path.glob("run*")) and not (tmp_path / "a.html").exists()


def test_every_session_of_a_run_counts_in_its_time(corpus_file, tmp_path):
    run = api.train(
        "causal", corpus_file, out=tmp_path / "run", device="cpu",
        changes=["train.steps=2", "model.width=16", "tokenizer.vocabulary=330"],
    ).run  # fmt: skip
    lines = [json.loads(line) for line in (run.path / "timing.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["saved", "finished"]
    assert all(line["seconds"] > 0 for line in lines)
    again = type(run)(run.path)
    again.note_time("looked at")  # whose clock was not started
    assert again.seconds() == pytest.approx(sum(line["seconds"] for line in lines))


def test_a_dry_run_finds_what_the_run_would(corpus_file, tmp_path):
    def refused(*words):
        with pytest.raises(SystemExit) as stop:
            cli.main([*map(str, words), "--dry-run"])
        return stop.value.code

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("x")
    usual = ("--recipe", "tiny", "--steps", 1, "--device", "cpu", "--out")
    assert refused("train", "causal", corpus_file, *usual, tmp_path / "taken") == 2
    one, two = tmp_path / "a.en", tmp_path / "a.de"
    one.write_text("a\n" * 30)
    two.write_text("x\n" * 29)
    usual = ("--recipe", "tiny-translate", "--device", "cpu", "--out", tmp_path / "run")
    assert refused("train", "translate", one, two, *usual) == 65


def test_validation_from_a_url(corpus_file, tokens, tmp_path, capsys):
    for name in ("train", "valid"):
        sharding.make([corpus_file], tokens, tmp_path / name)
    urls = [f"file://{tmp_path / name}" for name in ("train", "valid")]
    words = ["train", "causal", urls[0], "--valid", urls[1], "--recipe", "tiny", "--steps", "1"]
    words += ["--set", "model.length=16", "--device", "cpu", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--dry-run"])
    assert not stop.value.code and f"valid: {urls[1]}" in capsys.readouterr().out


def test_a_lost_tokenizer_is_to_be_copied(corpus_file, tmp_path):
    """Resuming makes weights again, and no tokenizer."""
    run = api.train(
        "causal", corpus_file, out=tmp_path / "run", device="cpu",
        changes=["train.steps=1", "model.width=16", "tokenizer.vocabulary=330"],
    ).run  # fmt: skip
    next((run.path / "tokenizer").glob("*.model")).unlink()
    with pytest.raises(DataError, match="model is missing; copy it from where it is whole"):
        run.check_finished()
