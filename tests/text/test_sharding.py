"""Sharding in parts: the same bytes for any number of workers, and nothing half-made."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys

import pytest

from conftest import corpus_text
from headswap import cli, storage
from headswap.errors import DataError, UsageError
from headswap.text import sharding, stretches
from headswap.text.corpus import Reading
from headswap.text.sharded import Sharded
from headswap.text.sharding import Part


@pytest.fixture
def texts(tmp_path):
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"text-{number}.txt")
        paths[-1].write_text(corpus_text(40, number), "utf-8")
    return paths


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    cut = stretches.cut
    monkeypatch.setattr(sharding.stretches, "cut", lambda paths, size: cut(paths, size // 2_000))


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_any_number_of_parts_gives_the_same_bytes(texts, tokens, tmp_path):
    assert sharding.make(texts, tokens, tmp_path / "one", megabytes=4)
    one = content(tmp_path / "one")
    assert len([name for name in one if name.startswith("tokens-")]) > 5
    assert not any("parts" in name or "staging" in name for name in one)
    for count in (2, 5, 50):
        out = tmp_path / f"in-{count}"
        numbers = list(range(1, count + 1))
        random.Random(count).shuffle(numbers)
        done = [sharding.make(texts, tokens, out, Part(n, count), megabytes=4) for n in numbers]
        assert done[-1] and content(out) == one


def test_the_tokens_are_those_of_the_text(texts, tokens, tmp_path):
    from headswap.text import corpus, shards

    sharding.make(texts, tokens, tmp_path / "out", Part(1, 1), megabytes=4)
    found = Sharded(tmp_path / "out")
    known = shards.prepare(lambda: corpus.documents(texts), tokens, "x")
    assert (found.read(0, len(found)) == known.read(0, len(known))).all()
    assert found.manifest.documents == known.manifest.documents
    assert found.manifest.utf8_bytes == known.manifest.utf8_bytes


def test_a_killed_worker_goes_on_where_it_was(texts, tokens, tmp_path, monkeypatch):
    out, write = tmp_path / "out", sharding._write
    calls = []

    def dies(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments[1])
        write(*arguments)

    monkeypatch.setattr(sharding, "_write", dies)
    with pytest.raises(KeyboardInterrupt):
        sharding.make(texts, tokens, out, megabytes=4)
    monkeypatch.setattr(sharding, "_write", lambda *given: (calls.append(given[1]), write(*given)))
    assert sharding.make(texts, tokens, out, megabytes=4)
    assert calls == sorted(set(calls)), "nothing is made twice"
    before = content(out)
    assert sharding.make(texts, tokens, out, megabytes=4) and content(out) == before
    sharding.make(texts, tokens, tmp_path / "other", megabytes=4)
    assert content(tmp_path / "other") == before


def test_a_missing_part_is_named(texts, tokens, tmp_path):
    out = tmp_path / "out"
    assert not sharding.make(texts, tokens, out, Part(1, 3), megabytes=4)
    assert not sharding.make(texts, tokens, out, Part(3, 3), megabytes=4)
    with pytest.raises(DataError, match=r"missing, of part 2/3.*--part 2/3"):
        sharding.join(out)
    assert not (out / "shards.json").exists()
    assert sharding.make(texts, tokens, out, Part(2, 3), megabytes=4)
    assert sharding.join(out)["count"] > 5, "joining what is joined is allowed"


def test_parts_must_be_of_one_kind(texts, tokens, tmp_path):
    out, other = tmp_path / "out", tokens.with_specials(["<new>"])
    sharding.make(texts, tokens, out, Part(1, 2), megabytes=4)
    for given in (
        {"tokenizer": other},
        {"reading": Reading(clean=("html",))},
        {"megabytes": 5},
        {"paths": texts[:2]},
    ):
        usual = {"paths": texts, "tokenizer": tokens, "out": out, "megabytes": 4}
        with pytest.raises(UsageError, match="another text, tokenizer or settings"):
            sharding.make(**{**usual, "part": Part(2, 2), **given})
    with pytest.raises(UsageError, match="begun in 2 parts"):
        sharding.make(texts, tokens, out, Part(2, 3), megabytes=4)
    same_size = texts[1].read_text().swapcase()
    texts[1].write_text(same_size)
    with pytest.raises(UsageError, match="another text, tokenizer or settings"):
        sharding.make(texts, tokens, out, Part(2, 2), megabytes=4)
    texts[1].write_text(same_size.swapcase())
    # Parts that were made on other disks and copied together.
    away = tmp_path / "away"
    sharding.make(texts, other, away, Part(2, 2), megabytes=4)
    for path in away.rglob("*"):
        if path.is_file() and path.name != "plan.json" and path.parent.name != "tokenizer":
            shutil.copy(path, out / path.relative_to(away))
    with pytest.raises(DataError, match="part 2/2 was made with another tokenizer"):
        sharding.join(out)
    assert not (out / "shards.json").exists()


def test_parts_that_were_made_on_other_disks_are_joined(texts, tokens, tmp_path):
    out = tmp_path / "out"
    sharding.make(texts, tokens, out, Part(1, 2), megabytes=4)
    sharding.make(texts, tokens, tmp_path / "away", Part(2, 2), megabytes=4)
    shutil.copytree(tmp_path / "away", out, dirs_exist_ok=True)
    sharding.join(out)
    sharding.make(texts, tokens, tmp_path / "one", megabytes=4)
    assert content(out) == content(tmp_path / "one")


def test_a_shard_that_was_cut_short_is_named(texts, tokens, tmp_path):
    out = tmp_path / "out"
    sharding.make(texts, tokens, out, Part(1, 2), megabytes=4)
    path = out / "tokens-00002.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"tokens-00002.bin: is missing or cut short"):
        sharding.make(texts, tokens, out, Part(2, 2), megabytes=4)


@pytest.mark.parametrize("text", ["0/2", "3/2", "-1/2", "2", "a/b", "1/0", "/"])
def test_bad_parts(text):
    with pytest.raises(UsageError, match="--part"):
        Part.of(text)


def test_other_folders_are_left_alone(texts, tokens, tmp_path):
    with pytest.raises(UsageError, match="not an empty folder"):
        sharding.make(texts, tokens, tmp_path, megabytes=4)
    with pytest.raises(UsageError, match="no parts"):
        sharding.join(tmp_path)


def test_bad_text_is_not_noted(tokens, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good words\n" * 1_000 + b"b\xffd\n")
    with pytest.raises(DataError, match="UTF-8"):
        sharding.make([path], tokens, tmp_path / "out", megabytes=4)
    left = content(tmp_path / "out")
    assert "shards.json" not in left and not any("staging" in name for name in left)


def test_a_worker_that_is_overtaken(texts, tokens, tmp_path, monkeypatch):
    """Another begins, or ends, while this one does: both find the same corpus made."""
    overtaken = []

    def once(module, name, other):
        """Let ``other`` happen just before the function of that name is first called."""
        inner = getattr(module, name)

        def outer(*arguments, **named):
            monkeypatch.setattr(module, name, inner)
            overtaken.append(name)
            other()
            return inner(*arguments, **named)

        monkeypatch.setattr(module, name, outer)

    def make(out, number):
        return sharding.make(texts, tokens, tmp_path / out, Part(number, 2), megabytes=4)

    sharding.make(texts, tokens, tmp_path / "one", megabytes=4)
    once(storage, "write_manifest", lambda: make("begun", 1))
    assert make("begun", 2)
    assert content(tmp_path / "begun") == content(tmp_path / "one")
    join = sharding.join
    steps = [(sharding, "_begin"), (sharding, "_read"), (sharding, "join")]
    for module, name in [*steps, (storage, "write"), (storage, "remove")]:
        with monkeypatch.context() as patched:
            patched.setattr(sharding, "join", lambda out: None)
            assert not make(name, 1) and not make(name, 2)
        once(module, name, lambda name=name: join(tmp_path / name))
        assert make(name, 2)
        assert content(tmp_path / name) == content(tmp_path / "one"), name
    assert len(overtaken) == 6


def test_workers_at_the_same_time(tokens, tmp_path):
    """Real processes, none of which knows of the others."""
    text = tmp_path / "text.txt"
    text.write_text(corpus_text(1_000, 5) * 20, "utf-8")
    (tmp_path / "words").mkdir()
    tokens.save(tmp_path / "words")
    command = [sys.executable, "-m", "headswap", "shards", str(text), "--megabytes", "1"]
    command += ["--tokenizer", str(tmp_path / "words"), "--out"]
    parts = [f"{number}/5" for number in range(1, 6)]
    running = [
        subprocess.Popen(
            [*command, str(tmp_path / "many"), "--part", part],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in parts
    ]
    told = [process.communicate()[1] for process in running]
    assert not any(process.returncode for process in running), told
    assert not subprocess.run([*command, str(tmp_path / "one")], capture_output=True).returncode
    assert content(tmp_path / "many") == content(tmp_path / "one")
    assert len(list((tmp_path / "one").glob("tokens-*.bin"))) > 2


def test_the_command(texts, tokens, tmp_path, capsys):
    tokens.save(tmp_path)
    (tmp_path / "sentencepiece.model").rename(tmp_path / "words.model")

    def run(*arguments):
        try:
            cli.main(["shards", *map(str, arguments)])
        except SystemExit as stop:
            return stop.code, capsys.readouterr()
        raise AssertionError

    given = [*texts, "--tokenizer", tmp_path / "words.model", "--out", tmp_path / "out"]
    for number in (1, 2):
        code, told = run(*given, "--part", f"{number}/2", "--megabytes", 4)
        assert not code and told.out.strip() == str(tmp_path / "out"), told.err
    found = json.loads((tmp_path / "out/shards.json").read_text())
    assert found["tokens"] == sum(shard["tokens"] for shard in found["shards"])
    assert not run("--join", tmp_path / "out")[0]
    joined = ("--join", tmp_path / "out", "--out", "x")
    for arguments in ((*texts,), joined, (*given, "--part=3/2")):
        code, told = run(*arguments)
        assert code == 2 and told.err.startswith("headswap: ") and told.err.count("\n") == 1


def test_what_training_does_not_read_as_text_is_not_sharded(tokens, tmp_path):
    path = tmp_path / "table.json"
    path.write_text('[{"text": "a"}]')
    with pytest.raises(UsageError, match="not read as text"):
        sharding.make([path], tokens, tmp_path / "out")
