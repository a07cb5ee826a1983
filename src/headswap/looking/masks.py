"""Who may look at whom, as tables and as an experiment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from headswap.looking.reading import Read, pieces_of
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives.base import pad_rows
from headswap.objectives.language import HEAD, packed
from headswap.use import Trained

SAME = 1e-6


@dataclass(frozen=True)
class Mask:
    """``allowed_TS`` is true where a query may look at a key."""

    name: str
    queries: list[str]
    keys: list[str]
    allowed_TS: np.ndarray


@dataclass(frozen=True)
class Proof:
    """The token at ``changed`` was exchanged for another; ``moved`` says how far each
    position's vector went, ``allowed`` which positions may look at it."""

    changed: int
    was: str
    became: str
    moved: list[float]
    allowed: list[bool]

    @property
    def holds(self) -> bool:
        """Nothing that may not look at the token has moved."""
        pairs = zip(self.moved, self.allowed, strict=True)
        return all(step <= SAME for step, may in pairs if not may)


def masks(trained: Trained, read: Read) -> list[Mask]:
    """The rule for the text itself, for the text beside a longer one, for two documents in one
    row, with its first half open to all, and of a target for its source."""
    tokens, rule = trained.tokens, read.inputs.visibility.rule
    row = np.array(read.ids)
    half = max(1, len(row) // 2)
    found = [_mask("alone", row, read.inputs.visibility, read.pieces)]
    short = pad_rows([row[:half], row], tokens.pad)
    lengths = torch.tensor([half, len(row)])
    padded = Visibility.of_lengths(rule, lengths, len(row))
    found.append(_mask("padded", short[0], padded, pieces_of(tokens, short[0])))
    both = np.concatenate([row[:half], [tokens.bos], row[1:]])[: len(row)]
    visibility, _ = packed(both[None], tokens, rule)
    found.append(_mask("packed", both, visibility, pieces_of(tokens, both)))
    if rule == "causal":
        prefix = Visibility("causal", prefix_B=torch.tensor([half]))
        found.append(_mask("prefix", row, prefix, read.pieces))
    if read.inputs.source is not None:
        source = read.inputs.source.visibility.from_elsewhere()
        keys = read.source or []
        allowed = source.allowed(1, len(row), len(keys), torch.device("cpu"))[0].numpy()
        found.append(Mask("cross", read.pieces, keys, allowed))
    return found


def _mask(name: str, row: np.ndarray, visibility: Visibility, pieces: list[str]) -> Mask:
    size = len(row)
    rows = 1 if visibility.documents_BS is None else len(visibility.documents_BS)
    seen = visibility.map(lambda tensor: tensor.cpu())
    allowed = seen.allowed(rows, size, size, torch.device("cpu"))[0].numpy()
    return Mask(name, pieces, pieces, allowed)


@dataclass(frozen=True)
class Passes:
    """The loss of a text in one masked pass and position by position, and the seconds that
    each took: what the mask saves a training."""

    positions: int
    loss_at_once: float
    loss_one_by_one: float
    seconds_at_once: float
    seconds_one_by_one: float


@torch.no_grad()
def passes(trained: Trained, read: Read) -> Passes | None:
    """Score every next token at once under the mask, and once for each position on what
    stands before it alone. None for models that do not predict the next token."""
    if read.inputs.visibility.rule != "causal" or HEAD not in trained.model.heads:
        return None
    model, ids_BT = trained.model.eval(), read.inputs.ids_BT
    size = ids_BT.shape[1]
    if size < 2:
        return None

    def losses(seen_BT: torch.Tensor, first: int) -> torch.Tensor:
        inputs = Inputs(seen_BT, read.inputs.visibility, None, read.inputs.source)
        hidden_TD = model.backbone(inputs)[0, first:]
        logits_TV = model.heads[HEAD](hidden_TD).float()
        answers_T = ids_BT[0, first + 1 : first + 1 + len(logits_TV)]
        return F.cross_entropy(logits_TV, answers_T, reduction="sum")

    def timed(work: Callable[[], float]) -> tuple[float, float]:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            loss = work()
            times.append(time.perf_counter() - began)
        return loss, min(times)

    def one_by_one() -> float:
        return sum(float(losses(ids_BT[:, : place + 1], place)) for place in range(size - 1))

    at_once, fast = timed(lambda: float(losses(ids_BT[:, :-1], 0)))
    apart, slow = timed(one_by_one)
    return Passes(size - 1, at_once / (size - 1), apart / (size - 1), fast, slow)


@torch.no_grad()
def proof(trained: Trained, read: Read) -> Proof:
    """Exchange the token in the middle and see whose vectors move."""
    model, tokens = trained.model.eval(), trained.tokens
    ids_BT = read.inputs.ids_BT
    place = ids_BT.shape[1] // 2
    other = tokens.eos if int(ids_BT[0, place]) != tokens.eos else tokens.bos
    changed_BT = ids_BT.clone()
    changed_BT[0, place] = other
    before, after = (
        model.backbone(Inputs(ids, read.inputs.visibility, None, read.inputs.source))[0].float()
        for ids in (ids_BT, changed_BT)
    )
    moved = (after - before).abs().amax(-1).tolist()
    size = ids_BT.shape[1]
    visibility = read.inputs.visibility.map(lambda tensor: tensor.cpu())
    allowed = visibility.allowed(1, size, size, torch.device("cpu"))[0, :, place].tolist()
    (became,) = pieces_of(tokens, np.array([other]))
    return Proof(place, read.pieces[place], became, moved, allowed)
