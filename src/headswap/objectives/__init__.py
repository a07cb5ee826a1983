"""The objectives. A new one is a new file here: it registers itself."""

from __future__ import annotations

import importlib
import pkgutil

from headswap.objectives.base import (
    OBJECTIVES,
    Batch,
    Context,
    Objective,
    Targets,
    Term,
    register,
)
from headswap.objectives.causal import Causal
from headswap.objectives.classify import Classify
from headswap.objectives.hybrid import Hybrid
from headswap.objectives.masked import Masked
from headswap.objectives.translate import Translate

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "OBJECTIVES",
    "Batch",
    "Causal",
    "Classify",
    "Context",
    "Hybrid",
    "Masked",
    "Objective",
    "Targets",
    "Term",
    "Translate",
    "register",
]
