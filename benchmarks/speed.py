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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headswap import ledger, settings
from headswap.nn.backbone import sinusoid
from headswap.nn.model import Model, new_model
from headswap.objectives import Context
from headswap.text import corpus, tokenizer
from headswap.text.corpus import Reading
from headswap.text.loader import BucketLoader, Labelled, Window
from headswap.training import optim
from headswap.training.evaluate import autocast

WIDTH, LAYERS, HEADS, INNER, VOCABULARY = 200, 4, 2, 200, 50_001
BATCH, LENGTH, RATE, CLIP = 16, 512, 3e-4, 0.5
Contestant = Callable[[int], float]


class Tokens:
    """As much of a tokenizer as objectives ask for."""

    pad, bos, eos, unk, size = 0, 1, 2, 3, VOCABULARY

    def special(self, name: str) -> int:
        return 4


def finished(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_ids(step: int, extra: int = 0) -> np.ndarray:
    return np.random.default_rng(step).integers(5, VOCABULARY, (BATCH, LENGTH + extra))


def headswap(objective: str, device: torch.device, changes: dict[str, Any]) -> Contestant:
    made = settings.resolve(objective, "course", [{"train": {"clip": CLIP, "lr": RATE}}, changes])
    heads = made.objective.heads(made.model, VOCABULARY)
    model = new_model(made.model, VOCABULARY, heads, seed=0).to(device).train()
    optimizer = optim.make_optimizer(model, made.train)
    tokens: Any = Tokens()
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32

    def step(number: int) -> float:
        examples = [Window(row) for row in random_ids(number, extra=1)]
        finished(device)
        began = time.perf_counter()
        noise = np.random.default_rng(number)
        context = Context(made.model, tokens, noise, number, 0.5, training=True)
        batch = made.objective.batch(examples, context).to(device)
        with autocast(device, precision):
            terms = made.objective.loss(model, batch)
        loss = torch.stack([t.total / max(batch.counts[k], 1e-9) for k, t in terms.items()]).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        finished(device)
        return time.perf_counter() - began

    return step


class CourseModel(nn.Module):
    """The lab's own code: torch's encoder under a square mask, every position scored."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.decoder = nn.Linear(WIDTH, outputs)
        self.register_buffer("table", sinusoid(torch.arange(LENGTH)[None], WIDTH)[0])
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        size = ids_BT.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(size, device=ids_BT.device)
        x = self.embedding(ids_BT) * math.sqrt(WIDTH) + self.table[:size]
        hidden: torch.Tensor = self.encoder(x, mask=mask, is_causal=True)
        return hidden


def course(device: torch.device) -> Contestant:
    torch.manual_seed(0)
    model = CourseModel(VOCABULARY).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    criterion = nn.CrossEntropyLoss()

    def step(number: int) -> float:
        ids = torch.from_numpy(random_ids(number, extra=1))
        finished(device)
        began = time.perf_counter()
        ids = ids.to(device)
        optimizer.zero_grad()
        logits = model.decoder(model(ids[:, :-1]))
        loss = criterion(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        finished(device)
        return time.perf_counter() - began

    return step


def hugging_face(objective: str) -> Any:
    import transformers

    torch.manual_seed(0)
    if objective == "causal":
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=INNER,
            n_positions=LENGTH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, intermediate_size=INNER, max_position_embeddings=LENGTH,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def hidden_labels(ids: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fifteen in a hundred hidden, as its collator does."""
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(number)) < 0.15
    return ids.masked_fill(chosen, 4), ids.masked_fill(~chosen, -100)


