"""A run as one ONNX file with free batch and length, checked with onnxruntime."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headswap.errors import ResourceError, UsageError
from headswap.exported import FACTS, FILE, SMALL_FILE
from headswap.nn.attention import Attention, Cache, Rotation
from headswap.nn.visibility import PADDING, Inputs, KernelMask, Rule, Visibility
from headswap.objectives import Classify, Translate
from headswap.objectives.base import pad_rows
from headswap.objectives.language import HEAD
from headswap.text.tokenizer_json import JSON_FILE, JsonTokenizer
from headswap.types import Table
from headswap.use import Trained

CLOSE, SAME_LABELS = 1e-4, 0.99
LENGTHS = (5, 17, 48)
OPSET = 23  # the first with attention, rotary embeddings and RMS norms as one operator each
AS_INT8 = ("MatMul", "Gemm", "Gather")


class Wrapped(nn.Module):
    """Ids and a mask in; a classifier's scores, a language model's, or vectors out."""

    def __init__(self, trained: Trained, what: str, rule: Rule) -> None:
        super().__init__()
        self.model, self.what, self.rule = trained.model, what, rule

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        documents = torch.where(attention_mask > 0, 0, PADDING)
        hidden_BTD = self.model.backbone(Inputs(input_ids, Visibility(self.rule, documents)))
        if self.what == "vectors":
            result: Tensor = hidden_BTD
        elif self.what == "labels":
            result = self.model.heads["label"](hidden_BTD, attention_mask.sum(1))
        else:
            result = self.model.heads[HEAD](hidden_BTD)
        return result


class OneOperator(nn.Module):
    """Self-attention in the operators that ONNX has for it, which need no transposed copies.

    Padding is on the right: a causal model needs no mask against it.
    """

    def __init__(self, attention: Attention, rule: Rule) -> None:
        super().__init__()
        self.inner, self.heads, self.causal = attention, attention.heads, rule == "causal"

    def forward(
        self,
        x_BTD: Tensor,
        mask: KernelMask,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        places: Tensor | int | None = None,
    ) -> Tensor:
        q_BTD, k_BTD, v_BTD = self.inner.qkv(x_BTD).chunk(3, dim=-1)
        assert mask.mask_B1TS is not None
        mixed_BTD = torch.onnx.ops.attention(
            self._placed(q_BTD, self.inner.q_norm, rotation),
            self._placed(k_BTD, self.inner.k_norm, rotation),
            v_BTD,
            attn_mask=None if self.causal else torch.where(mask.mask_B1TS, 0.0, float("-inf")),
            is_causal=self.causal,
            q_num_heads=self.heads,
            kv_num_heads=self.heads,
        )[0]
        result: Tensor = self.inner.out(mixed_BTD)
        return result

    def _placed(self, x_BTD: Tensor, norm: nn.Module, rotation: Rotation | None) -> Tensor:
        if not isinstance(norm, nn.Identity):
            x_BTD = norm(x_BTD.reshape(*x_BTD.shape[:2], self.heads, -1)).flatten(-2)
        if rotation is None:
            return x_BTD
        cos, sin = (part[:, 0].chunk(2, dim=-1)[1] for part in rotation)
        cos, sin = (part.expand(x_BTD.shape[0], -1, -1) for part in (cos, sin))
        return torch.onnx.ops.rotary_embedding(x_BTD, cos, sin, num_heads=self.heads)


def write(trained: Trained, folder: Path, view: str | None, texts: list[str], int8: bool) -> Table:
    """Write the file and check it at several lengths; with ``int8`` a second, smaller one."""
    runtime = _libraries()
    what, rule = _what(trained, view)
    module = Wrapped(trained, what, rule).eval()
    ids = torch.randint(4, trained.tokens.size, (2, min(9, trained.settings.model.length)))
    path = folder / FILE
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            _in_operators(module),
            (ids, torch.ones_like(ids)),
            str(path),
            input_names=["input_ids", "attention_mask"],
            output_names=[what],
            dynamic_shapes={"input_ids": free, "attention_mask": free},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    facts = _facts(trained, what, rule)
    (folder / FACTS).write_text(json.dumps(facts, ensure_ascii=False, indent=1), "utf-8")
    trained.tokens.save(folder)
    found = _parity(runtime, path, trained, module, texts, CLOSE)
    if int8:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        small = folder / SMALL_FILE
        graph = onnx.load(str(path))
        del graph.graph.value_info[:]  # shapes that the quantizer would take for its own
        with _quiet():
            quantize_dynamic(
                graph, str(small), weight_type=QuantType.QInt8, op_types_to_quantize=list(AS_INT8)
            )
        found["int8"] = _parity(runtime, small, trained, module, texts, None)
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _in_operators(module: Wrapped) -> Wrapped:
    """A copy with every self-attention in ONNX's own operators."""
    model = copy.deepcopy(module)
    for layer in list(model.modules()):
        for name, part in layer.named_children():
            if isinstance(part, Attention):
                setattr(layer, name, OneOperator(part, module.rule))
    return model


