"""Which tokens a classification rests on: integrated gradients (Sundararajan et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headswap.errors import UsageError
from headswap.looking.reading import Read
from headswap.objectives import Classify
from headswap.objectives.classify import HEAD
from headswap.text.tokenizer import MASK
from headswap.use import Trained

POINTS, MOST_POINTS = 32, 256
CLOSE = 0.01


@dataclass(frozen=True)
class Attribution:
    """What each piece adds to the score of ``label`` over the same text with its words hidden.

    The weights must add up to the difference of the two scores (completeness); ``gap`` is how
    far they are from it, as a share of the difference.
    """

    label: str
    pieces: list[str]
    weights: list[float]
    score: float
    baseline: float
    gap: float


def attribute(trained: Trained, read: Read, label: str | None = None) -> Attribution:
    """Attributions to the predicted label, or to a given one, with as many points on the way
    as completeness within a hundredth takes."""
    objective = trained.settings.objective
    if not isinstance(objective, Classify):
        raise UsageError(
            f"a {objective.name} run has no labels whose words could be weighed",
            where=trained.run.path,
            fix="use a classifier",
        )
    if label is not None and label not in objective.labels:
        known = ", ".join(objective.labels)
        raise UsageError(f"no label {label!r}", fix=f"use one of: {known}")
    model, tokens = trained.model.eval(), trained.tokens
    table = model.backbone.embedding.weight
    ids_T = read.inputs.ids_BT[0]
    hidden = tokens.special(MASK)
    marks = torch.tensor([tokens.bos, tokens.eos], device=ids_T.device)
    base_T = torch.where(torch.isin(ids_T, marks), ids_T, tokens.unk if hidden is None else hidden)
    start_TD, end_TD = table[base_T].detach(), table[ids_T].detach()

    def scores(embedded_NTD: Tensor) -> Tensor:
        """The labels' scores of a text from embeddings that are no token's."""
        rows = len(embedded_NTD)
        inputs = read.inputs.map(lambda tensor: tensor.expand(rows, -1))
        hook = model.backbone.embedding.register_forward_hook(lambda *_: embedded_NTD)
        try:
            hidden_BTD = model.backbone(inputs)
        finally:
            hook.remove()
        lengths = torch.full((rows,), len(ids_T), device=ids_T.device)
        logits: Tensor = model.heads[HEAD](hidden_BTD, lengths)
        return logits.float()

    with torch.no_grad():
        both = scores(torch.stack([start_TD, end_TD]))
    chosen = objective.labels.index(label) if label is not None else int(both[1].argmax())
    baseline, score = float(both[0, chosen]), float(both[1, chosen])
    points = POINTS
    while True:
        weights_T = _integrated(scores, start_TD, end_TD, chosen, points)
        gap = abs(float(weights_T.sum()) - (score - baseline)) / max(abs(score - baseline), 1e-6)
        if gap <= CLOSE or points >= MOST_POINTS:
            break
        points *= 2
    name = objective.labels[chosen]
    return Attribution(name, read.pieces, weights_T.tolist(), score, baseline, gap)


def _integrated(
    scores: Callable[[Tensor], Tensor], start_TD: Tensor, end_TD: Tensor, chosen: int, points: int
) -> Tensor:
    """The gradient along the straight way, by Gauss and Legendre's rule, a few points at once."""
    places, shares = np.polynomial.legendre.leggauss(points)
    total_TD = torch.zeros_like(start_TD)
    for some in np.array_split(np.arange(points), max(1, points * len(start_TD) // 4_096)):
        at = torch.tensor((places[some] + 1) / 2, dtype=start_TD.dtype, device=start_TD.device)
        weigh = torch.tensor(shares[some] / 2, dtype=start_TD.dtype, device=start_TD.device)
        way_NTD = start_TD + at[:, None, None] * (end_TD - start_TD)
        way_NTD.requires_grad_(True)
        (slope_NTD,) = torch.autograd.grad(scores(way_NTD)[:, chosen].sum(), way_NTD)
        total_TD += (weigh[:, None, None] * slope_NTD).sum(0)
    return (total_TD * (end_TD - start_TD)).sum(-1)
