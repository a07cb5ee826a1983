"""A translator from files to translations, from the command line and from Python."""

from __future__ import annotations

import html
import json
import random
import shutil
from itertools import product

import pytest

import headswap as api
from headswap import settings
from headswap.decoding.beam import Beam
from headswap.decoding.translation import Search
from headswap.errors import DataError, HeadswapError, UsageError
from headswap.looking import attention
from headswap.run import Run

WORDS = {"one": "un", "two": "deux", "three": "trois", "four": "quatre", "five": "cinq"}
SMALL = [
    "model.width=32", "model.heads=2", "model.layers=1", "model.decoder_layers=1",
    "model.feedforward=64", "model.length=32", "model.dropout=0.0", "tokenizer.vocabulary=290",
    "train.batch_tokens=400", "train.lr=0.01", "train.evaluate_every=150", "train.average_last=2",
    "train.warmup=0.1", "translate.label_smoothing=0.0", "train.schedule=cosine",
    "model.positions=learned",
]  # fmt: skip


def pairs(count, seed=0):
    """Words said backwards in another language."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = draw.choices(list(WORDS), k=draw.randint(1, 5))
        found.append((" ".join(words), " ".join(WORDS[word] for word in reversed(words))))
    return found


def write(path, rows):
    path.write_text("".join(f"{one}\t{two}\n" for one, two in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translate")
    train, test = write(folder / "train.tsv", pairs(800)), write(folder / "test.tsv", pairs(60, 1))
    model = api.train(
        "translate",
        train,
        test=test,
        out=folder / "run",
        recipe="tiny-translate",
        changes=[*SMALL, "train.steps=700"],
        device="cpu",
    )
    return model, folder


def test_it_learns_to_translate(trained):
    model, folder = trained
    found = model.evaluate([folder / "test.tsv"])
    assert found["exact_match"] > 0.8 and found["bleu"] > 80
    assert found["signature"].startswith("nrefs:1")
    scores = model.run.scores()
    assert scores["test"]["bleu"] == pytest.approx(found["bleu"])
    lines = (model.run.path / "predictions/test.jsonl").read_text().splitlines()
    assert len(lines) == 60 and {"source", "target", "translation"} <= set(json.loads(lines[0]))
    valid = [line for line in model.run.metrics() if line["split"] == "valid"]
    assert valid[-1]["bleu"] > valid[0]["bleu"]


def test_strange_sentences_are_no_trouble(trained):
    model, _ = trained
    texts = ["one two", "", "   ", "Ωμέγα 漢字 🙂", "one " * 200, "two one\tthree"]
    found = list(model.translate(texts))
    assert len(found) == len(texts)
    assert found[0][0].text == "deux un"
    assert found[1][0].text == found[2][0].text == ""
    again = list(model.translate(texts[::-1]))[::-1]
    assert [some[0].text for some in found] == [some[0].text for some in again]


def test_best_few_with_scores_and_alignment(trained):
    model, _ = trained
    (found,) = model.translate(["four five"], Search(Beam(3)), aligned=True)
    assert len(found) == 3 and [one.score for one in found] == sorted(
        (one.score for one in found), reverse=True
    )
    assert found[0].alignment and len(found[0].alignment) >= 2


def main(*arguments):
    from headswap.cli import main

    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_from_the_command_line(trained, capsys, tmp_path):
    model, folder = trained
    source = tmp_path / "in.txt"
    source.write_text("one two\n\nthree\n")
    assert not main("translate", model.run.path, source, "--device", "cpu")
    assert capsys.readouterr().out.splitlines() == ["deux un", "", "trois"]
    out = tmp_path / "out.txt"
    assert not main("translate", model.run.path, source, "--out", out, "--beam", 1)
    assert out.read_text() == "deux un\n\ntrois\n"
    assert not main("translate", model.run.path, "--text", "two", "--best", 2, "--align")
    assert capsys.readouterr().out.count("←") >= 2
    assert main("translate", model.run.path, "--text", "x", "--best", 9) == 2
    capsys.readouterr()
    assert not main("evaluate", model.run.path, folder / "test.tsv", "--device", "cpu")
    told = capsys.readouterr().out
    assert "bleu" in told and "signature" in told
    long = " ".join(["one two three"] * 20)
    assert not main("translate", model.run.path, "--text", long, "--text", "one", "--beam", 1)
    assert "the end of 1 sentence was not read: the model takes 30" in capsys.readouterr().err


def test_heads_are_weighed_on_as_much_of_a_pair_as_the_model_reads(trained, tmp_path):
    """With learned positions there are no further ones."""
    model, _ = trained
    long = write(tmp_path / "long.tsv", [("one two " * 30, "deux un " * 30), ("one", "un")])
    examples, _ = attention._examples(model, [long])
    assert max(len(pair.source) for pair in examples) <= 30
    assert max(len(pair.target) for pair in examples) <= 30


def test_both_directions_in_one_model(tmp_path):
    train = write(tmp_path / "train.tsv", pairs(800))
    changes = [*SMALL, "train.steps=1200", "translate.both=true", "train.average_last=1"]
    model = api.train(
        "translate", train, out=tmp_path / "run", recipe="tiny-translate", changes=changes,
        device="cpu",
    )  # fmt: skip
    assert next(iter(model.translate(["one two"])))[0].text == "deux un"
    assert next(iter(model.translate(["deux un"], backwards=True)))[0].text == "one two"


def test_a_base_warms_up_the_encoder(tmp_path, corpus_file):
    shape = ["model.width=32", "model.heads=2", "model.layers=1", "model.length=32"]
    api.train(
        "masked", corpus_file, out=tmp_path / "base", device="cpu",
        changes=[*shape, "tokenizer.vocabulary=330", "train.steps=3"],
    )  # fmt: skip
    train = write(tmp_path / "train.tsv", pairs(60))
    model = api.train(
        "translate", train, base=tmp_path / "base", out=tmp_path / "run", recipe="tiny-translate",
        changes=["train.steps=2", "model.decoder_layers=2"], device="cpu",
    )  # fmt: skip
    assert model.settings.model.decoder_layers == 2 and model.settings.model.layers == 1
    assert model.settings.model.dropout == 0.2, "the recipe's, not the base's"
    assert list(model.translate(["one"]))


def test_what_a_base_bought_is_a_page(tmp_path, corpus_file, capsys):
    shape = ["model.width=32", "model.heads=2", "model.layers=1", "model.length=32"]
    shape += ["model.feedforward=64"]
    base = tmp_path / "base"
    api.train(
        "masked", corpus_file, out=base, device="cpu",
        changes=[*shape, "tokenizer.vocabulary=330", "train.steps=3"],
    )  # fmt: skip
    test = write(tmp_path / "test.tsv", pairs(20, 1))
    runs = []
    for size, arm, seed in product((40, 80), ("scratch", "pretrained"), (0, 1)):
        out = tmp_path / f"{arm}-{size}-{seed}"
        changes = ["train.steps=4", "train.evaluate_every=2", f"train.seed={seed}"]
        changes += ["model.decoder_layers=1"]
        if arm == "scratch":
            changes += [*shape, f"tokenizer.model={base / 'tokenizer'}"]
        api.train(
            "translate", write(tmp_path / f"{size}.tsv", pairs(size)), test=test, out=out,
            base=base if arm == "pretrained" else None, recipe="tiny-translate",
            changes=changes, device="cpu",
        )  # fmt: skip
        runs.append(out)
    page = tmp_path / "page.html"
    assert not main("compare", *runs, "--html", page, "--json")
    found = json.loads(capsys.readouterr().out)
    assert {(row["name"], row["pairs"]) for row in found["arms"]} == set(
        product(("scratch", "from base"), found["sizes"])
    )
    assert all(row["seeds"] == 2 for row in found["differences"])
    assert found["verdict"] in html.unescape(page.read_text())
    assert main("compare", *runs[:2], "--html", page), "there is nothing with a base among them"
    capsys.readouterr()
    other = tmp_path / "other"
    shutil.copytree(runs[0], other)  # as if it differed in anything but rate and seed
    assert main("compare", *runs, other, "--html", page) == 2
    assert "of one arm, rate and seed" in capsys.readouterr().err
    wide = tmp_path / "wide"
    shutil.copytree(runs[0], wide)
    config = (wide / "config.toml").read_text()
    (wide / "config.toml").write_text(config.replace("width = 32", "width = 64"))
    Run(wide).finish()
    assert main("compare", wide, *runs[1:], "--html", page) == 2
    assert "differ in shape (model.width: 64 and 32)" in capsys.readouterr().err
    assert not main("compare", runs[0], runs[6], "--html", page)  # 40 pairs and 80
    assert "No number of pairs has runs both" in capsys.readouterr().out


def test_minutes_average_nothing_and_say_so(tmp_path, capsys):
    train = write(tmp_path / "train.tsv", pairs(60))
    options = ["--recipe", "tiny-translate", "--minutes", "0.01", "--out", tmp_path / "run"]
    for change in SMALL:
        options += ["--set", change]
    assert not main("train", "translate", train, *options)
    assert "nothing is averaged" in capsys.readouterr().err


def test_a_missing_tokenizer_is_found_first(tmp_path):
    train = write(tmp_path / "train.tsv", pairs(60))
    with pytest.raises(HeadswapError, match="cannot read"):
        api.train(
            "translate", train, out=tmp_path / "run", recipe="tiny-translate",
            changes=["tokenizer.model=nowhere.model"],
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_refusals(trained, tmp_path, corpus_file):
    model, _ = trained
    with pytest.raises(UsageError, match="one way only"):
        list(model.translate(["un"], backwards=True))
    with pytest.raises(UsageError, match="cannot generate"):
        model.generate(["x"])
    with pytest.raises(UsageError, match="needs a decoder"):
        api.train("translate", write(tmp_path / "a.tsv", pairs(30)), out=tmp_path / "x")
    one, two = tmp_path / "a.en", tmp_path / "a.de"
    one.write_text("a\nb\n")
    two.write_text("x\n")
    with pytest.raises(DataError, match="ends after 1 line and"):
        api.train("translate", [one, two], out=tmp_path / "x", recipe="tiny-translate")
    assert not (tmp_path / "x").exists()
    long = write(tmp_path / "long.tsv", [*pairs(40), ("one " * 500, "un " * 500)])
    made = api.train(
        "translate", long, out=tmp_path / "y", recipe="tiny-translate",
        changes=[*SMALL, "train.steps=1"], device="cpu",
    )  # fmt: skip
    assert made.run.finished


def test_two_translators_are_compared(trained, tmp_path, capsys):
    model, folder = trained
    other = api.train(
        "translate", folder / "train.tsv", test=folder / "test.tsv", out=tmp_path / "weak",
        recipe="tiny-translate", changes=[*SMALL, "train.steps=150"], device="cpu",
    )  # fmt: skip
    assert main("compare", other.run.path, model.run.path) == 2
    assert "differ in budget" in capsys.readouterr().err
    assert not main("compare", other.run.path, model.run.path, "--why", "to see more steps")
    told = capsys.readouterr().out
    assert "run - weak: +" in told and "nrefs:1" in told
    assert not main("compare", other.run.path, other.run.path, "--json")
    (same,) = json.loads(capsys.readouterr().out)["differences"]
    assert same["gain"] == same["low"] == same["high"] == 0


def test_what_translate_would_ignore_is_refused(trained, capsys):
    from headswap.cli import main

    model, folder = trained
    ask = ["translate", str(model.run.path), "--text", "one two", "--device", "cpu"]
    for more, says in (
        (["--best", "2", "--out", str(folder / "o.txt")], "a .jsonl file"),
        (["--align", "--out", str(folder / "o.txt")], "a .jsonl file"),
        (["--out", str(folder / "o.csv")], ".txt or .jsonl"),
        (["--beam", "1", "--top-k", "3"], "need a temperature"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*ask, *more])
        assert stopped.value.code == 2 and says in capsys.readouterr().err
    assert not list(folder.glob("o.*"))
    table = folder / "named.tsv"
    table.write_text("target\tsource\nx\tone two\n", "utf-8")
    for words in (["translate", str(model.run.path), str(table), "--device", "cpu"], ask):
        with pytest.raises(SystemExit, match="0"):
            main(words)
    one, two = capsys.readouterr().out.splitlines()
    assert one == two


def test_a_batch_of_pairs_takes_the_place_of_the_recipes_tokens():
    made = settings.resolve("translate", "tiny-translate", [{"train": {"batch": 7}}])
    assert made.train.batch == 7 and made.train.batch_tokens is None
    both = [{"train": {"batch": 7}}, {"train": {"batch_tokens": 100}}]
    with pytest.raises(UsageError, match="two sizes of a batch at once"):
        settings.resolve("translate", "tiny-translate", both)


def test_columns_that_a_translator_does_not_look_at_are_refused(tmp_path):
    train = write(tmp_path / "train.tsv", pairs(60))
    with pytest.raises(UsageError, match="are named source and target"):
        api.train(
            "translate", train, out=tmp_path / "run", recipe="tiny-translate",
            changes=["data.text_column=nosuch"],
        )  # fmt: skip
