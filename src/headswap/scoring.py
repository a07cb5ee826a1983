"""How likely a language model finds a sentence, and what it would put under a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headswap.errors import UsageError
from headswap.nn.model import Model
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives.base import pad_rows
from headswap.objectives.language import HEAD
from headswap.text.loader import by_length
from headswap.text.tokenizer import MASK, Tokenizer
from headswap.types import Ids

ROWS = 256
TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Read at a time where each token of a sentence is hidden by itself."""


@dataclass(frozen=True)
class Candidate:
    """A token that could stand under a mask."""

    token: str
    probability: float


@torch.no_grad()
def causal_scores(model: Model, tokens: Tokenizer, sentences: Sequence[Ids]) -> np.ndarray:
    """The log-probability of each sentence, its end included."""
    rows = _rows(model, tokens, sentences)
    scores = np.zeros(len(rows))
    for group in by_length([len(row) for row in rows], ROWS):
        table = pad_rows([rows[i] for i in group], tokens.pad)
        read, predicted = table[:, :-1], table[:, 1:]
        where = np.flatnonzero(predicted != tokens.pad)
        losses = _losses(model, read, Visibility("causal"), where, predicted.ravel()[where])
        owners = where // read.shape[1]
        scores[group] = -np.bincount(owners, losses, minlength=len(group))
    return scores


@torch.no_grad()
def masked_scores(model: Model, tokens: Tokenizer, sentences: Sequence[Ids]) -> np.ndarray:
    """The pseudo-log-likelihood of each sentence: every token hidden once, by itself
    (Salazar et al. 2020, section 2)."""
    mask, most = _mask_of(tokens), TOKENS.get(model.device.type, TOKENS["cpu"])
    rows = _rows(model, tokens, sentences)
    scores = np.zeros(len(rows))
    for group in by_length([len(row) ** 2 for row in rows], len(rows), most):
        table = pad_rows([rows[i] for i in group], tokens.pad)
        lengths = np.array([len(rows[i]) for i in group])
        owners = np.repeat(np.arange(len(group)), lengths - 2)
        places = np.concatenate([np.arange(1, length - 1) for length in lengths])
        few = max(1, most // table.shape[1])
        for first in range(0, len(owners), few):
            owner, place = owners[first : first + few], places[first : first + few]
            line, hidden = np.arange(len(owner)), table[owner]
            answers = hidden[line, place]
            hidden[line, place] = mask
            visibility = Visibility.of_lengths(
                "full", torch.from_numpy(lengths[owner]), table.shape[1]
            )
            losses = _losses(model, hidden, visibility, line * table.shape[1] + place, answers)
            scores[group] -= np.bincount(owner, losses, minlength=len(group))
    return scores


@torch.no_grad()
def fill(model: Model, tokens: Tokenizer, text: str, most: int) -> list[list[Candidate]]:
    """For each ``<mask>`` of a text, the likeliest tokens, best first."""
    parts = text.split(MASK)
    if len(parts) < 2:
        raise UsageError(f"no {MASK} in the text", fix=f'write one, as in "a good {MASK}"')
    mask = _mask_of(tokens)
    ids: list[int] = [tokens.bos]
    places = []
    # The space before a word is a part of it to some tokenizers.
    parts = [parts[0].strip(), *(part.rstrip() for part in parts[1:])]
    for number, part in enumerate(parts):
        if number:
            places.append(len(ids))
            ids.append(mask)
        ids += _after_mask(tokens, part) if number else tokens.encode([part])[0].tolist()
    ids.append(tokens.eos)
    length = model.backbone.stack.length
    if len(ids) > length:
        raise UsageError(f"the text is {len(ids)} tokens long and the model reads {length}")
    table = torch.tensor([ids], device=model.device)
    hidden_BTD = model.backbone(Inputs(table, Visibility("full")))
    chances = model.heads[HEAD](hidden_BTD[0, places]).float().softmax(-1)
    best = chances.topk(min(most, chances.shape[1]))
    return [
        [
            Candidate(_readable(tokens, token), chance)
            for token, chance in zip(row, values, strict=True)
        ]
        for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _after_mask(tokens: Tokenizer, part: str) -> list[int]:
    """The tokens of what follows a mask. A sign that follows it at once is read as it would be
    behind a word: at a beginning, some tokenizers put a space before it."""
    alone, ids, behind = (some.tolist() for some in tokens.encode(["a", part, f"a{part}"]))
    sign = part and not part[0].isspace() and not part[0].isalnum()
    found: list[int] = ids
    if sign and behind[: len(alone)] == alone:
        found = behind[len(alone) :]
    return found


def _readable(tokens: Tokenizer, token: int) -> str:
    """A token as it stands in a text; its name where it is a special or a part of a letter."""
    text = tokens.decode([token]).strip()
    return text if text and "\N{REPLACEMENT CHARACTER}" not in text else tokens.pieces([token])[0]


def _mask_of(tokens: Tokenizer) -> int:
    mask = tokens.special(MASK)
    if mask is None:
        raise UsageError("this run's tokenizer has no <mask>", fix="use a masked or hybrid run")
    return mask


def _rows(model: Model, tokens: Tokenizer, sentences: Sequence[Ids]) -> list[Ids]:
    rows = [np.concatenate([[tokens.bos], ids, [tokens.eos]]) for ids in sentences]
    stack, longest = model.backbone.stack, max(map(len, rows), default=0)
    if stack.positions == "learned" and longest > stack.length:
        raise UsageError(
            f"a sentence is {longest} tokens long and the model reads {stack.length}",
            fix="leave it out: learned positions end there",
        )
    return rows


def _losses(
    model: Model, table: Ids, visibility: Visibility, where: Ids, answers: Ids
) -> np.ndarray:
    device = model.device
    inputs = Inputs(torch.from_numpy(np.ascontiguousarray(table)), visibility).to(device)
    hidden_ND = model.backbone(inputs).flatten(0, 1)[torch.from_numpy(where).to(device)]
    ones = torch.ones(len(where), device=device)
    _, each_N = model.heads[HEAD].losses(  # type: ignore[operator]
        hidden_ND, torch.from_numpy(answers).to(device), ones
    )
    return np.asarray(each_N.double().cpu().numpy())