def bare(objective: str, device: torch.device, compiled: bool) -> Contestant:
    """A plain loop around the Hugging Face model, fused AdamW."""
    model = hugging_face(objective).to(device).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32

    def step(number: int) -> float:
        ids = torch.from_numpy(random_ids(number))
        labels = ids
        if objective == "masked":
            ids, labels = hidden_labels(ids, number)
        finished(device)
        began = time.perf_counter()
        with autocast(device, precision):
            loss = run(input_ids=ids.to(device), labels=labels.to(device)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        finished(device)
        return time.perf_counter() - began

    return step


def trainer(objective: str, device: torch.device) -> Contestant:
    """Hugging Face's Trainer, a few steps at a call; the first of them is not counted."""
    import transformers

    class Random(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 4 * BATCH

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.from_numpy(random_ids(index)[0])
            labels = ids
            if objective == "masked":
                ids, labels = hidden_labels(ids, index)
            return {"input_ids": ids, "labels": labels}

    class Watch(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            finished(device)
            self.ends.append(time.perf_counter())

    model = hugging_face(objective)

    def step(number: int) -> float:
        watch = Watch()
        arguments = transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH, max_steps=3,
            learning_rate=RATE, max_grad_norm=CLIP, report_to=[], save_strategy="no",
            logging_strategy="no", use_cpu=device.type == "cpu", disable_tqdm=True,
            bf16=device.type == "cuda", optim="adamw_torch_fused",
        )  # fmt: skip
        made = transformers.Trainer(
            model=model, args=arguments, train_dataset=Random(), callbacks=[watch]
        )
        made.train()
        return (watch.ends[-1] - watch.ends[0]) / (len(watch.ends) - 1)

    return step


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

    def epoch(number: int) -> float:
        finished(device)
        began = time.perf_counter()
        for index in range(loader.batches):
            context = Context(made.model, tokens, np.random.default_rng(0), 0, 0.5, training=True)
            batch = made.objective.batch(loader.batch(number, index), context).to(device)
            (term,) = made.objective.loss(model, batch).values()
            (term.total / 8).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        finished(device)
        return time.perf_counter() - began

    return epoch


def tuning_course(device: torch.device) -> Contestant:
    examples, tokens = reviews()
    torch.manual_seed(0)
    model = CourseModel(2).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.CrossEntropyLoss()

    def epoch(number: int) -> float:
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


def matrix_rate(device: torch.device) -> float:
    """FLOPs a second of the head's own product, the largest of the workload."""
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(512, WIDTH, device=device, dtype=precision)
    w = torch.randn(VOCABULARY, WIDTH, device=device, dtype=precision)
    out = torch.empty(512, VOCABULARY, device=device, dtype=precision)
    times = []
    for _ in range(9):
        finished(device)
        began = time.perf_counter()
        torch.mm(x, w.T, out=out)
        finished(device)
        times.append(time.perf_counter() - began)
    return 2 * x.numel() * VOCABULARY / statistics.median(times)


def race(contestants: dict[str, Contestant], repeats: int, work: float) -> dict[str, Any]:
    """Everyone in turns; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(repeats + 1):
        for name, one in contestants.items():
            seconds = one(number)
            if number:
                times[name].append(seconds)
    return {
        name: {
            "seconds": statistics.median(some),
            "lowest": min(some),
            "highest": max(some),
            "a_second": work / statistics.median(some),
        }
        for name, some in times.items()
    }


def told(name: str, found: dict[str, Any], unit: str) -> None:
    ours = found["headswap"]["seconds"]
    for peer, row in found.items():
        print(f"{name:12} {peer:28} {row['a_second']:12,.1f} {unit}  ×{row['seconds'] / ours:.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="the result file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="causal,masked,tuning")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    results: dict[str, Any] = {}
    if options.out and options.out.exists():
        results = json.loads(options.out.read_text())
    mine = results.setdefault(options.device, {})
    tokens = BATCH * LENGTH
    for name in options.only.split(","):
        if name == "tuning":
            contestants = {"headswap": tuning_headswap(device), "course": tuning_course(device)}
            found = race(contestants, max(2, options.repeats // 2), 1_600)
        else:
            change = {"masked": {"rate": 0.15}} if name == "masked" else {}
            contestants = {
                "headswap": headswap(name, device, change),
                "hugging face trainer": trainer(name, device),
                "hugging face, bare loop": bare(name, device, compiled=False),
            }
            if device.type == "cuda":
                contestants["hugging face, compiled"] = bare(name, device, compiled=True)
            if name == "causal":
                contestants["course"] = course(device)
            found = race(contestants, options.repeats, tokens)
            made = settings.resolve(name, "course")
            heads = made.objective.heads(made.model, VOCABULARY)
            scored = 1.0 if name == "causal" else 0.15
            flops = ledger.flops_a_token(made.model, heads, LENGTH, scored, name == "causal")
            rate = matrix_rate(device)
            found["headswap"]["share_of_matrix_rate"] = flops * found["headswap"]["a_second"] / rate
            print("share of the matrix rate", found["headswap"]["share_of_matrix_rate"])
        mine[name] = found
        told(name, found, "texts/s" if name == "tuning" else "tokens/s")
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
