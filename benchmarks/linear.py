"""The linear model that any pretraining has to beat: TF-IDF and logistic regression.

    HEADSWAP_DATA=… python benchmarks/linear.py --out docs/results/linear.json

Words (one and two) and characters (two to five) of the cls-books reviews; the strength of
the penalty is chosen on validation, and the test reviews are scored once.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import sklearn
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_union

from headswap.text.corpus import labelled

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    options = parser.parse_args()
    books = Path(os.environ["HEADSWAP_DATA"]) / "cls-books"
    texts, labels = {}, {}
    for role in ("train", "valid", "test"):
        rows = list(labelled(books / f"{role}.jsonl.gz"))
        texts[role] = [row.text for row in rows]
        labels[role] = [row.label for row in rows]
    features = make_union(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)),
        TfidfVectorizer(sublinear_tf=True, ngram_range=(2, 5), analyzer="char_wb"),
    )
    train = features.fit_transform(texts["train"])
    valid, test = (features.transform(texts[role]) for role in ("valid", "test"))
    models = [
        LogisticRegression(C=strength, max_iter=2000).fit(train, labels["train"])
        for strength in STRENGTHS
    ]
    scores = [float(model.score(valid, labels["valid"])) for model in models]
    best = max(range(len(models)), key=lambda index: scores[index])
    result = {
        "command": "python benchmarks/linear.py",
        "scikit-learn": sklearn.__version__,
        "valid_accuracy_by_strength": dict(zip(map(str, STRENGTHS), scores, strict=True)),
        "strength": STRENGTHS[best],
        "test_accuracy": float(models[best].score(test, labels["test"])),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
