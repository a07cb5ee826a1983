"""Training speed against peers at the course's shape, in turns, in one process.

    python benchmarks/speed.py --device cpu --out docs/results/speed.json

Causal and masked pretraining (width 200 × 4, 50,001 tokens, 16 sequences of 512, random tokens)
and fine-tuning on cls-books (from HEADSWAP_DATA). Peers: Hugging Face's Trainer and a bare loop
around its models, and the course's own code on torch.nn.TransformerEncoder. Every contestant has
the same data, batch, precision and optimizer; each step is timed in turns, medians are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headswap import ledger, settings
from headswap.nn.backbone import sinusoid
from headswap.nn.model import Model, new_model
from headswap.objectives import Batch, Context
from headswap.text import corpus, tokenizer
from headswap.text.corpus import Reading
from headswap.text.loader import BucketLoader, Labelled, Window
from headswap.training import optim
from headswap.training.evaluate import autocast
from headswap.training.feed import Feed
from headswap.training.step import Step, as_compiled


@dataclass(frozen=True)
class Shape:
    """What everyone in a race trains: the course's model, or one of GPT-2's size."""

    width: int = 200
    layers: int = 4
    heads: int = 2
    inner: int = 200
    vocabulary: int = 50_001
    batch: int = 16
    length: int = 512


LENGTH, RATE, CLIP = 512, 3e-4, 0.5
SHAPES = {
    ("causal", "cpu"): Shape(),
    ("masked", "cpu"): Shape(),
    ("causal", "cuda"): Shape(batch=64),
    ("masked", "cuda"): Shape(batch=64),
    ("large", "cuda"): Shape(768, 12, 12, 3072, 50_257, 32, 512),
    ("large64", "cuda"): Shape(768, 12, 12, 3072, 50_257, 64, 512),
}
SQUARES = {"cpu": (2_048, torch.float32), "cuda": (8_192, torch.bfloat16)}
"""The yardstick of arithmetic: the side of a square product, and its precision."""
Contestant = Callable[[int, int], float]
"""Given where to begin and how many steps to make, the seconds that they took."""


class Tokens:
    """As much of a tokenizer as objectives ask for."""

    pad, bos, eos, unk = 0, 1, 2, 3

    def __init__(self, size: int) -> None:
        self.size = size

    def special(self, name: str) -> int:
        return 4


def finished(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_ids(shape: Shape, step: int, extra: int = 0) -> np.ndarray:
    draw = np.random.default_rng(step)
    return draw.integers(5, shape.vocabulary, (shape.batch, shape.length + extra))


def timed(device: torch.device, ahead: Callable[[int], Any], step: Callable[[Any], None]) -> Any:
    """A peer's steps, its data made beforehand."""

    def run(first: int, steps: int) -> float:
        made = [ahead(first + number) for number in range(steps)]
        finished(device)
        began = time.perf_counter()
        for one in made:
            step(one)
        finished(device)
        return time.perf_counter() - began

    return run


def headswap(objective: str, shape: Shape, device: torch.device) -> Contestant:
    """The product's own step and feed; batches are made while the last one is computed, and
    the making is part of the time."""
    model = {"width": shape.width, "layers": shape.layers, "heads": shape.heads}
    model |= {"feedforward": shape.inner, "length": shape.length}
    if shape.width > 200:  # as GPT-2: tied, learned positions
        model |= {"tied": True, "head_bias": False, "positions": "learned", "norm_at": "pre"}
        model |= {"final_norm": True, "activation": "gelu_tanh", "scale_embedding": False}
    change: dict[str, Any] = {"model": model, "train": {"clip": CLIP, "lr": RATE}}
    change["train"]["batch"] = shape.batch
    if objective == "masked":
        change["masked"] = {"rate": 0.15}
    made = settings.resolve(objective, "course", [change])
    heads = made.objective.heads(made.model, shape.vocabulary)
    built = new_model(made.model, shape.vocabulary, heads, seed=0).to(device).train()
    optimizer = optim.make_optimizer(built, made.train)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    arithmetic = Step(built, made.objective, optimizer, made.train, precision, print)
    tokens: Any = Tokens(shape.vocabulary)
    gpu = device.type == "cuda"

    def parts(number: int) -> list[Batch]:
        examples = [Window(row) for row in random_ids(shape, number % 8, extra=1)]
        noise = np.random.default_rng(number)
        context = Context(made.model, tokens, noise, number, 0.5, training=True, few_shapes=gpu)
        batch = made.objective.batch(examples, context)
        return [batch.map(torch.Tensor.pin_memory) if gpu else batch]

    if gpu:
        began = time.perf_counter()
        arithmetic.compile([parts(0)], few=True)
        print(f"headswap: compiled in {time.perf_counter() - began:.1f} s")

    def run(first: int, steps: int) -> float:
        with Feed(parts, None) as feed, as_compiled():
            feed.parts(first - 1)  # the next one is begun
            finished(device)
            began = time.perf_counter()
            for number in range(first, first + steps):
                arithmetic(feed.parts(number), RATE, number)
            finished(device)
            return time.perf_counter() - began

    return run


