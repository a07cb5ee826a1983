"""The table of token vectors, and its gradient.

A batch touches a few thousand rows of a table of tens of thousands. Autograd makes a table of
zeros for every batch and adds the rows to it; on a CPU, making and clearing that table is a tenth
of a fine-tuning step. While a training ``keeps`` the gradient, rows are added to one table that
stays, and only they are cleared. The sums are the same, to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Embedding(nn.Embedding):
    """``nn.Embedding`` whose gradient can be kept."""

    _kept: Tensor | None = None
    _touched: list[Tensor]

    def forward(self, ids: Tensor) -> Tensor:
        if self._kept is None or not torch.is_grad_enabled():
            return super().forward(ids)
        self._touched.append(ids)
        found: Tensor = _Rows.apply(self.weight, ids, self._kept)  # type: ignore[no-untyped-call]
        return found

    def keep_gradient(self) -> None:
        """From now on until ``drop_gradient``; nobody else may add to the weight's gradient."""
        self._kept, self._touched = torch.zeros_like(self.weight), []
        self.clear_gradient()

    def drop_gradient(self) -> None:
        self._kept = self.weight.grad = None

    def clear_gradient(self) -> None:
        """Instead of an optimizer's ``zero_grad``, or after it."""
        if self._kept is not None:
            for ids in self._touched:
                self._kept[ids.flatten()] = 0
            self._touched.clear()
            self.weight.grad = self._kept


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.kept = kept
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        rows, places = ids.unique(return_inverse=True)
        sums = torch.ops.aten.embedding_dense_backward(gradient, places, len(rows), -1, False)
        ctx.kept[rows] += sums
        return None, None, None
