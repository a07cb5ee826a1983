"""The linear baseline: TF-IDF of words and of characters under logistic regression.

A run like any other (a folder that ``predict``, ``evaluate`` and ``compare`` read), fitted
with scikit-learn and stored without pickle: weights in safetensors, n-grams in JSON. Its
strength is chosen on validation and nothing is refitted, as for the neural models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from headswap import config, predictions, storage
from headswap import run as runs
from headswap.errors import DataError, UsageError
from headswap.labelling import Labeller
from headswap.run import Run
from headswap.text import corpus, files
from headswap.text.corpus import LabelledText, Reading
from headswap.types import Table

NAME = "linear"
LIBRARIES = ("sklearn.feature_extraction.text", "sklearn.linear_model")
"""What fitting and using one loads."""


@dataclass(frozen=True)
class Linear:
    """``strengths`` are the inverse regularizations that are tried on validation."""

    labels: tuple[str, ...] = ()
    strengths: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    words: tuple[int, ...] = (1, 2)
    characters: tuple[int, ...] = (2, 5)
    most_words: int = 50_000
    most_characters: int = 100_000
    most_iterations: int = 200

    name: ClassVar[str] = NAME


def fit(
    labels: Sequence[str],
    train: Path,
    valid: Path,
    out: Path,
    seed: int = 0,
    reading: Reading = Reading(),
    plan: Linear = Linear(),
) -> Run:
    """Fit a run on labelled files, or find it done. ``seed`` only names its partners: fitting
    has no randomness."""
    if Run(out).finished and storage.problem(out) is None:
        return Run(out)
    storage.remove(out)
    plan = replace(plan, labels=tuple(labels))
    paths = {"train": [train], "valid": [valid]}
    table = {
        "objective": NAME,
        NAME: config.to_table(plan),
        "data": {
            **{role: [str(path.resolve()) for path in some] for role, some in paths.items()},
            "clean": list(reading.clean),
        },
        "train": {"seed": seed},
    }
    hashes = {role: {"sha256": files.sha256(some)} for role, some in paths.items()}
    run = Run.create(out, table, runs.provenance(hashes))
    rows = {role: corpus.labelled_as(some, reading, labels) for role, some in paths.items()}
    run.start_clock()
    _Fitting(plan, rows).save(run)
    run.note_time("finished")
    return run


class _Fitting:
    def __init__(self, plan: Linear, rows: dict[str, tuple[list[LabelledText], list[int]]]) -> None:
        from sklearn.linear_model import LogisticRegression

        self.plan = plan
        truth = {role: numbers for role, (_, numbers) in rows.items()}
        texts = {role: [row.text for row in some] for role, (some, _) in rows.items()}
        self.vectorizers, fitted = {}, []
        for name, vectorizer in _vectorizers(plan, len(texts["train"])).items():
            features = _fitted(vectorizer, texts["train"])
            if features is not None:
                self.vectorizers[name] = vectorizer
                fitted.append(features)
        if not fitted:
            raise DataError("no word and no character to learn from", fix="check the text column")
        train = _stacked(fitted)
        valid = _stacked([v.transform(texts["valid"]) for v in self.vectorizers.values()])
        self.truth = truth["valid"]
        self.trials: list[Table] = []
        self.best: tuple[Table, np.ndarray, np.ndarray, np.ndarray] | None = None
        for strength in plan.strengths:
            model = LogisticRegression(C=strength, max_iter=plan.most_iterations)
            _quietly(model, train, truth["train"])
            weight, intercept = _whole(model, len(plan.labels))
            logits = np.asarray(valid @ weight.T + intercept)
            figures = predictions.scores(logits, self.truth)
            trial: Table = {"split": "valid", "strength": strength, **figures}
            self.trials.append(trial)
            if self.best is None or _rank(trial) > _rank(self.best[0]):
                self.best = (trial, weight, intercept, logits)

    def save(self, run: Run) -> None:
        assert self.best is not None
        chosen, weight, intercept, logits = self.best
        tensors = {"weight": weight, "intercept": intercept}
        grams = {}
        for name, vectorizer in self.vectorizers.items():
            tensors[f"idf.{name}"] = np.asarray(vectorizer.idf_, dtype=np.float32)
            grams[name] = [str(gram) for gram in vectorizer.get_feature_names_out()]
        with storage.ordinary(run.path / runs.WEIGHTS):
            save_file(tensors, run.path / runs.WEIGHTS)
        storage.write(run.path / runs.VOCABULARY, json.dumps(grams, ensure_ascii=False) + "\n")
        lines = [json.dumps(line) + "\n" for line in self.trials]
        storage.write(run.path / runs.METRICS, "".join(lines))
        scores = {
            "training": {"strength": chosen["strength"], "features": sum(map(len, grams.values()))},
            "valid": {name: chosen[name] for name in ("loss", "accuracy", "macro_f1")},
        }
        with storage.new_folder(run.path / runs.PREDICTIONS) as staged:
            written = predictions.lines(logits, self.truth, self.plan.labels)
            (staged / "valid.jsonl").write_text(written, "utf-8")
        storage.write(run.path / runs.SCORES, json.dumps(scores, indent=1) + "\n")
        run.finish()


class LinearTrained(Labeller):
    """A finished linear run, loaded: it predicts and is scored as a neural classifier is."""

    def __init__(self, run: Run) -> None:
        run.check_finished()
        self.run = run
        table = run.settings()
        self.plan = config.build(Linear, table[NAME], NAME)
        self.labels = self.plan.labels
        self.clean = tuple(table["data"]["clean"])
        try:
            self._tensors = load_file(run.path / runs.WEIGHTS)
            grams = json.loads((run.path / runs.VOCABULARY).read_text("utf-8"))
            every = _vectorizers(self.plan, 1)
            self._vectorizers = {name: every[name] for name in grams}
            for name, vectorizer in self._vectorizers.items():
                places = {gram: place for place, gram in enumerate(grams[name])}
                vectorizer.set_params(vocabulary=places)
                vectorizer.idf_ = self._tensors[f"idf.{name}"].astype(np.float64)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"not a linear model ({error})", where=run.path) from error

    def scored(self, texts: Sequence[str]) -> np.ndarray:
        features = _stacked([v.transform(texts) for v in self._vectorizers.values()])
        scores: np.ndarray = features @ self._tensors["weight"].T + self._tensors["intercept"]
        return np.asarray(scores, dtype=np.float64)


def _vectorizers(plan: Linear, texts: int) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    common = {"sublinear_tf": True, "min_df": 2 if texts >= 500 else 1, "dtype": np.float32}
    if len(plan.words) != 2 or len(plan.characters) != 2:
        raise UsageError("linear.words and linear.characters are a shortest and a longest run")
    return {
        "words": TfidfVectorizer(
            ngram_range=plan.words,
            max_features=plan.most_words,
            token_pattern=r"(?u)\b\w+\b",
            **common,
        ),
        "characters": TfidfVectorizer(
            analyzer="char_wb",
            ngram_range=plan.characters,
            max_features=plan.most_characters,
            **common,
        ),
    }


def _fitted(vectorizer: Any, texts: Sequence[str]) -> Any:
    """The features of texts, also where none is common to two of them; None where there are
    none at all."""
    for least in dict.fromkeys((vectorizer.min_df, 1)):
        vectorizer.set_params(min_df=least)
        try:
            return vectorizer.fit_transform(texts)
        except ValueError:  # an empty vocabulary
            continue
    return None


def _rank(trial: Table) -> tuple[float, float]:
    return trial["accuracy"], -trial["loss"]


def _stacked(parts: Sequence[Any]) -> Any:
    from scipy import sparse

    return sparse.hstack(parts, format="csr")


def _quietly(model: Any, features: Any, truth: Sequence[int]) -> None:
    """Fit; a solver that stops before full convergence is fine, validation judges it."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(features, truth)


def _whole(model: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and intercepts with one row a label, those that train lacked far below."""
    weight, intercept = model.coef_, model.intercept_
    if len(weight) == 1:  # two classes are stored as one difference
        weight = np.concatenate([-weight / 2, weight / 2])
        intercept = np.concatenate([-intercept / 2, intercept / 2])
    full = np.zeros((classes, weight.shape[1]))
    bias = np.full(classes, -30.0)
    full[model.classes_], bias[model.classes_] = weight, intercept
    return full, bias
