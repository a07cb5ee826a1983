"""The axis legend: the suffix of a tensor's name says its shape.

    B  sequences in a batch          T  positions of the queries
    S  positions of the keys         D  width of the model
    H  attention heads               K  width of one head
    F  width of the feed-forward     V  vocabulary
    N  scored positions              C  classes
    L  layers

``q_BHTK`` is therefore a query tensor of shape (batch, heads, positions, head width).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.integer[Any]]
Table: TypeAlias = dict[str, Any]
