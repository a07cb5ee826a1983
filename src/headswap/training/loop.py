"""The training loop: pretraining and fine-tuning are this one function.

The state of a training after step n is a function of its settings, its data and n. Nothing
random is carried from step to step (every stream is derived from the seed and the step), so
a run that is killed and resumed ends at the same bytes as one that is not.

Several ranks train one run: each works on its rows of the same global batches, all take the
same branches, and rank 0 alone writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headswap import storage
from headswap.errors import DataError, Interrupted
from headswap.nn import kernels
from headswap.nn.heads import LanguageModelHead
from headswap.nn.model import Model
from headswap.objectives import Batch, Context, Objective
from headswap.progress import Reporter, size
from headswap.randomness import derive, generator
from headswap.run import CHECKPOINTS, Run
from headswap.text.loader import Loader, Window
from headswap.text.tokenizer import Tokenizer
from headswap.training import checkpoint, machine, optim, parallel
from headswap.training.checkpoint import State
from headswap.training.evaluate import evaluate, scores
from headswap.training.feed import Feed
from headswap.training.journal import Journal
from headswap.training.kept import Kept
from headswap.training.plan import Plan, doubts, rate
from headswap.training.ranks import ALONE, Ranks
from headswap.training.signals import Stop, stop_signals
from headswap.training.step import Step, as_compiled, records, total_counts
from headswap.wording import quoted

SAVE_SECONDS = 20.0
SHOW_SECONDS = 0.1
COMPILED_FROM = 8  # the first batches, whose shapes are compiled


@dataclass(frozen=True)
class Data:
    """What a training reads. ``truth`` are the labels of ``valid`` where it has any;
    ``tokens_a_step`` turns a budget in tokens into steps; ``length`` is the mean number of tokens
    of a sequence, of a translator's on one side; ``judge`` gives figures beside the loss, such
    as a translator's BLEU."""

    train: Loader[Any]
    valid: Sequence[Any]
    truth: Sequence[int] | None
    tokens_a_step: float
    length: float
    judge: Callable[[Model], dict[str, float]] | None = None


def train(
    model: Model,
    objective: Objective,
    tokens: Tokenizer,
    data: Data,
    plan: Plan,
    run: Run,
    report: Reporter,
    initial: Callable[[Model], None] = lambda model: None,
    ranks: Ranks = ALONE,
    last: bool = True,
) -> State:
    """Train until the budget is spent or validation stops improving; resume if begun.

    ``initial`` fills the model before its first step; a resumed model comes from the newest
    intact checkpoint instead. Leaves the chosen weights in ``model``, and a checkpoint of the
    ``last`` step unless nobody will want it.
    """
    return _Training(model, objective, tokens, data, plan, run, report, ranks, last).go(initial)


