"""A Hugging Face folder as it lies there: settings and tensors. Only JSON and safetensors are
read, never pickle."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from headswap.errors import DataError, StorageError, UsageError
from headswap.types import Table

CONFIG, INDEX, WHOLE = "config.json", "model.safetensors.index.json", "model.safetensors"
BUFFERS = re.compile(r"(\.attn\.(masked_)?bias|position_ids|token_type_ids|\.inv_freq)$")
IN_A_LAYER = re.compile(r"(^|\.)(layers?|h)\.\d+\.")
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def read_json(path: Path) -> Table:
    """A file's table; an empty one where there is no such file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({error})", where=path) from error
    if not isinstance(found, dict):
        raise DataError("not a JSON object", where=path)
    return found


class Config:
    """``config.json``, asked for one thing at a time."""

    def __init__(self, folder: Path, table: Table | None = None) -> None:
        self.where = folder / CONFIG
        if not folder.is_dir():
            what = "not a folder" if folder.exists() else "no such folder"
            raise StorageError(what, where=folder, fix="name a local folder: hf:FOLDER")
        if not self.where.is_file():
            raise UsageError(
                f"no {CONFIG} in it", where=folder, fix="name the folder that holds the model"
            )
        self.table = read_json(self.where) if table is None else table

    def get(self, name: str, default: Any = None) -> Any:
        """A value; one that is there as null counts as left out."""
        found = self.table.get(name)
        return default if found is None else found

    def number(self, name: str, default: int | None = None) -> int:
        found = self.get(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise DataError(f"{name} must be a whole number above 0, not {found}", where=self.where)
        return found

    def real(self, name: str, default: float) -> float:
        found = self.get(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < 1e12:
            raise DataError(f"{name} must be a number, not {found}", where=self.where)
        return float(found)

    def text(self, name: str, default: str) -> str:
        found = self.get(name, default)
        if not isinstance(found, str):
            raise DataError(f"{name} must be a name, not {found}", where=self.where)
        return found

    def inside(self, *names: str) -> Config:
        """The same with what the tables of these names hold laid over it."""
        tables = [self.get(name, {}) for name in names]
        for name, table in zip(names, tables, strict=True):
            if not isinstance(table, dict):
                raise DataError(f"{name} must be a table, not {table}", where=self.where)
        merged = {name: value for table in (self.table, *tables) for name, value in table.items()}
        return Config(self.where.parent, merged)

    def refuse(self, *unless: tuple[bool, str]) -> None:
        """Refuse a model that has what our layers do not."""
        for wrong, what in unless:
            if wrong:
                raise UsageError(
                    f"{what}, which these layers do not have",
                    where=self.where,
                    fix="choose another model",
                )


class Weights:
    """The tensors of a folder by name, read when they are taken, every one in fp32."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder = folder
        self.files = _files(folder)
        self._place: dict[str, tuple[Path, str]] = {}
        for path in self.files:
            try:
                with safetensors.safe_open(path, "pt") as stream:
                    names = list(stream.keys())
            except (safetensors.SafetensorError, OSError, ValueError) as error:
                raise DataError(f"not a readable safetensors file ({error})", where=path) from error
            for name in names:
                known = name
                for old, new in OLD_NAMES.items():
                    known = known.replace(old, new)
                self._place[known.removeprefix(prefix)] = (path, name)
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def take(self, name: str, *shape: int | None) -> Tensor:
        """A tensor, refused when its shape is another; None stands for any size."""
        if name not in self._place:
            raise DataError(
                f"the tensor {name} is missing", where=self.folder, fix="is the download whole?"
            )
        path, stored = self._place[name]
        with safetensors.safe_open(path, "pt") as stream:
            found: Tensor = stream.get_tensor(stored)
        fits = len(shape) == found.ndim and all(
            wanted in (None, size) for wanted, size in zip(shape, found.shape, strict=True)
        )
        if not fits:
            wanted = " × ".join("any" if size is None else str(size) for size in shape)
            raise DataError(
                f"the tensor {name} is {' × '.join(map(str, found.shape))} where {CONFIG} asks "
                f"for {wanted}",
                where=path,
            )
        if found.dtype not in FLOATS:
            raise UsageError(
                f"the tensor {name} is quantized ({found.dtype})",
                where=path,
                fix="name the model's unquantized weights",
            )
        self._taken.add(name)
        return found.float()

    def left(self) -> list[str]:
        """The parts that were not taken. A tensor left in a layer means that the model computes
        something else than was thought."""
        names = [n for n in self._place if n not in self._taken and not BUFFERS.search(n)]
        for name in names:
            if IN_A_LAYER.search(name):
                raise UsageError(
                    f"the tensor {name} has no place in these layers",
                    where=self._place[name][0],
                    fix="choose another model",
                )
        return sorted({name.split(".")[0] for name in names})


def _files(folder: Path) -> Sequence[Path]:
    """The weights' files: one, or the parts that an index names."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if (folder / INDEX).is_file():
        parts = read_json(folder / INDEX).get("weight_map")
        if not isinstance(parts, dict) or not parts:
            raise DataError("no weight_map in it", where=folder / INDEX)
        names = sorted({str(part) for part in parts.values()})
        for name in names:
            if Path(name).name != name:
                raise DataError(f"names a file elsewhere ({name})", where=folder / INDEX)
            if not (folder / name).is_file():
                raise DataError(f"the part {name} is missing", where=folder)
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise UsageError(
            f"{len(found)} safetensors files and no {INDEX}",
            where=folder,
            fix=f"keep one, as {WHOLE}",
        )
    pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.h5")]
    what = f"only {pickled[0].name}, which is not read" if pickled else "no weights"
    raise UsageError(
        f"{what}; safetensors are needed",
        where=folder,
        fix="save it with transformers: model.save_pretrained(FOLDER)",
    )
