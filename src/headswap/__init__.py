"""Pretrain a small Transformer on your own text, swap its head, fine-tune it on a few labels.

import headswap

found = headswap.transfer("reviews.csv", text="corpus.txt", out="runs/reviews-experiment")
print(found["verdict"])

base = headswap.train("causal", "corpus.txt", out="runs/base")
model = headswap.train("classify", "reviews.csv", base="runs/base", out="runs/reviews")
for prediction in model.predict(["What a book!"]):
    print(prediction.label, prediction.probabilities)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headswap.version import __version__

if TYPE_CHECKING:
    from headswap.api import load, resume, train, transfer

__all__ = ["__version__", "load", "resume", "train", "transfer"]


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; `import headswap` and `--help` should not.
    if name in __all__:
        from headswap import api

        return getattr(api, name)
    raise AttributeError(f"module 'headswap' has no attribute {name!r}")