class _Training:
    def __init__(
        self,
        model: Model,
        objective: Objective,
        tokens: Tokenizer,
        data: Data,
        plan: Plan,
        run: Run,
        report: Reporter,
        ranks: Ranks,
        last: bool,
    ) -> None:
        self.model, self.objective, self.tokens = model, objective, tokens
        self.data, self.plan, self.run, self.report = data, plan, run, report
        self.ranks, self.last = ranks, last
        self.folder = run.path / CHECKPOINTS
        self.precision, note = machine.pick_precision(plan, model.device)
        if note:
            report.warn(note)
        words = any(isinstance(head, LanguageModelHead) for head in model.heads.values())
        if words and model.device.type == "cuda" and not kernels.usable(model.device):
            report.warn("this GPU cannot run our kernels: a slower loss in plain torch is used")
        if plan.unfreeze is None:
            optim.freeze(model, plan, 0)
        forward = parallel.spread(model, plan, ranks)
        self.optimizer = optim.make_optimizer(model, plan, recorded=ranks.alone)
        self.arithmetic = Step(
            model, objective, self.optimizer, plan, self.precision, report.warn, ranks, forward
        )
        self.journal = Journal(run, plan, ranks.leads)
        self.total = plan.total_steps(data.train.batches, data.tokens_a_step)
        self.every = plan.evaluate_every or data.train.batches
        for line in doubts(plan, self.total):
            report.warn(line)
        self.kept = Kept(model, plan, self.every, self.total)
        self.select = plan.select
        if self.select == "auto":
            self.select = "loss" if data.truth is None else "accuracy"
            if data.judge is not None:
                self.select = "bleu"
        self.state = State()
        self.counts: dict[str, float] = {}
        self.rate, self.last_loss = 0.0, None
        self.began, self.began_at, self.shown = 0.0, 0, 0.0

    def go(self, initial: Callable[[Model], None]) -> State:
        newest = self.ranks.from_leader(self._newest)
        if newest is None:
            initial(self.model)
        self.arithmetic.average = self.kept.begin()
        optim.freeze(self.model, self.plan, 0)
        with self._compiled():
            self._train(newest)
        return self.state

    def _newest(self) -> Path | None:
        storage.sweep(self.run.path)
        return checkpoint.latest(self.folder, self.report.warn)

    def _train(self, newest: Path | None) -> None:
        if newest is None:
            self.journal.forget_after(0)
            self._evaluate()
        else:
            self.state = checkpoint.restore(newest, self.model, self.optimizer, self.kept.average)
            if self.plan.keep == "best":
                self.kept.best = checkpoint.best_weights(newest, self.state)
            self.arithmetic.sums = {
                name: torch.tensor(value, dtype=torch.float64, device=self.model.device)
                for name, value in self.state.sums.items()
            }
            self.counts = dict(self.state.counts)
            self.journal.forget_after(self.state.metrics_bytes)
            self.report.say(f"going on from step {self.state.step}")
        self.model.train()
        with stop_signals() as stop, torch.random.fork_rng(devices=self._cuda()):
            self.report.begin("training")
            try:
                if not self.ranks.alone:
                    self.arithmetic.settle(self._parts(0))
                # Ranks agree on the time after every step, so no batch can be made before it.
                ahead = self.total if self.ranks.alone or self.total is not None else 0
                with Feed(self._parts, ahead) as feed:
                    self._loop(stop, feed)
            finally:
                self.report.end()
        self.kept.choose(self.state.step)
        if self.plan.keep == "best" and self.state.best_step == 0 and self.state.step:
            self.report.warn(
                "no evaluation was better than that of the first weights, which are kept: train "
                "longer or with another train.lr"
            )
        if self.ranks.leads:
            checkpoint.prune(self.folder)

    @contextmanager
    def _compiled(self) -> Iterator[None]:
        """Inside, the backbone is compiled, where the plan wants that and it pays."""
        plan, windows = self.plan, self.objective.reads is Window
        wanted = machine.compiles(plan, self.model.device, self.total, windows)
        if not wanted or (plan.shard and not self.ranks.alone):
            yield
            return
        self.report.say("compiling")
        first = min(COMPILED_FROM, self.total or COMPILED_FROM)
        with torch.random.fork_rng(devices=self._cuda()):
            batches = [self._parts(step) for step in range(first)]
            self.arithmetic.compile(batches, few=windows)
        with as_compiled():
            yield

    def _loop(self, stop: Stop, feed: Feed) -> None:
        state = self.state
        self.began, self.began_at, saved = time.monotonic(), state.tokens, time.monotonic()
        before = state.seconds
        while not self._done():
            self._step(feed)
            state.step += 1
            since = time.monotonic() - saved
            spent = before + time.monotonic() - self.began if self.plan.minutes else 0.0
            asked, since, state.seconds = self.ranks.largest(stop.is_set(), since, spent)
            due = state.step % self.every == 0 or self._done()
            if due or state.step % self.plan.log_every == 0:
                self._log()
            if due:
                self.kept.add(state.step)
                self._evaluate()
            late = since > 60 * self.plan.save_minutes or (due and since > SAVE_SECONDS)
            if late or asked or (self.last and self._done()):
                self._save()
                saved = time.monotonic()
            if asked and not self._done():
                raise self.ranks.spoken(
                    Interrupted(
                        f"stopped and saved at step {state.step}",
                        fix=f"go on with: headswap resume {quoted(self.run.path)}",
                    )
                )
            self._show()

    def _done(self) -> bool:
        return self.state.stopped_early or self._progress() >= 1

    def _progress(self) -> float:
        if self.total is not None:
            return self.state.step / self.total
        return self.state.seconds / (60 * (self.plan.minutes or 1))

    def _step(self, feed: Feed) -> None:
        """One optimizer step over a global batch, in ``accumulate`` parts."""
        state, plan = self.state, self.plan
        nearly = self._progress() + (0.5 / self.total if self.total else 0.0)
        self.rate = rate(plan, nearly)
        if plan.unfreeze is not None:
            optim.freeze(self.model, plan, state.step / self.data.train.batches)
        parts = feed.parts(state.step)
        stream = (state.step, self.ranks.rank) if self.ranks.rank else (state.step,)
        self.arithmetic(parts, self.rate, derive(plan.seed, "dropout", *stream))
        state.tokens += sum(part.tokens for part in parts)
        for name, count in total_counts(parts).items():
            self.counts[name] = self.counts.get(name, 0.0) + count
        if self.model.device.type == "cpu":
            self._check_health()

    def _parts(self, step: int) -> list[Batch]:
        """The batch of a step, in ``accumulate`` parts; of each, the rows of this rank. What is
        random about them is drawn for all ranks, so it does not depend on their number."""
        plan, ranks = self.plan, self.ranks
        examples = self.data.train.batch(*divmod(step, self.data.train.batches))
        progress = self._progress() if self.total is None else step / self.total
        stride = -(-len(examples) // plan.accumulate)
        noise = generator(plan.seed, "noise", step)
        stack = self.model.backbone.stack
        few = records(self.model, plan, ranks)
        context = Context(stack, self.tokens, noise, step, progress, training=True, few_shapes=few)
        parts = [
            self.objective.batch(examples[i : i + stride], context)
            for i in range(0, len(examples), stride)
        ]
        if not ranks.alone:
            parts = [part.of_rank(ranks.rank, ranks.world) for part in parts]
        if self.model.device.type == "cuda":  # copies from pinned memory do not wait
            parts = [part.map(torch.Tensor.pin_memory) for part in parts]
        return parts

    def _check_health(self) -> None:
        if self.arithmetic.healthy:
            return
        raise self.ranks.spoken(
            DataError(
                f"the loss became infinite or not a number by step {self.state.step + 1}",
                fix=f"lower train.lr (now {self.plan.lr:g}) or train.clip (now "
                f"{self.plan.clip:g}) and train again"
                + ("; checkpoints from before are kept" if any(self.folder.glob("*")) else ""),
            )
        )

    def _log(self) -> None:
        self._check_health()
        sums, counts = self.arithmetic.take_sums(), self.counts
        self.counts = {}
        line: dict[str, Any] = {"split": "train", **self._where()}
        losses = {name: sums[f"{name}/total"] / count for name, count in counts.items()}
        line["loss"] = sum(losses.values())
        if len(losses) > 1 or len(self.objective.views()) > 1:
            line |= {f"loss_{name}": value for name, value in losses.items()}
        for name, count in counts.items():
            if f"{name}/correct" in sums:
                line["accuracy"] = sums[f"{name}/correct"] / count
        line["lr"] = self.rate
        self.journal.write(line)
        self.last_loss = line["loss"]

    def _evaluate(self) -> None:
        if not self.data.valid:
            return
        with self.kept.averaged(self.state.step), parallel.whole_model(self.model) as model:
            examples, part = self.data.valid, max(1, self.plan.batch // self.plan.accumulate)
            result = evaluate(
                model, self.objective, examples, self.tokens, part, self.precision, self.ranks
            )
            figures = scores(result, self.data.truth)
            if self.data.judge is not None:
                figures |= self.ranks.from_leader(partial(self.data.judge, model))
        if not math.isfinite(figures["loss"]):
            self.arithmetic.trouble.fill_(math.nan)
            self._check_health()
        self.journal.write({"split": "valid", **self._where(), **figures})
        value, lower = figures[self.select], self.select.startswith("loss")
        self.kept.remember(self.state, value, lower, figures["loss"])
        told = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        self.report.say(f"step {self.state.step}  epoch {self._where()['epoch']:.4g}  {told}")

    def _save(self) -> None:
        self._check_health()
        self.state.sums = {name: float(value) for name, value in self.arithmetic.sums.items()}
        self.state.counts = dict(self.counts)
        leads, kept = self.ranks.leads, self.kept
        if leads:
            self.run.check_there()
        self.journal.sync()
        self.state.metrics_bytes = self.journal.bytes
        checkpoint.save(
            self.folder, self.model, self.optimizer, self.state, kept.average, kept.best, leads
        )
        if leads:
            self.run.note_time("saved", step=self.state.step)

    def _where(self) -> dict[str, Any]:
        state = self.state
        return {
            "step": state.step,
            "epoch": state.step / self.data.train.batches,
            "tokens": state.tokens,
        }

    def _show(self) -> None:
        now = time.monotonic()
        if now - self.shown < SHOW_SECONDS:
            return
        self.shown = now
        speed = (self.state.tokens - self.began_at) / max(now - self.began, 1e-9)
        memory = machine.peak_memory(self.model.device) / 2**30
        loss = f"loss {self.last_loss:.3f}  " if self.last_loss is not None else ""
        facts = f"step {self.state.step}  {loss}{size(speed)} tokens/s  {memory:.1f} GiB"
        self.report.update(self._progress(), facts)

    def _cuda(self) -> list[torch.device]:
        return [self.model.device] if self.model.device.type == "cuda" else []