def _what(trained: Trained, view: str | None) -> tuple[str, Rule]:
    objective = trained.settings.objective
    if isinstance(objective, Translate):
        raise UsageError("a translator decodes step by step", fix="export it to hf or ctranslate2")
    if view == "vectors":
        return "vectors", objective.visibility
    if isinstance(objective, Classify):
        if view is not None:
            raise UsageError(
                f"a {objective.name} run has no {view} view", fix="use vectors, or leave --as out"
            )
        if objective.long == "windows":
            raise UsageError(
                "classify.long=windows averages over windows, which one file cannot",
                fix="train with classify.long=head",
            )
        return "labels", objective.sees
    views = {one.name: one for one in objective.views()}
    name = view or next(iter(views))
    if name not in views:
        known = ", ".join([*views, "vectors"])
        raise UsageError(f"a {objective.name} run has no {name} view", fix=f"use one of {known}")
    return "logits", views[name].visibility


def _facts(trained: Trained, what: str, rule: Rule) -> Table:
    """What a program needs to use the file: how a text is read, and the labels."""
    tokens, objective = trained.tokens, trained.settings.objective
    return {
        "output": what,
        "begins_with": tokens.bos,
        "ends_with": None if rule == "causal" else tokens.eos,
        "pad": tokens.pad,
        "length": trained.settings.model.length,
        "labels": list(getattr(objective, "labels", ())),
        "long": getattr(objective, "long", "head"),
        "clean": list(trained.settings.data.clean),
        "tokenizer": JSON_FILE
        if isinstance(tokens, JsonTokenizer)
        else "sentencepiece.model, renumbered where tokenizer.json says so",
    }


def _parity(
    runtime: Any,
    path: Path,
    trained: Trained,
    module: Wrapped,
    texts: list[str],
    close: float | None,
) -> Table:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rows = _rows(trained, module.rule, texts)
    worst, same, count = 0.0, 0, 0
    for start in range(0, len(rows), 3):
        some = rows[start : start + 3]
        table = torch.from_numpy(pad_rows(some, trained.tokens.pad))
        sizes = torch.tensor([len(row) for row in some])
        mask = (torch.arange(table.shape[1]) < sizes[:, None]).long()
        with torch.no_grad():
            ours = module(table, mask).numpy()
        (theirs,) = session.run(None, {"input_ids": table.numpy(), "attention_mask": mask.numpy()})
        if module.what != "labels":
            real = mask.bool().numpy()
            ours, theirs = ours[real], theirs[real]
        worst = max(worst, float(np.abs(ours - theirs).max()))
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        count += ours.argmax(-1).size
    share = same / count
    if close is not None and worst > close:
        raise UsageError(f"the exported model is not the same: scores differ by {worst:.2g}")
    return {"texts": len(rows), "largest_difference": worst, "same_best": share}


def _rows(trained: Trained, rule: Rule, texts: list[str]) -> list[np.ndarray]:
    """The texts, and random ids of several lengths, as the model reads them."""
    stack, tokens = trained.settings.model, trained.tokens
    reader = Classify(("", " "), sees=rule)
    rows = [reader.rows(ids, stack, tokens)[0] for ids in tokens.encode(texts)]
    draw = np.random.default_rng(0)
    return rows + [
        draw.integers(4, tokens.size, min(length, stack.length)).astype(np.int64)
        for length in LENGTHS
    ]


def _libraries() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ResourceError(
            f"this needs {error.name}", fix="pip install 'headswap[export]'"
        ) from error
    return onnxruntime
