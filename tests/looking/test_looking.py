"""What is shown is what was used."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import STACKS
from headswap import api
from headswap.errors import UsageError
from headswap.looking.attention import attention, rollout, without_head
from headswap.looking.attribution import CLOSE, attribute
from headswap.looking.candidates import candidates
from headswap.looking.context import _where, meanings
from headswap.looking.masks import masks, passes, proof
from headswap.looking.picture import attentions, lines, packed_bits, packed_weights, picture
from headswap.looking.positions import positions
from headswap.looking.reading import read
from headswap.nn.model import new_model
from headswap.objectives import Causal, Classify, Masked, Translate
from headswap.report import look
from headswap.use import Trained

TEXT = "the good film was long"


def trained(objective, tokens, stack=STACKS["modern"], scale=0.3):
    """A run in memory, with weights wild enough that nothing is uniform."""
    tokens = tokens.with_specials(objective.specials)
    model = new_model(stack, tokens.size, objective.heads(stack, tokens.size), seed=0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, scale, generator=draw)
    made = Trained.__new__(Trained)
    reading = SimpleNamespace(cleaned=lambda text: text)
    made.settings = SimpleNamespace(
        objective=objective, model=stack, data=SimpleNamespace(reading=reading)
    )
    made.model, made.tokens = model.eval(), tokens
    made.run = SimpleNamespace(path=SimpleNamespace(name="run"))
    return made


def runs(tokens):
    modern, classic = STACKS["modern"], STACKS["classic"]
    yield trained(Causal(), tokens, modern)
    yield trained(Causal(), tokens, classic)
    yield trained(Masked(), tokens, modern)
    yield trained(Classify(("bad", "good")), tokens, modern)
    yield trained(Translate(), tokens, replace(classic, decoder_layers=2))


@pytest.mark.parametrize("which", range(5))
def test_weights_times_values_are_what_the_layer_gave(which, tokens):
    run = list(runs(tokens))[which]
    seen = read(run, TEXT)
    shown = attention(run, seen)
    backbone = run.model.backbone
    stacks = (
        {"text": backbone}
        if which < 4
        else {"source": backbone.encoder, "target": backbone.decoder, "cross": backbone.decoder}
    )
    assert {one.name for one in shown} == set(stacks)
    for one in shown:
        for layer, weights_HTS in zip(stacks[one.name].layers, one.layers, strict=True):
            assert np.allclose(weights_HTS.sum(-1), 1, atol=1e-5)
            module = layer.cross if one.name == "cross" else layer.attention
            caught = {}
            hook = module.register_forward_hook(
                lambda m, given, result, c=caught: c.update(given=given, result=result)
            )
            with torch.no_grad():
                backbone(seen.inputs)
            hook.remove()
            if one.name == "cross":
                values = caught["given"][1].layer(module.layer)[1]
            else:
                values = module.project(caught["given"][0], caught["given"][2])[2]
            mixed = torch.from_numpy(weights_HTS)[None] @ values
            rebuilt = module.out(mixed.transpose(1, 2).flatten(2))
            assert torch.allclose(rebuilt, caught["result"], atol=1e-5)
            if one.causal:
                assert np.triu(weights_HTS, 1).max() == 0


def test_rollout_rows_are_shares(tokens):
    run = next(runs(tokens))
    (one,) = attention(run, read(run, TEXT))
    flow = rollout(one.layers)
    assert np.allclose(flow.sum(-1), 1, atol=1e-5) and (flow >= 0).all()
    assert np.triu(flow, 1).max() == 0


def test_a_head_switched_off_adds_nothing_and_comes_back(tokens):
    run = next(runs(tokens))
    seen, layer = read(run, TEXT), run.model.backbone.layers[0]
    with torch.no_grad():
        before = run.model.backbone(seen.inputs)
        with without_head(layer.attention, 0):
            without = run.model.backbone(seen.inputs)
        width = run.model.backbone.stack.width // 2
        layer.attention.out.weight[:, :width].mul_(0)
        by_hand = run.model.backbone(seen.inputs)
    assert not torch.allclose(before, without)
    assert torch.allclose(without, by_hand, atol=1e-6)


@pytest.mark.parametrize("pool", ["mean", "last", "first"])
def test_attributions_add_up_to_the_difference_of_scores(pool, tokens):
    run = trained(Classify(("bad", "good"), pool=pool), tokens, scale=0.15)
    found = attribute(run, read(run, TEXT))
    assert len(found.weights) == len(found.pieces)
    assert sum(found.weights) == pytest.approx(found.score - found.baseline, rel=2 * CLOSE)
    other = attribute(run, read(run, TEXT), "bad" if found.label == "good" else "good")
    assert other.label != found.label
    with pytest.raises(UsageError, match="no label"):
        attribute(run, read(run, TEXT), "strange")


def test_masks_forbid_and_the_proof_holds(tokens):
    causal, _, masked, *_, translator = runs(tokens)
    assert proof(causal, read(causal, TEXT)).holds
    assert not all(proof(causal, read(causal, TEXT)).allowed)
    assert all(proof(masked, read(masked, TEXT)).allowed)
    by_name = {mask.name: mask for mask in masks(causal, read(causal, TEXT))}
    assert (by_name["alone"].allowed_TS == np.tri(len(by_name["alone"].queries))).all()
    half = len(by_name["prefix"].queries) // 2
    assert by_name["prefix"].allowed_TS[:, :half].all()
    assert (by_name["prefix"].allowed_TS[:, half:] == by_name["alone"].allowed_TS[:, half:]).all()
    second = by_name["packed"].queries.index("<s>", 1)
    assert not by_name["packed"].allowed_TS[second:, :second].any()
    assert masks(translator, read(translator, TEXT))[-1].allowed_TS.all()


def test_one_masked_pass_scores_what_many_do(tokens):
    causal, _, masked, _, translator = runs(tokens)
    for run in (causal, translator):
        both = passes(run, read(run, TEXT))
        assert both.loss_at_once == pytest.approx(both.loss_one_by_one, rel=1e-4)
        assert both.positions == len(read(run, TEXT).ids) - 1
    assert passes(masked, read(masked, TEXT)) is None


def test_a_broken_mask_would_be_noticed(tokens):
    run = next(runs(tokens))
    seen = read(run, TEXT)
    held = proof(run, seen)
    moved = list(held.moved)
    moved[0] = 0.5
    assert not replace(held, moved=moved).holds


def test_candidates_are_chances_in_order(tokens):
    for run in [list(runs(tokens))[i] for i in (0, 2, 4)]:
        for place in candidates(run, read(run, TEXT)):
            chances = [candidate.probability for candidate in place.likeliest]
            assert chances == sorted(chances, reverse=True) and sum(chances) <= 1 + 1e-5
            assert 0 <= place.chance <= 1


def test_the_causal_candidates_are_the_model_s_own(tokens):
    run = next(runs(tokens))
    seen = read(run, TEXT)
    with torch.no_grad():
        logits = run.model.heads["token"](run.model.backbone(seen.inputs)[0])
    chances = logits.softmax(-1)
    for index, place in enumerate(candidates(run, seen)):
        assert place.chance == pytest.approx(float(chances[index, seen.ids[index + 1]]), rel=1e-4)


def test_a_word_is_one_vector_in_the_embedding_and_several_afterwards(tokens):
    run = list(runs(tokens))[2]
    found = meanings(run, "film", ["the good film", "a film was long", "the film"])
    assert found.by_layer[0] == pytest.approx(0, abs=1e-6)
    assert found.by_layer[-1] > 1e-3 and len(found.by_layer) == 1 + run.settings.model.layers
    with pytest.raises(UsageError, match="is not in"):
        meanings(run, "zebra", ["the good film", "the film"])
    with pytest.raises(UsageError, match="two sentences"):
        meanings(run, "film", ["the film"])


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary", "none"])
def test_positions_are_alike_at_no_distance(kind, tokens):
    found = positions(trained(Causal(), tokens, replace(STACKS["modern"], positions=kind)))
    assert found.kind == kind
    if kind != "none":
        assert found.alike[0] == pytest.approx(1, abs=1e-5)
        assert max(found.alike) == pytest.approx(found.alike[0], abs=1e-5)


@pytest.mark.parametrize("which", range(5))
def test_the_page_and_the_pictures_are_made(which, tokens):
    run = list(runs(tokens))[which]
    found = picture(run, TEXT, word="film", sentences=["the film", "a good film"])
    page = look.page(found)
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert list(lines(found))
    for _, drawn in look.pictures(found):
        assert drawn.startswith("<svg")


def test_without_the_chart_library_the_look_is_shown_all_the_same(
    tokens, tmp_path, monkeypatch, capsys
):
    from headswap.cli import looking as command

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    found = picture(trained(Causal(), tokens, replace(STACKS["modern"], length=64)), TEXT)
    command._show(found, tmp_path / "look.html", tmp_path / "pictures", False)
    shown = capsys.readouterr()
    assert shown.out and "charts were not drawn: pip install vl-convert-python" in shown.err
    assert (tmp_path / "look.html").exists() and not (tmp_path / "pictures").exists()


def test_hostile_text_stays_text(tokens):
    run = trained(Causal(), tokens, replace(STACKS["modern"], length=64))
    page = look.page(picture(run, "</script><script>alert(1)</script> film"))
    assert "<script>alert" not in page


def test_large_models_keep_what_fits_and_say_so():
    from headswap.looking.attention import Seen

    layers = [np.full((12, 512, 512), 1 / 512, dtype=np.float32) for _ in range(12)]
    (row,) = attentions([Seen("text", True, ["a"] * 512, ["a"] * 512, layers)])
    size = sum(len(head) for layer in row["weights"] for head in layer)
    assert size < 4_000_000 and row["of"] == [12, 12]
    assert len(row["layers"]) < 12 or row["heads"] < 12
    course = [np.full((2, 512, 512), 1 / 512, dtype=np.float32) for _ in range(4)]
    (row,) = attentions([Seen("text", True, ["a"] * 512, ["a"] * 512, course)])
    assert row["layers"] == [0, 1, 2, 3] and row["heads"] == 2


def test_packing_keeps_weights_to_a_hundredth():
    import base64

    weights = np.random.default_rng(0).dirichlet(np.ones(9), 9)
    values = np.frombuffer(base64.b64decode(packed_weights(weights)), np.uint8) / 255
    assert np.abs(values.reshape(9, 9) ** 2 - weights).max() < 0.01
    bits = weights > 0.1
    again = np.unpackbits(np.frombuffer(base64.b64decode(packed_bits(bits)), np.uint8))[:81]
    assert (again.reshape(9, 9) == bits).all()


def test_bad_input_is_one_clear_line(tokens):
    run = next(runs(tokens))
    with pytest.raises(UsageError, match="empty"):
        read(run, "  ")
    with pytest.raises(UsageError, match="tokens and the model reads"):
        read(run, "film " * 500)
    with pytest.raises(UsageError, match="only a translator"):
        read(run, "film", "Film")
    with pytest.raises(UsageError, match="has no labels"):
        attribute(run, read(run, TEXT))
    lstm = trained(Causal(), tokens, replace(STACKS["modern"], mixer="lstm"))
    with pytest.raises(UsageError, match="no attention to show"):
        attention(lstm, read(lstm, TEXT))


def test_a_word_is_found_where_it_stands_alone():
    """Not where it is part of a longer one, and without the mark of the beginning."""
    trained = api.load("english-small", device="cpu")

    def pieces(word, sentence):
        seen = read(trained, sentence)
        return "".join(trained.tokens.pieces([seen.ids[i] for i in _where(trained, word, seen)]))

    assert pieces("bank", "Bank loans are expensive.").strip("▁·") == "bank"
    seen = read(trained, "The carpet and the pet were there.")
    (place,) = _where(trained, "pet", seen)
    assert trained.tokens.decode(seen.ids[: place + 1]).endswith("the pet")
    assert _where(trained, "rest", read(trained, "The forest and the interest.")) == []