class CourseModel(nn.Module):
    """The lab's own code: torch's encoder under a square mask, every position scored."""

    def __init__(self, outputs: int, shape: Shape = Shape()) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, shape.inner, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(shape.width, outputs)
        self.register_buffer("table", sinusoid(torch.arange(LENGTH)[None], shape.width)[0])
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        size = ids_BT.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size, device=ids_BT.device)
        scale = math.sqrt(self.embedding.embedding_dim)
        x = self.embedding(ids_BT) * scale + self.table[:size]
        hidden: torch.Tensor = self.encoder(x, mask=mask, is_causal=True)
        return hidden


def course(shape: Shape, device: torch.device) -> Contestant:
    torch.manual_seed(0)
    model = CourseModel(shape.vocabulary, shape).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    criterion = nn.CrossEntropyLoss()

    def step(ids: torch.Tensor) -> None:
        ids = ids.to(device)
        optimizer.zero_grad()
        logits = model.decoder(model(ids[:, :-1]))
        loss = criterion(logits.reshape(-1, shape.vocabulary), ids[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return timed(device, lambda n: torch.from_numpy(random_ids(shape, n, extra=1)), step)


def hugging_face(objective: str, shape: Shape) -> Any:
    import transformers

    torch.manual_seed(0)
    if objective != "masked":
        config = transformers.GPT2Config(
            vocab_size=shape.vocabulary, n_embd=shape.width, n_layer=shape.layers,
            n_head=shape.heads, n_inner=shape.inner, n_positions=shape.length,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.BertConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=shape.inner,
        max_position_embeddings=shape.length, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def hidden_labels(ids: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fifteen in a hundred hidden, as its collator does."""
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(number)) < 0.15
    return ids.masked_fill(chosen, 4), ids.masked_fill(~chosen, -100)


def bare(objective: str, shape: Shape, device: torch.device, compiled: bool) -> Contestant:
    """A plain loop around the Hugging Face model, fused AdamW."""
    model = hugging_face(objective, shape).to(device).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32

    def ahead(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.from_numpy(random_ids(shape, number))
        return hidden_labels(ids, number) if objective == "masked" else (ids, ids)

    def step(made: tuple[torch.Tensor, torch.Tensor]) -> None:
        ids, labels = made
        with autocast(device, precision):
            loss = run(input_ids=ids.to(device), labels=labels.to(device)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timed(device, ahead, step)


def trainer(objective: str, shape: Shape, device: torch.device) -> Contestant:
    """Hugging Face's Trainer, a few steps at a call; the first of them is not counted."""
    import transformers

    class Random(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __init__(self, steps: int) -> None:
            self.ids = [row for step in range(steps) for row in random_ids(shape, step)]

        def __len__(self) -> int:
            return len(self.ids)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.from_numpy(self.ids[index])
            labels = ids
            if objective == "masked":
                ids, labels = hidden_labels(ids, index)
            return {"input_ids": ids, "labels": labels}

    class Watch(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if len(self.ends) in (0, self.last):
                finished(device)
            self.ends.append(time.perf_counter())

        last = 0

    model = hugging_face(objective, shape)

    def run(first: int, steps: int) -> float:
        watch = Watch()
        watch.last = steps
        arguments = transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=shape.batch,
            max_steps=steps + 1, learning_rate=RATE, max_grad_norm=CLIP, report_to=[],
            save_strategy="no", logging_strategy="no", use_cpu=device.type == "cpu",
            disable_tqdm=True, bf16=device.type == "cuda", optim="adamw_torch_fused",
        )  # fmt: skip
        made = transformers.Trainer(
            model=model, args=arguments, train_dataset=Random(steps + 1), callbacks=[watch]
        )
        made.train()
        return watch.ends[-1] - watch.ends[0]

    return run


def reviews() -> tuple[list[Labelled], Any]:
    folder = Path(os.environ["HEADSWAP_DATA"]) / "cls-books"
    files = ("sentencepiece.french.model", "dict.txt.gz")
    tokens = tokenizer.load_model(*(folder / name for name in files))
    rows = list(corpus.labelled(folder / "train.jsonl.gz", Reading()))
    ids = tokens.encode([row.text for row in rows])
    labels = sorted({row.label for row in rows})
    pairs = zip(ids, rows, strict=True)
    return [Labelled(one, labels.index(row.label)) for one, row in pairs], tokens


def tuning_headswap(device: torch.device) -> Contestant:
    examples, tokens = reviews()
    labels = {"classify": {"labels": ["0", "1"], "sees": "causal", "pool": "last"}}
    plan = {"train": {"batch": 8, "lr": 1e-4, "clip": CLIP}}
    made = settings.resolve("classify", "course", [labels, plan])
    heads = made.objective.heads(made.model, tokens.size)
    model: Model = new_model(made.model, tokens.size, heads, seed=0).to(device).train()
    optimizer = optim.make_optimizer(model, made.train)
    loader = BucketLoader(examples, [len(one.ids) for one in examples], made.train.batch, 0)

    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    arithmetic = Step(model, made.objective, optimizer, made.train, precision, print)
    gpu = device.type == "cuda"

    def parts(number: int) -> list[Batch]:
        context = Context(
            made.model, tokens, np.random.default_rng(0), 0, 0.5, training=True, few_shapes=gpu
        )
        some = loader.batch(*divmod(number, loader.batches))
        return [made.objective.batch(some, context)]

    def epoch(number: int, _: int) -> float:
        finished(device)
        began = time.perf_counter()
        with Feed(parts, None) as feed:
            for index in range(loader.batches):
                step = number * loader.batches + index
                arithmetic(feed.parts(step), 1e-4, step)
        finished(device)
        return time.perf_counter() - began

    return epoch


def tuning_course(device: torch.device) -> Contestant:
    examples, tokens = reviews()
    torch.manual_seed(0)
    model = CourseModel(2).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.CrossEntropyLoss()

    def epoch(number: int, _: int) -> float:
        order = np.random.default_rng(number).permutation(len(examples))
        finished(device)
        began = time.perf_counter()
        for start in range(0, len(order), 8):
            some = [examples[i] for i in order[start : start + 8]]
            rows = [np.append(tokens.bos, one.ids)[:LENGTH] for one in some]
            size = max(map(len, rows))
            ids = np.full((len(rows), size), tokens.pad)
            for place, row in enumerate(rows):
                ids[place, : len(row)] = row
            optimizer.zero_grad()
            logits = model.decoder(model(torch.from_numpy(ids).to(device))[:, -1])
            loss = criterion(logits, torch.tensor([one.label for one in some], device=device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        finished(device)
        return time.perf_counter() - began

    return epoch


def product(device: torch.device) -> Contestant:
    """A large square product a step: the rate that the others' arithmetic is held against."""
    side, precision = SQUARES[device.type]
    x = torch.randn(side, side, device=device, dtype=precision)
    out = torch.empty_like(x)

    def steps(first: int, count: int) -> float:
        finished(device)
        began = time.perf_counter()
        for _ in range(count):
            torch.mm(x, x, out=out)
        finished(device)
        return time.perf_counter() - began

    return steps


def race(contestants: dict[str, Contestant], repeats: int, steps: int) -> dict[str, Any]:
    """Everyone in turns; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(repeats + 1):
        for name, one in contestants.items():
            seconds = one(1 + number * steps, steps)
            if number:
                times[name].append(seconds / steps)
    return {
        name: {
            "seconds": statistics.median(some),
            "lowest": min(some),
            "highest": max(some),
        }
        for name, some in times.items()
    }


def told(name: str, found: dict[str, Any], unit: str) -> None:
    ours = found["headswap"]["seconds"]
    for peer, row in found.items():
        memory = f"  {row['peak_gib']:.2f} GiB" if "peak_gib" in row else ""
        ratio = row["seconds"] / ours
        print(f"{name:8} {peer:24} {row['a_second']:12,.1f} {unit}  ×{ratio:.2f}{memory}")


def gathered(
    makers: dict[str, Callable[[], Contestant]], device: torch.device
) -> tuple[dict[str, Contestant], dict[str, dict[str, float]]]:
    """Each contestant, warmed up alone: how long that took and the memory at its peak."""
    made, first = {}, {}
    for name, maker in makers.items():
        gpu = device.type == "cuda"
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        made[name] = maker()
        made[name](1, 1)
        first[name] = {"first_step_seconds": time.perf_counter() - began}
        if gpu:
            made[name](2, 3)
            peak = torch.cuda.max_memory_allocated() - before
            first[name]["peak_gib"] = peak / 2**30
    return made, first


def raced(name: str, device: torch.device, repeats: int, steps: int) -> dict[str, Any]:
    shape = SHAPES[name, device.type]
    kind = "masked" if name == "masked" else "causal"
    makers: dict[str, Callable[[], Contestant]] = {
        "headswap": lambda: headswap(kind, shape, device),
        "hugging face trainer": lambda: trainer(kind, shape, device),
        "hugging face, bare loop": lambda: bare(kind, shape, device, compiled=False),
    }
    if device.type == "cuda":
        makers["hugging face, compiled"] = lambda: bare(kind, shape, device, compiled=True)
    if name == "causal":
        makers["course"] = lambda: course(shape, device)
    contestants, first = gathered(makers, device)
    found = race(contestants | {"product": product(device)}, repeats, steps)
    rate = 2 * SQUARES[device.type][0] ** 3 / found.pop("product")["seconds"]
    for peer, row in found.items():
        row |= first[peer]
        row["a_second"] = shape.batch * shape.length / row["seconds"]
    changes = {"width": shape.width, "layers": shape.layers, "heads": shape.heads}
    changes |= {"feedforward": shape.inner, "length": shape.length}
    made = settings.resolve(kind, "course", [{"model": changes}])
    heads = made.objective.heads(made.model, shape.vocabulary)
    scored = 0.15 if kind == "masked" else 1.0
    flops = ledger.flops_a_token(made.model, heads, shape.length, scored, kind == "causal")
    ours = found["headswap"]
    ours["teraflops"] = flops * ours["a_second"] / 1e12
    ours["share_of_matrix_rate"] = flops * ours["a_second"] / rate
    print(f"{ours['teraflops']:.2f} TFLOP/s, {ours['share_of_matrix_rate']:.2f} of the matrix rate")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="the result file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only", help="a list of: causal, masked, tuning, large, large64 (a GPU only)"
    )
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    results: dict[str, Any] = {}
    if options.out and options.out.exists():
        results = json.loads(options.out.read_text())
    mine = results.setdefault(options.device, {})
    gpu = device.type == "cuda"
    everything = "causal,masked,large,large64,tuning" if gpu else "causal,masked,tuning"
    for name in (options.only or everything).split(","):
        if name == "tuning":
            contestants = {"headswap": tuning_headswap(device), "course": tuning_course(device)}
            found = race(contestants, max(3, options.repeats // 2), 1)
            for row in found.values():
                row["a_second"] = 1_600 / row["seconds"]
        else:
            found = raced(name, device, options.repeats, 20 if gpu else 1)
        mine[name] = found
        told(name, found, "texts/s" if name == "tuning" else "tokens/s")
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
