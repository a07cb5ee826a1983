"""What a language model or a translator would put at each place of a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from headswap.looking.reading import Read
from headswap.nn.visibility import Inputs
from headswap.objectives import Classify
from headswap.objectives.language import HEAD
from headswap.scoring import Candidate
from headswap.text.tokenizer import MASK, SPACE
from headswap.use import Trained

ROWS = 64


@dataclass(frozen=True)
class Place:
    """The likeliest tokens at a place whose own token is ``piece``, and that one's chance:
    given what stands before it, or all around it."""

    piece: str
    chance: float
    likeliest: list[Candidate]


@torch.no_grad()
def candidates(trained: Trained, read: Read, most: int = 5) -> list[Place]:
    """The places of a text in order, without ``<s>`` and ``</s>``; none for a classifier."""
    objective, tokens = trained.settings.objective, trained.tokens
    if isinstance(objective, Classify):
        return []
    model, ids = trained.model.eval(), read.ids
    places = [place for place in range(1, len(ids)) if ids[place] != tokens.eos]
    if read.inputs.visibility.rule == "causal":
        hidden_TD = model.backbone(read.inputs)[0]
        rows = hidden_TD[[place - 1 for place in places]]
    else:
        mask = tokens.special(MASK)
        assert mask is not None
        found = []
        for start in range(0, len(places), ROWS):
            some = torch.tensor(places[start : start + ROWS], device=model.device)
            ids_BT = read.inputs.ids_BT.repeat(len(some), 1)
            line = torch.arange(len(some), device=model.device)
            ids_BT[line, some] = mask
            hidden_BTD = model.backbone(Inputs(ids_BT, read.inputs.visibility))
            found.append(hidden_BTD[line, some])
        rows = torch.cat(found)
    chances_NV = model.heads[HEAD](rows).float().softmax(-1)
    best, order = (part.cpu().numpy() for part in chances_NV.topk(most))
    own = chances_NV[np.arange(len(places)), [ids[place] for place in places]].tolist()
    return [
        Place(
            read.pieces[place],
            own[index],
            [
                Candidate(name.replace(SPACE, " ").strip() or "·", float(chance))
                for name, chance in zip(tokens.pieces(order[index]), best[index], strict=True)
            ],
        )
        for index, place in enumerate(places)
    ]
