"""Exported runs say what the runs say."""

from __future__ import annotations

import json

import numpy as np
import pytest

import headswap as api
from conftest import review_rows, write_jsonl
from headswap import cli
from headswap.errors import DataError, UsageError
from headswap.export.folder import PARITY, export
from headswap.export.tokens import convert
from headswap.exported import Exported
from headswap.text import tokenizer
from headswap.text.tokenizer import TokenizerPlan

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = [
    "model.width=32", "model.heads=4", "model.layers=2", "model.feedforward=48",
    "model.length=48", "tokenizer.vocabulary=330",
]  # fmt: skip
LEARNT = ["model.decoder_layers=2", "train.steps=120", "train.lr=0.01", "train.evaluate_every=60"]
TEXTS = ["the film was good", "a very bad book, really", "Éclair ﬁ ½ 東京 🙂", "  a  b ", "x"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One small run of each kind, made when it is asked for."""
    folder = tmp_path_factory.mktemp("export")
    made = {}

    def one(name, objective, *changes, base=None):
        if name not in made:
            data = folder / f"{objective}.jsonl"
            if objective == "classify":
                write_jsonl(data, review_rows(80, 1))
            elif objective == "translate":
                rows = [
                    {"source": f"word{i} and more", "target": f"mot{i} et plus"} for i in range(60)
                ]
                write_jsonl(data, rows)
            else:
                data = folder / "corpus.txt"
                lines = [
                    " ".join(row["text"] for row in review_rows(20, seed)) for seed in range(9)
                ]
                data.write_text("\n\n".join(lines))
            recipe = "tiny-translate" if objective == "translate" else None
            shape = SMALL if base is None else []
            made[name] = api.train(
                objective, data, out=folder / name, device="cpu", recipe=recipe,
                base=None if base is None else made[base].run.path,
                changes=[*shape, "train.steps=3", *changes],
            )  # fmt: skip
        return made[name].run.path

    return one


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bpe", {}),
        ("unigram", {}),
        ("bpe", {"normalization": "nmt_nfkc_cf"}),
        ("bpe", {"normalization": "identity"}),
    ],
)
def test_tokenizer_json_gives_the_same_ids(kind, options):
    plan = TokenizerPlan(kind=kind, vocabulary=400, **options)
    words = [row["text"] for row in review_rows(200, 3)]
    tokens = tokenizer.train([*words, *TEXTS], plan).with_specials(["<forward>"])
    made = convert(tokens, ["<s>"], ["</s>"])
    for text, ids in zip(TEXTS + words, tokens.encode(TEXTS + words), strict=True):
        assert made.encode(text).ids == [tokens.bos, *ids.tolist(), tokens.eos], text
        assert made.decode(ids.tolist()) == tokens.decode(ids.tolist())


def test_a_causal_run_is_a_llama(runs, tmp_path):
    found = export(runs("causal", "causal"), "hf", tmp_path / "hf", texts=TEXTS)
    assert found["architecture"] == "LlamaForCausalLM" and found["largest_difference"] < 1e-4
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert type(model).__name__ == "LlamaForCausalLM"
    kept = json.loads((tmp_path / "hf" / PARITY).read_text())
    assert kept == found and (tmp_path / "hf" / "README.md").exists()
    with pytest.raises(UsageError, match="already there"):
        export(runs("causal", "causal"), "hf", tmp_path / "hf")


def test_query_and_key_norms_make_a_qwen(runs, tmp_path):
    run = runs("normed", "causal", "model.qk_norm=true", "model.tied=true")
    found = export(run, "hf", tmp_path / "hf")
    assert found["architecture"] == "Qwen3ForCausalLM"


def test_a_masked_run_is_a_eurobert(runs, tmp_path):
    found = export(runs("masked", "masked"), "hf", tmp_path / "hf", texts=TEXTS)
    assert found["architecture"] == "EuroBertForMaskedLM"


@pytest.mark.parametrize(
    ("base", "architecture"),
    [("causal", "LlamaForSequenceClassification"), ("masked", "EuroBertForSequenceClassification")],
)
def test_classifiers_keep_their_labels(runs, tmp_path, base, architecture):
    runs(base, base)
    run = runs(f"{base}-classifier", "classify", base=base)
    found = export(run, "hf", tmp_path / "hf", texts=TEXTS)
    assert found["architecture"] == architecture
    pipe = transformers.pipeline("text-classification", str(tmp_path / "hf"))
    said = pipe(TEXTS[0])[0]
    (ours,) = api.load(run).predict(TEXTS[:1])
    assert said["label"] == ours.label
    assert said["score"] == pytest.approx(ours.probabilities[ours.label], abs=1e-4)


def test_a_translator_is_a_marian(runs, tmp_path):
    run = runs("translate", "translate", *LEARNT)
    found = export(run, "hf", tmp_path / "hf", texts=["word3 and more"])
    assert found["architecture"] == "MarianMTModel"
    both = runs("both", "translate", "model.decoder_layers=2", "translate.both=true")
    assert export(both, "hf", tmp_path / "both")["same_ids"]
    long = runs("long", "translate", "model.decoder_layers=2", "model.length=600")
    export(long, "hf", tmp_path / "long", texts=["word3 and more " * 150])
    config = json.loads((tmp_path / "long" / "config.json").read_text())
    assert config["max_position_embeddings"] == 600


def test_what_fits_nowhere_is_refused_with_the_remedy(runs, tmp_path):
    classic = runs("classic", "causal", "model.style=classic")
    with pytest.raises(UsageError, match="export it to onnx"):
        export(classic, "hf", tmp_path / "hf")
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"], "half-written"
    with pytest.raises(UsageError, match="step by step"):
        export(runs("translate", "translate", *LEARNT), "onnx", tmp_path / "o")
    with pytest.raises(UsageError, match="no masked view"):
        export(runs("causal", "causal"), "hf", tmp_path / "hf", view="masked")
    lstm = runs("lstm", "causal", "model.mixer=lstm")
    for target in ("hf", "onnx", "ctranslate2"):
        with pytest.raises(UsageError, match="mixer=lstm cannot be exported"):
            export(lstm, target, tmp_path / "lstm")
    for name, change in (("windows", "classify.long=windows"), ("html", "data.clean=['html']")):
        unlike = runs(f"unlike-{name}", "classify", change)
        with pytest.raises(UsageError, match="as it is"):
            export(unlike, "hf", tmp_path / "hf")
    with pytest.raises(UsageError, match="no use for the masked view"):
        export(classic, "ctranslate2", tmp_path / "c", view="masked")
    with pytest.raises(UsageError, match="goes with onnx"):
        export(classic, "hf", tmp_path / "c", int8=True)
    normed = runs("normed-pairs", "translate", "model.decoder_layers=2", "model.qk_norm=true")
    with pytest.raises(UsageError, match="qk_norm=true does not fit Marian"):
        export(normed, "hf", tmp_path / "n")
    with pytest.raises(UsageError, match="only classic translators fit"):
        export(normed, "ctranslate2", tmp_path / "n")
    with pytest.raises(UsageError, match="translates and generates"):
        export(runs("masked", "masked"), "ctranslate2", tmp_path / "c")


@pytest.mark.parametrize("base", ["causal", "masked"])
def test_onnx_says_the_same(runs, tmp_path, base):
    pytest.importorskip("onnxruntime")
    runs(base, base)
    run = runs(f"{base}-classifier", "classify", base=base)
    found = export(run, "onnx", tmp_path / "labels", texts=TEXTS, int8=True)
    assert found["largest_difference"] < 1e-4 and found["same_best"] == 1
    assert found["int8"]["same_best"] >= 0.9
    ours, theirs = api.load(run), api.load(tmp_path / "labels")
    assert isinstance(theirs, Exported) and theirs.labels == ours.labels
    long = " ".join(TEXTS) * 20  # beyond what the model reads
    texts = [*TEXTS, long, "", *TEXTS]
    assert np.abs(ours.logits(texts) - theirs.logits(texts)).max() < 1e-4
    small = api.load(tmp_path / "labels" / "model.int8.onnx")
    together = small.logits(texts)
    for text, row in zip(texts, together, strict=True):  # whoever stands beside it
        assert np.abs(small.logits([text])[0] - row).max() < 1e-4
    assert [one.label for one in small.predict(texts)] == [
        theirs.labels[i] for i in together.argmax(1)
    ]
    assert export(runs(base, base), "onnx", tmp_path / "v", view="vectors")["same_best"] > 0.99


def test_an_exported_classifier_is_used_as_a_run(runs, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    runs("masked", "masked")
    run = runs("masked-classifier", "classify", base="masked")
    export(run, "onnx", tmp_path / "out")
    data = tmp_path / "labelled.jsonl"
    labels = api.load(run).labels
    rows = [{"text": text, "label": labels[i % 2]} for i, text in enumerate(TEXTS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = {}
    for path in (run, tmp_path / "out"):
        with pytest.raises(SystemExit):
            cli.main(["evaluate", str(path), str(data), "--json"])
        said[path] = json.loads(capsys.readouterr().out)
    assert said[run] == pytest.approx(said[tmp_path / "out"], abs=1e-5)
    half = "an emoji that was cut: \ud83d"
    (one,), (other,) = (list(api.load(path).predict(half)) for path in said)
    assert one.label == other.label
    with pytest.raises(UsageError, match="no labels"):
        export(runs("masked", "masked"), "onnx", tmp_path / "base")
        api.load(tmp_path / "base")
    with pytest.raises(UsageError, match="no labels"):
        export(run, "onnx", tmp_path / "vectors", view="vectors")
        api.load(tmp_path / "vectors")
    (tmp_path / "out" / "model.onnx").write_bytes(b"no model")
    with pytest.raises(DataError, match="onnxruntime cannot load it"):
        list(api.load(tmp_path / "out").predict(["a text"]))
    (tmp_path / "out" / "headswap.json").write_text("{}")
    with pytest.raises(DataError, match="not an exported model"):
        api.load(tmp_path / "out")


def test_the_classic_language_model_goes_to_onnx(runs, tmp_path):
    pytest.importorskip("onnxruntime")
    classic = runs("classic", "causal", "model.style=classic")
    assert export(classic, "onnx", tmp_path / "o")["largest_difference"] < 1e-4


def test_ctranslate2_says_the_same(runs, tmp_path):
    pytest.importorskip("ctranslate2")
    translator = runs("translate", "translate", *LEARNT)
    texts = [f"word{i} and more" for i in range(30)]
    assert export(translator, "ctranslate2", tmp_path / "t", texts=texts)["same_outputs"] >= 0.95
    assert export(translator, "ctranslate2", tmp_path / "t8", texts=texts, int8=True)
    long = [f"word{i} and more " * 20 for i in range(5)]  # whose end is not read
    assert export(translator, "ctranslate2", tmp_path / "tl", texts=long)["same_outputs"] >= 0.9
    for name, changes in (("causal", []), ("classic", ["model.style=classic"])):
        run = runs(name, "causal", *changes)
        found = export(run, "ctranslate2", tmp_path / name, texts=TEXTS)
        assert found["same_outputs"] >= 0.9, name
