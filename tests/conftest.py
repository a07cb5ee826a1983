"""Small things that many tests use: a tokenizer, texts, models."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side
if not os.environ.get("HEADSWAP_TEST_GPU"):  # else: make test-gpu
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the suite promises exact bytes, and those of a CPU
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

import torch

from headswap.nn.model import Model, new_model
from headswap.nn.spec import Stack, stack_from
from headswap.objectives import Causal, Classify
from headswap.text import tokenizer
from headswap.text.tokenizer import SentencePieceTokenizer, TokenizerPlan

GOOD = "wonderful brilliant lovely superb charming delightful moving".split()
BAD = "dreadful boring awful tedious clumsy horrible pointless".split()
PLAIN = "the a book story film plot ending reader page hero it was is and but very of with".split()


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADSWAP_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    yield


def sentence(draw: random.Random, mood: list[str] | None = None, words: int = 12) -> str:
    chosen = draw.choices(PLAIN, k=words)
    for _ in range(3 if mood else 0):
        chosen[draw.randrange(words)] = draw.choice(mood or PLAIN)
    return " ".join(chosen) + "."


def corpus_text(documents: int = 200, seed: int = 0) -> str:
    """Documents of a few sentences, split by blank lines."""
    draw = random.Random(seed)
    blocks = []
    for _ in range(documents):
        mood = draw.choice([GOOD, BAD, None])
        blocks.append("\n".join(sentence(draw, mood) for _ in range(draw.randint(1, 5))))
    return "\n\n".join(blocks) + "\n"


def review_rows(count: int = 120, seed: int = 1) -> list[dict[str, str]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice(["good", "bad"])
        text = sentence(draw, GOOD if label == "good" else BAD, draw.randint(5, 30))
        rows.append({"text": text, "label": label})
    return rows


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(corpus_text(), "utf-8")
    return path


@pytest.fixture
def reviews_file(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "reviews.jsonl", review_rows())


@pytest.fixture(scope="session")
def tokens() -> SentencePieceTokenizer:
    return tokenizer.train(corpus_text().split("\n\n"), TokenizerPlan(vocabulary=320))


TINY = {"width": 16, "layers": 2, "heads": 2, "feedforward": 24, "length": 32}
STACKS: dict[str, Stack] = {
    "classic": stack_from({"style": "classic", **TINY}),
    "modern": stack_from({"style": "modern", **TINY}),
    "everything": stack_from(
        {
            "style": "modern",
            **TINY,
            "positions": "learned",
            "qk_norm": True,
            "embedding_norm": True,
            "tied": True,
            "activation": "gelu",
        }
    ),
    "no positions": stack_from({"style": "classic", **TINY, "positions": "none"}),
}


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Stack:
    return STACKS[request.param]


def causal_model(stack: Stack, vocabulary: int, seed: int = 3) -> Model:
    return spread(new_model(stack, vocabulary, Causal().heads(stack, vocabulary), seed=seed))


def classifier(stack: Stack, vocabulary: int, objective: Classify) -> Model:
    return spread(new_model(stack, vocabulary, objective.heads(stack, vocabulary), seed=4))


def spread(model: Model) -> Model:
    """Larger weights than training starts from, so that differences show."""
    with torch.no_grad():
        for name, tensor in model.tensors().items():
            if "norm" not in name:
                tensor.mul_(5.0 if tensor.ndim > 1 else 1.0)
    return model.eval()
