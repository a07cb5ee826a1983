"""The objectives by name. A new one is a new file and a line here."""

from __future__ import annotations

from headswap.objectives.base import Batch, Objective, Targets, Term
from headswap.objectives.causal import Causal
from headswap.objectives.classify import Classify

OBJECTIVES: dict[str, type[Objective]] = {
    "causal": Causal,
    "classify": Classify,
}

__all__ = ["OBJECTIVES", "Batch", "Causal", "Classify", "Objective", "Targets", "Term"]
