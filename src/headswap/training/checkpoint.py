"""Checkpoints: the whole state of a training, committed in one step.

checkpoints/step-00000120/
    model.safetensors      every parameter once
    optimizer.safetensors  the optimizer's tensors by parameter name
    average.safetensors    the weights' moving average, where one is kept
    best.safetensors       the best weights so far, where they are kept and not the last
    state.json             step, best, sums since the last log line
    manifest.json          sizes and SHA-256 sums
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headswap import storage
from headswap.errors import DataError
from headswap.nn.model import Model
from headswap.training import parallel
from headswap.training.optim import Average

MODEL, OPTIMIZER, AVERAGE, BEST, STATE = (
    "model.safetensors",
    "optimizer.safetensors",
    "average.safetensors",
    "best.safetensors",
    "state.json",
)
KEEP_LAST = 2


@dataclass
class State:
    """Where a training stands. Floats survive JSON exactly."""

    step: int = 0
    best_step: int | None = None
    best_value: float | None = None
    best_loss: float | None = None
    stale: int = 0
    metrics_bytes: int = 0
    seconds: float = 0.0
    tokens: int = 0
    stopped_early: bool = False
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)


def save_weights(model: Model, path: Path) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.tensors().items()}
    with storage.ordinary(path):
        save_file(tensors, path)


def load_weights(model: Model, path: Path) -> None:
    """Fill a model from a file, refusing any tensor that is missing, extra or misshapen."""
    tensors = model.tensors()
    check_shapes(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    found = read_tensors(path)
    for name, tensor in tensors.items():
        parallel.put(tensor, found[name])


def check_shapes(path: Path, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Compare a file's header with what a model needs, before any memory is taken for it."""
    try:
        with safetensors.safe_open(path, "pt") as stream:
            names = set(stream.keys())
            found = {name: tuple(stream.get_slice(name).get_shape()) for name in names}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DataError(f"not a readable safetensors file ({error})", where=path) from error
    for name, shape in expected.items():
        if name not in found:
            raise DataError(f"the tensor {name!r} is missing", where=path)
        if found[name] != shape:
            raise DataError(
                f"the tensor {name!r} has the shape {list(found[name])}, not {list(shape)}",
                where=path,
                fix="these weights are of another model",
            )
    if len(found) > len(expected):
        extra = sorted(names - expected.keys())
        raise DataError(f"unknown tensors: {', '.join(extra[:3])}", where=path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise DataError(f"not a readable safetensors file ({error})", where=path) from error


def save(
    folder: Path,
    model: Model,
    optimizer: torch.optim.Optimizer,
    state: State,
    average: Average | None = None,
    best: Mapping[str, Tensor] | None = None,
    write: bool = True,
) -> Path:
    """Commit the state of a training; drop checkpoints that are no longer needed. Of several
    ranks all take part and one is to ``write``: what it writes does not show how many there
    were."""
    target = folder / f"step-{state.step:08d}"
    tensors = {MODEL: model.tensors(), OPTIMIZER: _optimizer_tensors(model, optimizer)}
    if average is not None:
        tensors[AVERAGE] = average.tensors
    if best is not None and (state.best_step != state.step or average is not None):
        tensors[BEST] = dict(best)
    if not write:
        for some in tensors.values():
            parallel.on_host(some, wanted=False)
        return target
    with storage.new_folder(target) as staged:
        for name, some in tensors.items():
            with storage.ordinary(staged / name):
                save_file(parallel.on_host(some, wanted=True), staged / name)
        (staged / STATE).write_text(json.dumps(asdict(state)) + "\n", "utf-8")
    prune(folder, KEEP_LAST)
    return target


def prune(folder: Path, last: int = 1) -> None:
    """Delete all checkpoints but the last few."""
    for old in _steps(folder)[last:]:
        storage.remove(old)


def best_weights(path: Path, state: State) -> dict[str, Tensor] | None:
    """The best weights that a checkpoint knows of: its own, or those kept beside them."""
    if (path / BEST).exists():
        return read_tensors(path / BEST)
    return read_tensors(path / MODEL) if state.best_step == state.step else None


def latest(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose every byte is as written; damaged ones are passed over."""
    storage.sweep(folder)
    for path in _steps(folder):
        wrong = storage.problem(path)
        if wrong is None:
            return path
        warn(f"{path}: damaged checkpoint ({wrong}); using the one before it")
    return None


def restore(
    path: Path,
    model: Model,
    optimizer: torch.optim.Optimizer,
    average: Average | None = None,
) -> State:
    load_weights(model, path / MODEL)
    if average is not None:
        for name, tensor in read_tensors(path / AVERAGE).items():
            parallel.put(average.tensors[name], tensor)
    _restore_optimizer(read_tensors(path / OPTIMIZER), model, optimizer, path)
    try:
        return State(**json.loads((path / STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"not the state of a training ({error})", where=path / STATE) from error


def _restore_optimizer(
    tensors: Mapping[str, Tensor], model: Model, optimizer: torch.optim.Optimizer, path: Path
) -> None:
    parameters = model.tensors()
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in parameters:
            raise DataError(f"{key!r} belongs to no parameter", where=path / OPTIMIZER)
        states.setdefault(name, {})[entry] = tensor
    for name, entries in states.items():
        parameter = parameters[name]
        for entry, tensor in entries.items():
            # Step counters stay where the optimizer keeps them: a fused one, beside the weights.
            entries[entry] = parallel.part_of(tensor, parameter)
        optimizer.state[parameter] = entries


def _optimizer_tensors(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {parameter: name for name, parameter in model.tensors().items()}
    tensors: dict[str, Tensor] = {}
    for parameter, entries in optimizer.state.items():
        values: dict[str, Any] = entries
        for entry, value in values.items():
            tensors[f"{names[parameter]}/{entry}"] = value
    return tensors


def _steps(folder: Path) -> list[Path]:
    """Committed checkpoints, newest first."""
    committed = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(committed, key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
