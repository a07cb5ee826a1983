"""One optimizer step: from a batch to new weights.

On a GPU a small model's step takes longer to launch, kernel by kernel, than to compute. There
the second step of a shape is recorded and every later one replayed as a whole: the same kernels
in the same order, so the same numbers. Of several ranks none records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from headswap.errors import ResourceError
from headswap.nn.embedding import Embedding
from headswap.nn.layers import Layer
from headswap.nn.model import Model
from headswap.objectives import Batch, Objective
from headswap.training import casting, optim, parallel
from headswap.training.evaluate import autocast
from headswap.training.plan import Plan
from headswap.training.ranks import ALONE, Ranks
from headswap.training.recording import Recorder, Recording, shapes_of

MOST_RECORDINGS = 512
COMPILED_SHAPES = 4
DEEP = 8
"""Layers. Twelve of width 768 compile in a fifth of the time one by one and are as fast; four of
width 200 would be 3 to 7% slower."""


class Step:
    """``sums`` are what the steps since the last look added up, by term; ``trouble`` is nought
    until a loss or a gradient is not finite, and from then on no number. Both stay on the device
    until asked for, and both are those of all ranks. ``forward`` is the model as it lies on
    them."""

    def __init__(
        self,
        model: Model,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        precision: torch.dtype,
        warn: Callable[[str], None],
        ranks: Ranks = ALONE,
        forward: torch.nn.Module | None = None,
    ) -> None:
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.plan, self.precision, self.warn = plan, precision, warn
        self.ranks, self.forward = ranks, forward or parallel.Forward(model)
        self.average: optim.Average | None = None
        self.sums: dict[str, Tensor] = {}
        self.trouble = torch.zeros((), dtype=torch.float64, device=model.device)
        self.records = records(model, plan, ranks)
        self._tables = kept_tables(model, plan, ranks)
        for table in self._tables:
            table.keep_gradient()
        low = precision != torch.float32
        self._linear = casting.linear_tensors(self.forward) if self.records and low else {}
        self._known: dict[Any, Recording | None] = {}
        self._recorder = Recorder()

    def __call__(self, parts: Sequence[Batch], rate: float, seed: int) -> None:
        """Learn from a global batch in its parts."""
        optim.set_rate(self.optimizer, rate)
        _seed(self.model.device, seed)
        counts = total_counts(parts)
        if not self.records:
            self._learn([part.to(self.model.device) for part in parts], counts)
            return
        shapes = shapes_of(parts)
        full = len(self._known) >= MOST_RECORDINGS
        if shapes not in self._known:  # the first of its shape also warms the libraries up
            if not full:
                self._known[shapes] = None
            if not self._launched(parts, counts):
                self(parts, rate, seed)
            return
        recording = self._known[shapes]
        if recording is None:
            recording = self._known[shapes] = self._record(parts, counts)
        if recording is None:
            self(parts, rate, seed)
            return
        recording.play(parts, counts)

    def compile(self, examples: Sequence[Sequence[Batch]], few: bool) -> None:
        """Compile the backbone, where shapes are ``few`` for each of them, else for all at
        once. A compiler that fails costs one line, not the run."""
        pieces = compiled_pieces(self.model.backbone)
        for table in self._tables:
            table.drop_gradient()
        self._tables, self._linear = [], {}
        for piece in pieces:
            piece.compile(dynamic=not few)
        seen: set[Any] = set()
        self.model.train()
        try:
            for parts in examples:
                shapes = shapes_of(parts[:1])
                if shapes in seen or len(seen) == COMPILED_SHAPES:
                    continue
                seen.add(shapes)
                moved = parts[0].to(self.model.device)
                counts: dict[str, Any] = dict(moved.counts)
                if self.records:
                    counts = {name: self._number(count) for name, count in counts.items()}
                with parallel.without_exchange(self.forward):
                    self._loss(moved, counts)[0].backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # the compiler's failures have no common type
            for piece in pieces:
                piece._compiled_call_impl = None
            reason = str(error).strip().split("\n")[0][:200]
            self.warn(f"torch.compile failed ({reason}): training without it")
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def healthy(self) -> bool:
        """Whether every loss and gradient so far was a finite number."""
        return not bool(self.trouble.isnan())

    def take_sums(self) -> dict[str, float]:
        """The sums so far; they begin anew."""
        values = {name: float(total) for name, total in self.sums.items()}
        for total in self.sums.values():
            total.zero_()
        return values

    def _record(self, parts: Sequence[Batch], counts: dict[str, float]) -> Recording | None:
        """The step, recorded and not yet made; None where that fails, and from then on every
        step is launched kernel by kernel."""
        tensors: list[Tensor] = []

        def hold(tensor: Tensor) -> Tensor:
            tensors.append(torch.empty_like(tensor, device=self.model.device))
            return tensors[-1].copy_(tensor)

        held = [part.map(hold) for part in parts]
        numbers = {name: self._number(count) for name, count in counts.items()}
        graph: torch.cuda.CUDAGraph | None = None
        reason = ""
        try:
            graph = torch.cuda.CUDAGraph()
            with self._recorder.recording(graph, first=not any(self._known.values())):
                self._learn(held, numbers)
        except (RuntimeError, ResourceError) as error:
            reason = str(error).strip().split("\n")[0][:200]
        if graph is not None and not reason:
            return Recording(graph, tensors, numbers)
        graph = None  # with what it holds
        self._forget(f"a step could not be recorded ({reason})")
        return None

    def _launched(self, parts: Sequence[Batch], counts: dict[str, float]) -> bool:
        """The step, launched kernel by kernel. False, and nothing learnt, where the recordings
        hold the memory that it needs: they are given up."""
        before = {name: total.clone() for name, total in self.sums.items()}
        numbers = {name: self._number(count) for name, count in counts.items()}
        try:
            self._learn([part.to(self.model.device) for part in parts], numbers)
            return True
        except ResourceError:
            if not any(self._known.values()):
                raise
        for name, total in self.sums.items():
            total.copy_(before.get(name, torch.zeros_like(total)))
        self._forget("memory is short")
        return False

    def _forget(self, reason: str) -> None:
        """Give all recordings up, and the memory that they hold."""
        self.records, self._recorder = False, Recorder()
        self._known.clear()
        self.optimizer.zero_grad(set_to_none=True)
        for table in self._tables:
            table.clear_gradient()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        self.warn(f"{reason}: training without replays")

    def settle(self, parts: Sequence[Batch]) -> None:
        """Let DDP lay out its buckets, which it does after its first pass: a resumed training
        then adds gradients up in the same order as one that was not interrupted."""
        _seed(self.model.device, 0)
        moved = parts[0].to(self.model.device)
        self._loss(moved, dict(moved.counts))[0].backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad(set_to_none=True)

    def _learn(self, parts: Sequence[Batch], counts: dict[str, Any]) -> None:
        plan = self.plan
        into = self.sums if self.ranks.alone else {}
        for part in parts[:-1]:
            with parallel.without_exchange(self.forward):
                self._backward(part, counts, into)
        self._backward(parts[-1], counts, into)
        if plan.clip:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), plan.clip)
            self._look_at(parallel.whole(norm))
        if not self.ranks.alone:
            self._exchange(into)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for table in self._tables:
            table.clear_gradient()
        if self.average is not None and plan.ema is not None:
            self.average.update(1 - plan.ema)

    def _exchange(self, sums: dict[str, Tensor]) -> None:
        """Add a step's sums and bad news up over the ranks. Every step, since sums that were
        added up in another order would not resume at the same bytes."""
        total = self.ranks.add(torch.stack([*sums.values(), self.trouble]))
        self.trouble = total[-1]
        for key, value in zip(sums, total, strict=False):
            self.sums[key] = self.sums[key] + value if key in self.sums else value.clone()

    def _backward(self, batch: Batch, counts: dict[str, Any], into: dict[str, Tensor]) -> None:
        try:
            loss, sums = self._loss(batch, counts)
            loss.backward()  # type: ignore[no-untyped-call]
        except torch.OutOfMemoryError as error:
            raise ResourceError(
                f"the GPU's memory is too small for a batch of {self.plan.batch}",
                fix="double train.accumulate: the arithmetic stays the same",
            ) from error
        self._look_at(loss.detach())
        for key, value in sums.items():
            if key in into:
                into[key] += value.detach()
            else:
                into[key] = value.detach().to(self.model.device, torch.float64, copy=True)

    def _look_at(self, value: Tensor) -> None:
        """Nought times a number is nought, unless the number is none: one small operation,
        where asking whether it is finite takes five."""
        self.trouble.add_(value, alpha=0)

    def _loss(self, batch: Batch, counts: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        with autocast(self.model.device, self.precision):
            if self._linear:
                given = (self._linear, self.precision, self.objective, batch)
                terms = casting.forward_cast(self.forward, *given)
            else:
                terms = self.forward(self.objective, batch)
        means = [term.total / counts[name] for name, term in terms.items()]
        loss = reduce(torch.add, means)
        sums = {f"{name}/total": term.total for name, term in terms.items()}
        for name, term in terms.items():
            if term.correct is not None:
                sums[f"{name}/correct"] = term.correct
        return loss, sums

    def _number(self, value: float) -> Tensor:
        return torch.full((), value, device=self.model.device)


def records(model: Model, plan: Plan, ranks: Ranks = ALONE) -> bool:
    """Whether steps are recorded: what learns must not change on the way, the other mixers look
    at a batch's lengths on the host, and messages between ranks are not recorded."""
    fixed = plan.unfreeze is None and model.backbone.stack.mixer == "attention"
    return model.device.type == "cuda" and fixed and ranks.alone


