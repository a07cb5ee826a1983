"""A run as a folder that ``transformers`` loads with no code of ours (see ``families``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from headswap import storage
from headswap.errors import UsageError
from headswap.export import tokens as tokens_module
from headswap.export.families import REMEDY, Plan, plan_of, transformers_library
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives import Classify, Translate
from headswap.objectives.language import HEAD
from headswap.objectives.translate import source_inputs
from headswap.text.tokenizer import BOS, EOS, MASK, PAD, SEP, UNK
from headswap.types import Table
from headswap.use import Trained

CLOSE = 1e-4


def write(trained: Trained, folder: Path, view: str | None, texts: list[str]) -> Table:
    """Write the folder and check it: the same ids, the same scores."""
    plan = plan_of(trained, view)
    converted = tokens_module.convert(trained.tokens, plan.before, plan.after)
    converted.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_settings(trained))
    plan.config.architectures = [plan.architecture]
    plan.config.save_pretrained(str(folder))
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in plan.tensors.items()}
    weights = folder / "model.safetensors"
    with storage.ordinary(weights):
        save_file(tensors, weights, metadata={"format": "pt"})
    if plan.auto == "AutoModelForSeq2SeqLM":
        _write_json(folder / "generation_config.json", _generation(trained))
    return _parity(trained, folder, plan, texts)


def _tokenizer_settings(trained: Trained) -> Table:
    known = {"bos": BOS, "eos": EOS, "unk": UNK, "pad": PAD, "mask": MASK, "sep": SEP}
    names = {
        f"{role}_token": trained.tokens.pieces([number])[0]
        for role, name in known.items()
        if (number := trained.tokens.special(name)) is not None
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": trained.settings.model.length,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        **names,
    }


def _generation(trained: Trained) -> Table:
    tokens = trained.tokens
    never = [tokens.pad, tokens.bos, tokens.unk, tokens.special(MASK), tokens.special(SEP)]
    return {
        "bos_token_id": tokens.bos,
        "eos_token_id": tokens.eos,
        "pad_token_id": tokens.pad,
        "decoder_start_token_id": tokens.bos,
        "num_beams": 4,
        "length_penalty": 1.0,
        "max_length": trained.settings.model.length,
        "suppress_tokens": [token for token in never if token is not None],
    }


@torch.no_grad()
def _parity(trained: Trained, folder: Path, plan: Plan, texts: list[str]) -> Table:
    """Load the folder as a stranger would and compare ids and scores."""
    library = transformers_library()
    shown = library.utils.logging.is_progress_bar_enabled()
    library.utils.logging.disable_progress_bar()
    theirs = library.AutoTokenizer.from_pretrained(str(folder))
    model = getattr(library, plan.auto).from_pretrained(str(folder), attn_implementation="eager")
    if shown:
        library.utils.logging.enable_progress_bar()
    model = model.float().eval()
    worst, different = 0.0, []
    objective = trained.settings.objective
    for text, plain in zip(texts, trained.tokens.encode(texts), strict=True):
        tokens = trained.tokens
        around = [tokens.special(name) for name in (*plan.before, *plan.after)]
        marks = len([mark for mark in around if mark is not None])
        room = trained.settings.model.length - marks
        ours = np.concatenate(
            [
                [tokens.special(name) for name in plan.before],
                plain[:room],
                [tokens.special(name) for name in plan.after],
            ]
        ).astype(np.int64)
        said = theirs(text, truncation=True)["input_ids"]
        if said != ours.tolist():
            different.append(text)
            continue
        ids = torch.from_numpy(ours)[None]
        expected, found = _both(trained, objective, model, ids, plan)
        worst = max(worst, float((expected - found).abs().max()))
    if different or worst > CLOSE:
        what = f"other ids for {len(different)} of {len(texts)} texts" if different else ""
        what = what or f"scores differ by {worst:.2g}"
        first = f", the first: {different[0][:60]!r}" if different else ""
        fix = "export it to ctranslate2" if isinstance(objective, Translate) else REMEDY
        raise UsageError(f"the exported model is not the same: {what}{first}", fix=fix)
    return {
        "architecture": plan.architecture,
        "texts": len(texts),
        "same_ids": True,
        "largest_difference": worst,
    }


def _both(
    trained: Trained, objective: Any, model: Any, ids: Tensor, plan: Plan
) -> tuple[Tensor, Tensor]:
    """Our scores and theirs."""
    ours = trained.model
    if isinstance(objective, Translate):
        target = torch.tensor([[trained.tokens.bos, *ids[0, :-1].tolist()]])
        source = source_inputs([ids[0].numpy()], trained.tokens)
        hidden = ours.backbone(Inputs(target, Visibility("causal"), source=source))
        logits = ours.heads[HEAD](hidden[0])
        return logits, model(input_ids=ids, decoder_input_ids=target).logits[0]
    if isinstance(objective, Classify):
        inputs = Inputs(ids, Visibility(objective.sees))
        scores = ours.heads["label"](ours.backbone(inputs), torch.tensor([ids.shape[1]]))
        return scores, model(input_ids=ids).logits
    rule: Any = "causal" if plan.auto == "AutoModelForCausalLM" else "full"
    logits = ours.heads[HEAD](ours.backbone(Inputs(ids, Visibility(rule)))[0])
    return logits, model(input_ids=ids).logits[0]


def _write_json(path: Path, table: Table) -> None:
    path.write_text(json.dumps(table, ensure_ascii=False, indent=2) + "\n", "utf-8")
