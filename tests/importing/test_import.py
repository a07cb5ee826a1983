"""Models from elsewhere compute here what they compute there, or are refused in one line."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import headswap as api
from conftest import corpus_text, review_rows, write_jsonl
from headswap import storage
from headswap.api import plan as planned
from headswap.errors import DataError, HeadswapError, ResourceError, StorageError, UsageError
from headswap.export.folder import export
from headswap.importing.base import open_base
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Causal, Classify
from headswap.objectives.base import Context
from headswap.objectives.language import HEAD
from headswap.progress import Silent
from headswap.text import tokenizer, tokenizer_json
from headswap.text.loader import Window
from headswap.use import Trained

transformers = pytest.importorskip("transformers")
from importing import foreign  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
LENGTHS = (3, 17, 1, 9)


def imported(folder, report=None) -> Trained:
    return Trained(open_base(f"hf:{folder}", report or Silent()), "cpu")


@torch.no_grad()
def both(ours: Trained, theirs, lengths=LENGTHS):
    """Hidden states and logits of a padded batch, ours and theirs, at the real positions."""
    draw = np.random.default_rng(0)
    rows = [draw.integers(5, 90, length) for length in lengths]
    ids = torch.full((len(rows), max(lengths)), ours.tokens.pad)
    for row, some in zip(ids, rows, strict=True):
        row[: len(some)] = torch.from_numpy(some)
    inside = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
    rule = ours.settings.objective.visibility
    seen = Visibility.of_lengths(rule, torch.tensor(lengths), ids.shape[1])
    hidden = ours.model.backbone(Inputs(ids, seen))[inside]
    said = theirs(input_ids=ids, attention_mask=inside.long(), output_hidden_states=True)
    expected = getattr(said, "last_hidden_state", said.hidden_states[-1])[inside]
    logits = getattr(said, "logits", None)
    if logits is not None:
        logits = logits[inside][:, : ours.tokens.size]
    return (hidden, ours.model.heads[HEAD](hidden)), (expected, logits)


@pytest.mark.parametrize("kind", foreign.MODELS)
def test_every_family_computes_the_same(kind, tmp_path):
    folder, theirs = foreign.save(kind, tmp_path / "model")
    report = Silent()
    ours = imported(folder, report)
    (hidden, logits), (expected, said) = both(ours, theirs)
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)
    whole = ours.run.provenance()["imported"]["head"]
    headless = ("bert", "bert alone", "roberta", "camembert", "eurobert grouped")
    assert whole == (kind not in headless)
    if whole and said is not None:
        torch.testing.assert_close(logits, said, atol=1e-5, rtol=0)
    causal = kind.split()[0] not in ("bert", "roberta", "camembert", "eurobert")
    assert ours.settings.objective.name == ("causal" if causal else "masked")
    assert ("masked head" in report.lines[0]) == (kind in ("bert", "roberta", "camembert"))


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "llama", "eurobert"])
def test_the_ids_are_those_of_transformers(kind, tmp_path):
    folder, _ = foreign.save(kind, tmp_path / "model")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = imported(folder)
    texts = [*foreign.TEXTS, *corpus_text(20, seed=5).split("\n")]
    reader = Classify(("", " "), sees=ours.settings.objective.visibility)
    for text, ids in zip(texts, ours.tokens.encode(texts), strict=True):
        assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"], text
        if kind != "gpt2":  # it puts nothing around a text
            (row,) = reader.rows(ids[:20], ours.settings.model, ours.tokens)
            whole = theirs(text, truncation=True, max_length=len(row))["input_ids"]
            assert row.tolist() == whole, text
    assert ours.tokens.pad not in (ours.tokens.bos, ours.tokens.eos, ours.tokens.unk)


@pytest.mark.parametrize(
    ("kind", "setting"), [("bert", "do_lower_case"), ("gpt2", "add_prefix_space")]
)
def test_settings_over_the_tokenizers_file(kind, setting, tmp_path):
    folder, _ = foreign.save(kind, tmp_path / "model")
    path = folder / "tokenizer_config.json"
    table = json.loads(path.read_text())
    named = {"bert": "BertTokenizer", "gpt2": "GPT2Tokenizer"}[kind]
    table |= {"tokenizer_class": named, setting: kind == "gpt2"}
    path.write_text(json.dumps(table))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    texts = foreign.TEXTS
    for text, ids in zip(texts, imported(folder).tokens.encode(texts), strict=True):
        assert ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"], text


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_specials_that_older_folders_take_for_granted(kind, tmp_path):
    folder, _ = foreign.save(kind, tmp_path / "model")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 40}')
    tokens = imported(folder).tokens
    names = ("<s>", "</s>", "<pad>", "<unk>", "<mask>", "<sep>")
    found = tokens.pieces([tokens.special(name) for name in names])
    bert = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "[SEP]"]
    assert found == (bert if kind == "bert" else [*names[:5], "</s>"]) and not tokens.appended


def test_parts_old_names_half_precision_and_the_licence(tmp_path):
    folder, theirs = foreign.save("bert", tmp_path / "model")
    whole = load_file(folder / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    (folder / "model.safetensors").unlink()
    places = {}
    for number, (name, tensor) in enumerate(whole.items()):
        for new, was in old.items():
            name = name.replace(new, was) if name.startswith("bert.") else name
        places[name] = f"model-{number % 2}.safetensors"
        part = folder / places[name]
        known = load_file(part) if part.exists() else {}
        save_file({**known, name: tensor.bfloat16()}, part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    report = Silent()
    ours = imported(folder, report)
    (hidden, _), (expected, _) = both(ours, theirs.bfloat16().float())
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)
    assert "licence: apache-2.0" in report.lines[0] and "not carried over: cls" in report.lines[0]


def test_an_import_is_made_once_and_again_when_damaged_or_changed(tmp_path):
    folder, _ = foreign.save("gpt2", tmp_path / "model")
    first, second = (open_base(f"hf:{folder}", Silent()) for _ in range(2))
    weights = first.path / "model.safetensors"
    assert first.path == second.path and first.path.name == "model"
    before = weights.stat().st_mtime_ns
    (first.path / "tokenizer/tokenizers.json").write_text("{}")
    assert storage.problem(first.path)
    open_base(f"hf:{folder}", Silent())
    assert storage.problem(first.path) is None and weights.stat().st_mtime_ns != before
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.wte.weight"][0] += 1
    save_file(tensors, folder / "model.safetensors")
    assert open_base(f"hf:{folder}", Silent()).path != first.path


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("causal", ["model.bias=true"]),
        ("causal", ["model.qk_norm=true", "model.tied=true"]),
        ("masked", []),
    ],
)
def test_an_exported_run_comes_back_the_same(objective, changes, tmp_path):
    text = tmp_path / "corpus.txt"
    text.write_text(corpus_text(60))
    small = ["model.width=16", "model.heads=2", "model.layers=2", "model.feedforward=24"]
    small += ["model.length=24", "tokenizer.vocabulary=330", "train.steps=3", *changes]
    run = api.train(objective, text, out=tmp_path / "run", device="cpu", changes=small)
    export(run.run.path, "hf", tmp_path / "hf")
    back = imported(tmp_path / "hf")
    texts = [*foreign.TEXTS, *corpus_text(10, seed=5).split("\n")]
    assert back.settings.model == run.settings.model
    assert back.settings.objective.name == objective
    for one, two in zip(back.tokens.encode(texts), run.tokens.encode(texts), strict=True):
        assert one.tolist() == two.tolist()
    for name, tensor in run.model.tensors().items():
        assert torch.equal(tensor, back.model.tensors()[name]), name
    for one, two in zip(back.embed(texts), run.embed(texts), strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_classifier_from_an_import_is_a_run_like_any_other(kind, tmp_path):
    folder, _ = foreign.save(kind, tmp_path / "model")
    data = write_jsonl(tmp_path / "reviews.jsonl", review_rows(80))
    changes = ["train.epochs=2", "model.length=24"]
    report = Silent()
    model = api.train(
        "classify", data, out=tmp_path / "run", base=f"hf:{folder}", device="cpu",
        changes=changes, report=report,
    )  # fmt: skip
    assert model.settings.objective.sees == ("full" if kind == "bert" else "causal")
    assert model.run.provenance()["data"]["base"]["imported"]["from"] == str(folder)
    shutil.rmtree(folder)  # what was fine-tuned needs nothing of where it came from
    shutil.rmtree(tmp_path / "cache")
    said = list(model.predict(foreign.TEXTS))
    again = api.load(tmp_path / "run", device="cpu")
    assert [one.label for one in again.predict(foreign.TEXTS)] == [one.label for one in said]
    assert again.evaluate([data])["texts"] == 80
    assert api.resume(tmp_path / "run").run.finished


@pytest.mark.parametrize(("kind", "objective"), [("bert", "masked"), ("gpt2", "causal")])
def test_an_import_goes_on_pretraining(kind, objective, tmp_path):
    folder, _ = foreign.save(kind, tmp_path / "model")
    text = tmp_path / "corpus.txt"
    text.write_text(corpus_text(60))
    made = api.train(
        objective, text, out=tmp_path / "run", base=f"hf:{folder}", device="cpu",
        changes=["train.steps=3", "model.length=24"],
    )  # fmt: skip
    assert made.run.scores()["valid"]["loss"] > 0
    if objective == "causal":
        assert made.generate(["the film"], 5)[0].startswith("the film")
    else:
        assert len(made.fill("the <mask> was good", 3)[0]) == 3
    with pytest.raises(UsageError, match="has learnt 40 positions"):
        planned(objective, text, base=f"hf:{folder}", changes=["model.length=64"])


def test_one_token_that_begins_and_ends_is_learnt_where_it_ends(tmp_path):
    ours = imported(foreign.save("gpt2", tmp_path / "model")[0])
    end = ours.tokens.eos
    assert end == ours.tokens.bos
    window = Window(np.array([end, 7, 8, end, end, 9, end]))
    context = Context(ours.settings.model, ours.tokens, np.random.default_rng(0))
    target = Causal().batch([window], context).targets["causal"]
    assert target.answers_N.tolist() == [7, 8, end, 9, end]


def test_a_fine_tuned_import_is_exported_with_its_tokenizer(tmp_path):
    folder, _ = foreign.save("eurobert", tmp_path / "model")
    data = write_jsonl(tmp_path / "reviews.jsonl", review_rows(40))
    api.train(
        "classify", data, out=tmp_path / "run", base=f"hf:{folder}", device="cpu",
        changes=["train.steps=2"],
    )  # fmt: skip
    found = export(tmp_path / "run", "hf", tmp_path / "out", texts=foreign.TEXTS[:3])
    assert found["architecture"] == "EuroBertForSequenceClassification"


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def retensor(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


REFUSALS = {
    "no config": (lambda f: (f / "config.json").unlink(), UsageError, "no config.json"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), DataError, "cannot be read"),
    "family": (lambda f: change(f, model_type="t5"), UsageError, "'t5' cannot be imported"),
    "pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        UsageError,
        "only pytorch_model.bin.*safetensors are needed",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), UsageError, "no weights"),
    "rope": (
        lambda f: change(f, rope_parameters=None, rope_scaling={"type": "linear", "factor": 2}),
        UsageError,
        r"rope scaling \(linear\)",
    ),
    "odd rope": (lambda f: change(f, rope_parameters=3), DataError, "must be a table, not 3"),
    "windows": (
        lambda f: change(f, model_type="mistral", sliding_window=8),
        UsageError,
        "sliding windows",
    ),
    "wide heads": (lambda f: change(f, head_dim=16), UsageError, "heads of 16 in a width of 32"),
    "activation": (lambda f: change(f, hidden_act="xielu"), UsageError, "activation 'xielu'"),
    "quantized": (lambda f: change(f, quantization_config={}), UsageError, "quantized"),
    "number": (
        lambda f: change(f, hidden_size="32"),
        DataError,
        "hidden_size must be a whole",
    ),
    "missing": (
        lambda f: retensor(f, lambda t: t.pop("model.layers.1.mlp.up_proj.weight")),
        DataError,
        "layers.1.mlp.up_proj.weight is missing",
    ),
    "misshapen": (
        lambda f: change(f, intermediate_size=64),
        DataError,
        "gate_proj.weight is 48 × 32 where config.json asks for 64 × 32",
    ),
    "extra": (
        lambda f: change(f, num_hidden_layers=1),
        UsageError,
        r"layers.1.\S+ has no place in these layers",
    ),
    "integers": (
        lambda f: retensor(f, lambda t: t.update({"model.norm.weight": torch.ones(32).byte()})),
        UsageError,
        "is quantized",
    ),
    "infinite": (
        lambda f: retensor(f, lambda t: t["model.norm.weight"].fill_(torch.inf)),
        DataError,
        "not finite",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), UsageError, "no tokenizer.json"),
    "broken tokenizer": (
        lambda f: (f / "tokenizer.json").write_text('{"model": {}}'),
        DataError,
        "not a tokenizer.json",
    ),
    "added tokens": (
        lambda f: (f / "tokenizer_config.json").write_text(
            '{"added_tokens_decoder": {"95": {"content": "<new>"}}}'
        ),
        DataError,
        "'<new>' is token 95 here and not in tokenizer.json",
    ),
    "small embedding": (
        lambda f: retensor(
            f,
            lambda t: t.update(
                {
                    name: t[name][:50].clone()
                    for name in ("model.embed_tokens.weight", "lm_head.weight")
                }
            ),
        ),
        DataError,
        "the tokenizer has 95 tokens and the embedding 50 rows",
    ),
    "two files": (
        lambda f: [
            shutil.copy(f / "model.safetensors", f / "a.safetensors"),
            (f / "model.safetensors").rename(f / "b.safetensors"),
        ],
        UsageError,
        "2 safetensors files",
    ),
    "escaping index": (
        lambda f: [
            (f / "model.safetensors").rename(f.parent / "away.safetensors"),
            (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "../away.safetensors"}}'
            ),
        ],
        DataError,
        "names a file elsewhere",
    ),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return foreign.save("llama", tmp_path_factory.mktemp("llama") / "model")[0]


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_the_same_is_refused(name, llama, tmp_path):
    spoil, kind, words = REFUSALS[name]
    folder = shutil.copytree(llama, tmp_path / "model")
    spoil(folder)
    with pytest.raises(HeadswapError, match=words) as refusal:
        open_base(f"hf:{folder}", Silent())
    assert type(refusal.value) is kind and str(folder) in str(refusal.value)
    assert not list((tmp_path / "cache").rglob("config.toml"))


def test_a_snapshot_of_their_cache_goes_by_its_name(llama, tmp_path):
    folder = shutil.copytree(llama, tmp_path / "models--someone--little-llama/snapshots/0f3a")
    assert open_base(f"hf:{folder}", Silent()).path.name == "little-llama"


def test_a_path_that_is_no_folder(tmp_path):
    with pytest.raises(StorageError, match="no such folder"):
        open_base(f"hf:{tmp_path / 'none'}", Silent())
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="not a folder"):
        open_base(f"hf:{tmp_path / 'file'}", Silent())


def test_a_sentencepiece_model_stands_in(llama, tokens, tmp_path):
    folder = shutil.copytree(llama, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(tokens.model)
    ours = imported(folder)
    assert ours.tokens.encode(["the film"])[0].tolist() == tokens.encode(["the film"])[0].tolist()


def test_without_the_library_it_says_what_to_install(llama, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ResourceError, match=r"pip install 'headswap\[import\]'"):
        open_base(f"hf:{llama}", Silent())


def test_the_ready_made_tokenizer_keeps_the_protocol(tmp_path):
    known = {"bert": ("the", "##e"), "gpt2": ("Ġthe", "the"), "llama": ("▁the", "e")}
    for kind, starts in known.items():
        made = imported(foreign.save(kind, tmp_path / kind)[0]).tokens
        assert isinstance(made, tokenizer_json.JsonTokenizer)
        names = made.pieces(range(made.size))
        begins, within = (made.word_starts()[names.index(name)] for name in starts)
        assert begins and not within
        ends = {names[i] for i in np.flatnonzero(made.sentence_ends())}
        assert "." in ends and len(ends) < 10
        grown = made.with_specials(["<mask>", "<sep>", "<forward>"])
        assert grown.extends(made) and not made.extends(grown)
        assert grown.with_specials(["<forward>"]) is grown
        assert grown.special("<forward>") == grown.size - 1
        assert grown.fingerprint != made.fingerprint
        folder = tmp_path / f"{kind}-saved"
        folder.mkdir()
        grown.save(folder)
        again = tokenizer.load(folder)
        assert again.fingerprint == grown.fingerprint and again.size == grown.size
        text = "the film was very good."
        assert again.decode([again.bos, *again.encode([text])[0], again.eos]) == text
