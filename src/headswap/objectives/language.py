"""What the objectives that predict tokens share: the head, packed rows, scored positions."""

from __future__ import annotations

import numpy as np
import torch

from headswap.nn.heads import LanguageModelSpec
from headswap.nn.model import Model
from headswap.nn.spec import HeadSpec, Stack
from headswap.nn.visibility import PADDING, Rule, Visibility
from headswap.objectives.base import Batch, Context, Targets, Term
from headswap.text.tokenizer import Tokenizer
from headswap.types import Ids

HEAD = "token"


def token_head(stack: Stack, vocabulary: int) -> dict[str, HeadSpec]:
    """One head for causal and masked prediction, so that a base can go from one to the other."""
    return {HEAD: LanguageModelSpec(stack.width, vocabulary, stack.head_bias, stack.tied)}


def scored(answers: Ids, where: Ids, context: Context) -> Targets:
    """Targets at flat positions, each of weight one; rows beyond them weigh nothing."""
    rest = context.rows(len(where)) - len(where)
    weights = torch.ones(len(where) + rest)
    weights[len(where) :] = 0
    both = (torch.from_numpy(np.pad(some, (0, rest))) for some in (answers, where))
    answers_N, rows_N = both
    return Targets(answers_N, weights, rows_N=rows_N)


def token_loss(
    model: Model, hidden_BTD: torch.Tensor, batch: Batch, term: str, smoothing: float
) -> Term:
    """Cross-entropy at the scored positions only."""
    target = batch.targets[term]
    assert target.rows_N is not None
    hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, target.rows_N)
    total, each_N = model.heads[HEAD].losses(  # type: ignore[operator]
        hidden_ND, target.answers_N, target.weights_N, smoothing if model.training else 0.0
    )
    return Term(total, each_N=each_N)


def packed(ids: Ids, tokens: Tokenizer, rule: Rule) -> tuple[Visibility, torch.Tensor | None]:
    """Visibility and positions of rows that hold several documents, each begun by ``<s>``.

    No document sees another, and each counts its positions from zero.
    """
    padding = ids == tokens.pad
    starts = ids == tokens.bos
    starts[:, 0] = True
    single = not starts[:, 1:].any()
    if single and (rule == "causal" or not padding.any()):
        return Visibility(rule), None
    columns = np.arange(ids.shape[1])
    begun = np.maximum.accumulate(np.where(starts, columns, 0), axis=1)
    documents = np.where(padding, PADDING, np.cumsum(starts, axis=1) - 1)
    return (
        Visibility(rule, torch.from_numpy(documents)),
        torch.from_numpy(columns - begun),
    )
