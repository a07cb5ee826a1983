"""How a model is trained, as data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headswap.errors import UsageError

BUDGETS = ("steps", "epochs", "tokens", "minutes")


@dataclass(frozen=True)
class Plan:
    """Exactly one of ``steps``, ``epochs``, ``tokens`` and ``minutes`` is the budget."""

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    minutes: float | None = None

    batch: int = 32
    batch_tokens: int | None = None
    accumulate: int = 1
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-3
    schedule: Literal["constant", "cosine", "linear", "wsd", "inverse_sqrt"] = "cosine"
    warmup: float = 0.05
    decay: float = 0.2
    final_lr: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    layer_decay: float = 1.0
    freeze: Literal["none", "embedding", "backbone"] = "none"
    freeze_layers: int = 0
    unfreeze: float | None = None
    ema: float | None = None
    average_last: int | None = None

    evaluate_every: int | None = None
    patience: int | None = None
    keep: Literal["best", "last"] = "last"
    select: Literal["auto", "loss", "accuracy", "macro_f1", "bleu"] = "auto"
    save_minutes: float = 5.0
    log_every: int = 50

    shard: bool = False
    compile: bool | None = None
    tensorboard: bool = False
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    deterministic: bool = False
    device: str = "auto"
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(
                f"two budgets at once: {' and '.join('train.' + name for name in given)}",
                fix="give one",
            )
        for name in given:
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"train.{name} must be above 0, not {getattr(self, name)}")
        for name in ("batch", "accumulate", "log_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"train.{name} must be at least 1, not {getattr(self, name)}")
        if self.accumulate > self.batch and self.batch_tokens is None:
            raise UsageError(
                f"train.accumulate {self.accumulate} is more than train.batch {self.batch}",
                fix="a batch cannot be cut into more parts than it has examples",
            )
        if not self.lr > 0 or not math.isfinite(self.lr):
            raise UsageError(f"train.lr must be above 0, not {self.lr}")
        for name in ("warmup", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(
                    f"train.{name} is a share of the training, from 0 to 1, "
                    f"not {getattr(self, name)}"
                )

        for name in ("batch_tokens", "average_last", "evaluate_every", "patience", "threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"train.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("clip", "weight_decay", "final_lr", "save_minutes", "freeze_layers"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"train.{name} must be 0 or more, not {getattr(self, name)}")
        if not self.epsilon > 0:
            raise UsageError(f"train.epsilon must be above 0, not {self.epsilon}")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"train.layer_decay is above 0 and at most 1, not {self.layer_decay}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"train.betas are two numbers from 0 up to 1, not {self.betas}")
        if self.schedule == "inverse_sqrt" and not self.warmup:
            raise UsageError(
                "the schedule inverse_sqrt falls from the end of its warm-up, and there is none",
                fix="set train.warmup, to 0.05 say",
            )
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise UsageError(
                f"train.warmup {self.warmup:g} and train.decay {self.decay:g} are more than all of "
                "the training"
            )
        if self.average_last is not None and self.ema is not None:
            raise UsageError("train.average_last and train.ema exclude each other")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"train.ema must lie between 0 and 1, not {self.ema}")
        if self.shard and self.optimizer == "muon":
            raise UsageError(
                "muon needs whole matrices, which train.shard cuts up", fix="use adamw"
            )
        if self.shard and self.unfreeze is not None:
            raise UsageError("train.shard and train.unfreeze exclude each other")
        if self.unfreeze is not None and self.unfreeze <= 0:
            raise UsageError(f"train.unfreeze is in epochs a layer, not {self.unfreeze}")

    @property
    def budget(self) -> str:
        for name in BUDGETS:
            if getattr(self, name) is not None:
                return name
        raise UsageError(
            "no budget", fix=f"give one of {', '.join('--' + name for name in BUDGETS)}"
        )

    def total_steps(self, batches: int, tokens_a_step: float) -> int | None:
        """Optimizer steps, or None when minutes decide."""
        if self.minutes is not None:
            return None
        if self.steps is not None:
            return self.steps
        if self.epochs is not None:
            return max(1, round(self.epochs * batches))
        if self.tokens is not None:
            return max(1, round(self.tokens / tokens_a_step))
        raise UsageError(f"no budget: set one of {', '.join(BUDGETS)}")


def doubts(plan: Plan, total: int | None) -> Iterator[str]:
    """What is possible and hardly meant, of a training of ``total`` steps."""
    if plan.average_last and plan.minutes:
        yield (
            "train.average_last needs a budget whose last evaluations can be foreseen: with "
            "minutes nothing is averaged"
        )
    if plan.average_last and plan.patience:
        yield (
            "train.average_last averages the last planned evaluations: if train.patience ends the "
            "training before them, nothing is averaged"
        )
    if plan.ema is not None and total is not None and total * (1 - plan.ema) < 3:
        yield (
            f"train.ema={plan.ema:g} looks {1 / (1 - plan.ema):,.0f} steps back and the training "
            f"has {total:,}: the average stays near the first weights"
        )


def rate(plan: Plan, progress: float) -> float:
    """The learning rate at a share of the training, 0 to 1."""
    if progress < plan.warmup:
        return plan.lr * progress / plan.warmup
    rest = (progress - plan.warmup) / max(1 - plan.warmup, 1e-9)
    low, high = plan.final_lr, plan.lr
    if plan.schedule == "cosine":
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * rest))
    if plan.schedule == "linear":
        return high + (low - high) * rest
    if plan.schedule == "inverse_sqrt":  # Vaswani et al. 2017, equation 3, by its peak
        return high * math.sqrt(max(plan.warmup, 1e-9) / max(progress, 1e-9))
    if plan.schedule == "wsd" and progress > 1 - plan.decay:
        return high + (low - high) * (progress - 1 + plan.decay) / max(plan.decay, 1e-9)
    return high
