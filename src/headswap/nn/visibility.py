"""Who may look at whom: the one value that the attention kernel and every picture read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Rule = Literal["causal", "full"]
PADDING = -1


@dataclass(frozen=True)
class Visibility:
    """A query may look at a key when the rule allows it and both are of one document.

    ``documents_BS`` numbers the document of each position, ``PADDING`` where there is none;
    None means that every row is one document. Padding looks at padding only, so that no row
    of the attention is ever empty. Under the causal rule padding on the right needs no
    documents: it lies in the future of everything real.

    ``places_BT`` is given when decoding with a cache: the place of each query among the keys.

    ``start`` is given instead when all rows stand at one place, and nothing lies beyond it.

    ``prefix_B`` is given when all of a row may look at its first so many positions, as in a
    prefix language model.

    ``elsewhere`` says that the queries are of another sequence (a target that looks at its
    source): all of them may look at every key that is not padding.
    """

    rule: Rule
    documents_BS: Tensor | None = None
    places_BT: Tensor | None = None
    elsewhere: bool = False
    start: int | None = None
    prefix_B: Tensor | None = None

    @staticmethod
    def of_lengths(rule: Rule, lengths_B: Tensor, size: int) -> Visibility:
        """One document a row, padded on the right to ``size``."""
        if rule == "causal" or bool((lengths_B == size).all()):
            return Visibility(rule)
        inside = torch.arange(size, device=lengths_B.device) < lengths_B[:, None]
        return Visibility(rule, torch.where(inside, 0, PADDING))

    def allowed(self, batch: int, queries: int, keys: int, device: torch.device) -> Tensor:
        """bool[batch, queries, keys]: True where the query may look at the key."""
        allowed_BTS = torch.ones(batch, queries, keys, dtype=torch.bool, device=device)
        key_S = torch.arange(keys, device=device)
        if self.rule == "causal":
            first = self.start or 0
            place_BT = key_S[None, first : first + queries]
            if self.places_BT is not None:
                place_BT = self.places_BT
            allowed_BTS = allowed_BTS & (key_S <= place_BT[..., None])
        if self.prefix_B is not None:
            allowed_BTS = allowed_BTS | (key_S < self.prefix_B[:, None])[:, None, :]
        if self.documents_BS is not None and self.elsewhere:
            allowed_BTS = allowed_BTS & (self.documents_BS != PADDING)[:, None, :]
        elif self.documents_BS is not None:
            documents = self.documents_BS
            allowed_BTS = allowed_BTS & (documents[:, :, None] == documents[:, None, :])
        return allowed_BTS

    def from_elsewhere(self) -> Visibility:
        """What the positions of another sequence may see of this one."""
        return Visibility("full", self.documents_BS, elsewhere=True)

    def kernel(self, queries: int, keys: int, device: torch.device) -> KernelMask:
        """The same rule in the form the attention kernel runs fastest with."""
        if self.start and self.documents_BS is None:
            if queries == 1:  # the newest position sees all there is
                return KernelMask(None, causal=False)
            return KernelMask(self.allowed(1, queries, keys, device)[:, None], causal=False)
        if self.documents_BS is None and self.places_BT is None and self.prefix_B is None:
            return KernelMask(None, causal=self.rule == "causal")
        given = (self.documents_BS, self.places_BT, self.prefix_B)
        count = next(tensor.shape[0] for tensor in given if tensor is not None)
        return KernelMask(self.allowed(count, queries, keys, device)[:, None], causal=False)

    def map(self, change: Callable[[Tensor], Tensor]) -> Visibility:
        documents, prefix = self.documents_BS, self.prefix_B
        if documents is None and prefix is None:
            return self
        return replace(
            self,
            documents_BS=None if documents is None else change(documents),
            prefix_B=None if prefix is None else change(prefix),
        )


@dataclass(frozen=True)
class KernelMask:
    """Arguments of scaled_dot_product_attention."""

    mask_B1TS: Tensor | None
    causal: bool


@dataclass(frozen=True)
class Inputs:
    """All that a backbone sees: ids, who sees whom, positions when not 0, 1, 2, …, and the
    source of a translation."""

    ids_BT: Tensor
    visibility: Visibility
    positions_BT: Tensor | None = None
    source: Inputs | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same with every tensor changed, always in this order."""
        return Inputs(
            change(self.ids_BT),
            self.visibility.map(change),
            None if self.positions_BT is None else change(self.positions_BT),
            None if self.source is None else self.source.map(change),
        )

    def to(self, device: torch.device) -> Inputs:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def twice(self) -> Inputs:
        """Every row a second time, after all the others."""
        return self.map(lambda tensor: torch.cat([tensor, tensor]))
