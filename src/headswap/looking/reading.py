"""How a run reads the text that is looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from headswap.errors import UsageError
from headswap.nn.backbone import Backbone, EncoderDecoder
from headswap.nn.visibility import Inputs, Rule, Visibility
from headswap.objectives import Classify, Translate
from headswap.objectives.translate import source_inputs
from headswap.text.tokenizer import SPACE, Tokenizer
from headswap.translating import GREEDY
from headswap.types import Ids
from headswap.use import Trained


@dataclass(frozen=True)
class Read:
    """One text as the model sees it, and its pieces to show; of a translator the target, with
    its source beside it."""

    inputs: Inputs
    pieces: list[str]
    source: list[str] | None = None
    target: str | None = None

    @property
    def ids(self) -> list[int]:
        found: list[int] = self.inputs.ids_BT[0].tolist()
        return found


def read(trained: Trained, text: str, target: str | None = None, sees: Rule | None = None) -> Read:
    """The text in the form the run was trained on. A translator's ``target`` is its own
    translation unless one is given; ``sees`` chooses between the two ways of a hybrid."""
    if not text.strip():
        raise UsageError("there is nothing to look at: the text is empty", fix='give --text "…"')
    objective, tokens, device = trained.settings.objective, trained.tokens, trained.model.device
    stack = trained.model.backbone.stack
    text = trained.cleaned(text)
    (ids,) = tokens.encode([text])
    if not len(ids):
        raise UsageError("there is nothing to look at: no token", fix='give --text "…"')
    if not isinstance(objective, Translate) and target is not None:
        raise UsageError("only a translator has a target", where=trained.run.path)
    room = stack.length - 2
    if len(ids) > room:
        raise UsageError(
            f"the text has {len(ids)} tokens and the model reads {room}",
            fix="give a shorter one",
        )
    if isinstance(objective, Translate):
        said = target
        if said is None:
            said = next(iter(trained.translate([text], GREEDY)))[0].text
        (answer,) = tokens.encode([said])
        source = objective.source(ids, tokens)
        row: Ids = np.concatenate([[tokens.bos], answer[:room]]).astype(np.int64)
        beside = source_inputs([source], tokens)
        inputs = Inputs(torch.from_numpy(row[None]), Visibility("causal"), source=beside)
        shown = pieces_of(tokens, source)
        return Read(inputs.to(device), pieces_of(tokens, row), shown, said)
    ways = {"causal": "causal", "masked": "full"}
    known = [ways[one.name] for one in objective.views() if one.name in ways]
    if sees is not None and sees not in known:
        raise UsageError(f"a {objective.name} run does not read as {sees}", where=trained.run.path)
    sees = sees or objective.visibility
    reader = objective if isinstance(objective, Classify) else Classify(("", " "), sees=sees)
    row = reader.rows(ids, stack, tokens)[0]
    inputs = Inputs(torch.from_numpy(row[None]), Visibility(reader.sees))
    return Read(inputs.to(device), pieces_of(tokens, row))


def pieces_of(tokens: Tokenizer, ids: Ids) -> list[str]:
    return [piece.replace(SPACE, "·") for piece in tokens.pieces([int(i) for i in ids])]


def stacks(trained: Trained) -> dict[str, Backbone]:
    """The stacks of a model whose attention can be shown, by what they look at."""
    backbone = trained.model.backbone
    if backbone.stack.mixer != "attention":
        raise UsageError(
            f"a model of {backbone.stack.mixer} layers has no attention to show",
            where=trained.run.path,
        )
    if isinstance(backbone, EncoderDecoder):
        return {"source": backbone.encoder, "target": backbone.decoder}
    return {"text": backbone}