def kept_tables(model: Model, plan: Plan, ranks: Ranks) -> list[Embedding]:
    """The embeddings whose gradients are kept from step to step: on a CPU, where nothing else
    (a tied head, DDP, a layer that thaws) has to do with them."""
    if model.device.type != "cpu" or not ranks.alone or plan.unfreeze is not None:
        return []
    others = {id(weight) for head in model.heads.values() for weight in head.parameters()}
    return [
        module
        for module in model.modules()
        if isinstance(module, Embedding)
        and module.weight.requires_grad
        and id(module.weight) not in others
    ]


def total_counts(parts: Sequence[Batch]) -> dict[str, float]:
    """What each term is divided by, over all parts."""
    counts: dict[str, float] = {}
    for part in parts:
        for name, count in part.counts.items():
            counts[name] = counts.get(name, 0.0) + count
    return {name: max(count, 1e-9) for name, count in counts.items()}


def compiled_pieces(backbone: torch.nn.Module) -> list[torch.nn.Module]:
    """What is compiled as one: a shallow stack, which gains from it, or each layer of a deep one,
    which then share one compilation."""
    layers = [module for module in backbone.modules() if isinstance(module, Layer)]
    return [*layers] if len(layers) >= DEEP else [backbone]


def as_compiled() -> Any:
    """Inside, what was compiled is used where it fits, and nothing is compiled anew."""
    stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if stance is None else stance("eager_on_recompile")


def _seed(device: torch.device, seed: int) -> None:
    """What torch.manual_seed does, for this device alone: that one looks after every kind of
    device that torch knows, which takes longer than many a step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[place].manual_seed(seed)
