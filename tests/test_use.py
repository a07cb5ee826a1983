"""Finished runs in use: masks, vectors, minimal pairs, vocabularies that grow."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from conftest import causal_model, corpus_text, write_jsonl
from headswap import api, scoring, use
from headswap.decoding.strategies import Sampling
from headswap.errors import UsageError
from headswap.nn.model import grow_vocabulary
from headswap.nn.visibility import Inputs, Visibility
from headswap.progress import Silent

SMALL = [
    {"model": {"width": 32, "layers": 2, "heads": 2, "feedforward": 48, "length": 32}},
    {"tokenizer": {"vocabulary": 340}, "train": {"steps": 150, "lr": 0.01, "batch": 16}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("use")


@pytest.fixture(scope="module")
def corpus(folder):
    path = folder / "corpus.txt"
    path.write_text(corpus_text(300), "utf-8")
    return path


@pytest.fixture(scope="module")
def causal(folder, corpus):
    return api.train("causal", corpus, out=folder / "causal", changes=SMALL)


@pytest.fixture(scope="module")
def hybrid(folder, corpus):
    return api.train("hybrid", corpus, out=folder / "hybrid", changes=SMALL)


def test_a_hybrid_does_both(hybrid, corpus):
    assert hybrid.generate(["the book"], 4)[0].startswith("the book")
    (candidates,) = hybrid.fill("the <mask> was very superb", 3)
    assert len(candidates) == 3
    assert candidates[0].probability >= candidates[1].probability >= candidates[2].probability
    assert len(hybrid.fill("<mask> book <mask>")) == 2
    figures = hybrid.evaluate([corpus])
    assert {"loss_causal", "bits_per_byte", "loss_masked"} <= figures.keys()


def test_many_prompts_are_continued_a_few_at_a_time(causal, monkeypatch):
    prompts = [f"the book {'was ' * (i % 3)}" for i in range(7)]
    sampling = Sampling(temperature=0.9, seed=4)
    together = causal.generate(prompts, 5, sampling)
    monkeypatch.setattr(use, "BATCH", 3)
    assert causal.generate(prompts, 5, sampling) == together


def test_what_a_run_never_learnt_is_refused(causal, hybrid):
    with pytest.raises(UsageError, match="a causal run cannot fill masks"):
        causal.fill("a <mask>")
    with pytest.raises(UsageError, match="no <mask> in the text"):
        hybrid.fill("no mask")
    with pytest.raises(UsageError, match="tokens long"):
        hybrid.fill("very " * 100 + "<mask>")


def test_causal_scores_are_the_chain_rule(causal):
    rows = causal.tokens.encode(["the book was superb.", "a", "hero and the page"])
    found = scoring.causal_scores(causal.model, causal.tokens, rows)
    for ids, score in zip(rows, found, strict=True):
        whole = torch.tensor([[causal.tokens.bos, *ids, causal.tokens.eos]])
        with torch.no_grad():
            hidden = causal.model.backbone(Inputs(whole[:, :-1], Visibility("causal")))
            logs = causal.model.heads["token"](hidden).log_softmax(-1)[0]
        expected = sum(float(logs[i, token]) for i, token in enumerate(whole[0, 1:]))
        assert abs(score - expected) < 1e-3


def test_masked_scores_hide_each_token_once(hybrid):
    rows = hybrid.tokens.encode(["the book was superb.", "a hero"])
    found = scoring.masked_scores(hybrid.model, hybrid.tokens, rows)
    for ids, score in zip(rows, found, strict=True):
        expected = 0.0
        for place in range(len(ids)):
            shown = ids.copy()
            shown[place] = hybrid.tokens.special("<mask>")
            whole = torch.tensor([[hybrid.tokens.bos, *shown, hybrid.tokens.eos]])
            with torch.no_grad():
                hidden = hybrid.model.backbone(Inputs(whole, Visibility("full")))
                logs = hybrid.model.heads["token"](hidden[0, place + 1]).log_softmax(-1)
            expected += float(logs[ids[place]])
        assert abs(score - expected) < 1e-3


def test_minimal_pairs(causal, hybrid, folder):
    words = "the book was superb and the hero is very moving".split()
    rows = [
        {
            "sentence_good": " ".join(words[i:] + words[:i]) + ".",
            "sentence_bad": "".join(reversed(" ".join(words[i:] + words[:i]))) + ".",
            "UID": f"group {i % 2}",
        }
        for i in range(10)
    ]
    path = write_jsonl(folder / "pairs.jsonl", rows)
    figures = causal.evaluate([path])
    assert figures["pairs"] == 10 and figures["accuracy_causal"] > 0.9
    assert set(figures["groups"]) == {"group 0", "group 1"}
    assert {"accuracy_causal", "accuracy_masked"} <= hybrid.evaluate([path]).keys()


def test_vectors(causal):
    texts = ["the book", "a very superb story with a hero", ""]
    vectors = list(causal.embed(texts))
    assert [vector.shape for vector in vectors] == [(32,)] * 3
    tokens = list(causal.embed_tokens(texts))
    assert [len(t.pieces) for t in tokens] == [len(t.vectors) for t in tokens]
    np.testing.assert_allclose(tokens[1].vectors.mean(0), vectors[1], rtol=1e-4, atol=1e-5)
    alone = next(iter(causal.embed(texts[1:2])))
    np.testing.assert_allclose(alone, vectors[1], rtol=1e-4, atol=1e-5)


def test_a_word_has_another_vector_in_another_context(causal):
    one, two = causal.embed_tokens(["superb book", "awful book"])
    assert one.pieces[-1] == two.pieces[-1]
    assert not np.allclose(one.vectors[-1], two.vectors[-1])


def test_a_grown_vocabulary_keeps_the_old_rows(stack):
    model = causal_model(stack, 40)
    grown = grow_vocabulary(model, 43, seed=1)
    old, new = model.tensors(), grown.tensors()
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert torch.equal(tensor, new[name][: len(tensor)])
    assert grown.backbone.vocabulary == 43


def test_a_base_without_a_mask_learns_one(causal, corpus, folder):
    """From a causal base whose tokenizer lacks the specials to a masked run."""
    pieces = folder / "dict.txt"
    tokens = causal.tokens
    names = [name for name in tokens.pieces(range(tokens.size)) if not name.startswith("<")]
    pieces.write_text("".join(f"{name} 1\n" for name in names), "utf-8")
    words = {
        "tokenizer": {
            "model": str(causal.run.path / "tokenizer" / "sentencepiece.model"),
            "pieces": str(pieces),
        }
    }
    few = {"train": {"steps": 3}}
    base = api.train("causal", corpus, out=folder / "course", changes=[*SMALL, words, few])
    assert base.tokens.special("<mask>") is None
    report = Silent()
    grown = api.train(
        "masked", corpus, base=base.run.path, out=folder / "grown", changes=[few], report=report
    )
    assert grown.tokens.size == base.tokens.size + 2
    assert any("vocabulary grew by <mask>, <sep>" in line for line in report.lines)
    assert any("the head included" in line for line in report.lines)


def test_cleaning_is_remembered_by_the_run(folder, reviews_file):
    changes = [*SMALL, {"data": {"clean": ["html"]}, "train": {"steps": 5}}]
    trained = api.train("classify", reviews_file, out=folder / "clean", changes=changes)
    dirty, clean = trained.predict(["<b>superb</b> &amp; lovely", " superb  & lovely"])
    assert dirty == clean


def test_mixing_corpora(folder, corpus):
    other = folder / "other.txt"
    other.write_text(corpus_text(60, seed=9), "utf-8")
    report = Silent()
    changes = [*SMALL, {"data": {"weights": [1.0, 3.0], "weights_end": [3.0, 1.0]}}]
    changes.append({"train": {"steps": 6}})
    api.train("masked", [corpus, other], out=folder / "mix", changes=changes, report=report)
    assert any("other.txt" in line and "75.0% of the reading" in line for line in report.lines)
    with pytest.raises(UsageError, match=r"1 data\.weights for 2 training files"):
        api.train(
            "masked", [corpus, other], out=folder / "no", changes=[{"data": {"weights": [1.0]}}]
        )
    with pytest.raises(UsageError, match="needs a budget in steps"):
        minutes = [SMALL[0], changes[-2], {"train": {"minutes": 1.0}}]
        api.train("masked", [corpus, other], out=folder / "m", changes=minutes)


def test_scores_are_json(hybrid, corpus):
    assert json.dumps(hybrid.evaluate([corpus]))


def test_no_text_has_no_scores_and_half_a_character_some(folder, reviews_file):
    changes = [*SMALL, "train.steps=2"]
    made = api.train("classify", reviews_file, out=folder / "none", changes=changes)
    assert made.logits([]).shape == (0, len(made.labels)) and not list(made.predict([]))
    assert len(list(made.predict(["\ud83d", "a book"]))) == 2
    with pytest.raises(UsageError, match="no file"):
        made.evaluate([])
    with pytest.raises(UsageError, match="two budgets"):
        api.plan("classify", reviews_file, changes=["train.steps=2", "train.epochs=1"])
    assert api.plan("classify", reviews_file, changes="train.steps=2").train.steps == 2


def test_one_text_at_a_time_is_filled(hybrid):
    with pytest.raises(UsageError, match="one text at a time"):
        hybrid.fill(["a <mask>", "b <mask>"])
    with pytest.raises(UsageError, match="0 candidates"):
        hybrid.fill("a <mask>", 0)


def test_one_text_is_not_read_letter_by_letter(causal, hybrid, corpus):
    assert causal.generate("the book", 3) == causal.generate(["the book"], 3)
    assert len(list(hybrid.embed("the book"))) == 1
    assert len(list(hybrid.embed_tokens("the book"))) == 1
    assert causal.evaluate(str(corpus)) == causal.evaluate([corpus])


def test_a_sign_after_a_mask_is_read_as_in_a_text():
    """Some tokenizers begin a text with a space, which does not stand before a comma."""
    trained = api.load("english-small", device="cpu")
    tokens = trained.tokens
    whole = tokens.encode(["what a film!"])[0].tolist()
    assert scoring._after_mask(tokens, "!") == whole[-1:]
    assert scoring._after_mask(tokens, " film!") == tokens.encode([" film!"])[0].tolist()
    assert scoring._after_mask(tokens, "") == []


def test_a_sign_before_a_mask_is_read_as_at_a_beginning():
    trained = api.load("english-small", device="cpu")
    seen = []
    backbone = trained.model.backbone
    handle = backbone.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].ids_BT[0].tolist())
    )
    trained.fill("(a <mask> film)", 1)
    handle.remove()
    first = trained.tokens.encode(["(a"])[0].tolist()
    assert seen[0][1 : 1 + len(first)] == first


def test_what_is_no_text_is_named(causal):
    with pytest.raises(UsageError, match="a text is wanted, not 7"):
        list(causal.embed(["the book", 7]))
