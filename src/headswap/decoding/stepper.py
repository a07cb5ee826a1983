"""One token at a time, with a key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headswap.errors import UsageError
from headswap.nn.attention import Cache, Memory
from headswap.nn.backbone import EncoderDecoder
from headswap.nn.heads import LanguageModelHead
from headswap.nn.model import Model
from headswap.nn.visibility import Inputs, Visibility
from headswap.objectives.base import pad_rows
from headswap.types import Ids


class Stepper:
    """All that a search strategy knows: the scores of the next token, and how to move on.

    Rows may have prompts of different lengths; none sees another, and none is padded on the
    left, so each row's positions are its own. A translator's rows also look at their sources,
    which are encoded once; ``widen`` makes several rows of each, and they share its source.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Model,
        prompts: Sequence[Ids],
        steps: int,
        head: str,
        source: Inputs | None = None,
    ) -> None:
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise UsageError("a prompt is empty", fix="begin it with at least one token")
        self._model = model
        self._memory = None if source is None else self._encode(source)
        lengths = [len(prompt) for prompt in prompts]
        stack = model.backbone.stack
        if stack.decoder_layers:
            stack = replace(stack, layers=stack.decoder_layers)
        self._lengths_B = torch.tensor(lengths, device=model.device)
        room = max(lengths) + steps
        if stack.positions == "learned" and room > stack.length:
            raise UsageError(
                f"{max(lengths)} tokens of prompt and {steps} more do not fit in the model's "
                f"{stack.length} positions",
                fix="shorten the prompt or ask for fewer tokens",
            )
        self._cache = Cache(stack, len(prompts), room, model.backbone.embedding.weight)
        self._width, self._sentences = 1, len(prompts)
        ids = torch.from_numpy(pad_rows(prompts, 0)).to(model.device)
        model.backbone.check(ids)
        # Rows of one length stand at one place, which needs neither masks nor scattering.
        self._place = 0 if len(set(lengths)) == 1 else None
        places = torch.arange(ids.shape[1], device=model.device).expand(len(prompts), -1)
        hidden_BTD = self._forward(ids, places)
        rows = torch.arange(len(prompts), device=model.device)
        head_module = model.heads[head]
        assert isinstance(head_module, LanguageModelHead)
        self._score = head_module.scorer(len(prompts))
        self.logits_BV: Tensor = self._score(hidden_BTD[rows, self._lengths_B - 1]).float()

    @torch.no_grad()
    def step(self, chosen_B: Tensor) -> Tensor:
        """Append one token to each row; the scores of what follows."""
        hidden_BTD = self._forward(chosen_B[:, None], self._lengths_B[:, None])
        self._lengths_B = self._lengths_B + 1
        self.logits_BV = self._score(hidden_BTD[:, 0]).float()
        return self.logits_BV

    def select(self, rows_B: np.ndarray) -> None:
        """Keep these rows, in this order: reorders beams, drops finished sentences. The fewer
        rows change their place the better. Rows of one sentence stay together. The scores are
        those of the next step, not yet of these rows."""
        self._cache.select(rows_B)
        if self._place is None:
            places = torch.from_numpy(rows_B).to(self._lengths_B.device)
            self._lengths_B = self._lengths_B.index_select(0, places)
        else:
            self._lengths_B = self._lengths_B[:1].expand(len(rows_B))
        if self._memory is not None:
            sentences = rows_B[:: self._width] // self._width
            if len(sentences) < self._sentences or (sentences != np.arange(len(sentences))).any():
                self._memory.select(sentences)
                self._sentences = len(sentences)

    def widen(self, width: int) -> None:
        """Make ``width`` rows of each row; its source is looked at by all, and not copied."""
        self._cache.select(np.arange(len(self._lengths_B)).repeat(width))
        self._lengths_B = self._lengths_B.repeat_interleave(width)
        self._width *= width

    def _forward(self, ids_BT: Tensor, places_BT: Tensor) -> Tensor:
        if self._place is None:
            inputs = Inputs(ids_BT, Visibility("causal", places_BT=places_BT), places_BT)
        else:
            inputs = Inputs(ids_BT, Visibility("causal", start=self._place), places_BT[:1])
            self._place += ids_BT.shape[1]
        hidden_BTD: Tensor = self._model.backbone(inputs, self._cache, self._memory)
        return hidden_BTD

    def _encode(self, source: Inputs) -> Memory:
        backbone = self._model.backbone
        assert isinstance(backbone, EncoderDecoder)
        backbone.check(source.ids_BT)
        return backbone.encode(source.to(self._model.device))


def prompt_ids(ids: Ids, start: int) -> Ids:
    return np.concatenate([[start], ids]).astype(np.int64)
