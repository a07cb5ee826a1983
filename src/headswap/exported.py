"""A classifier that was exported to ONNX, in use: as the run it came from, and faster on a CPU.

Every text goes through the model alone, without padding, so that its scores never depend on its
neighbours (int8 scales would); several go at the same time, a thread each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headswap.errors import DataError, ResourceError, UsageError
from headswap.labelling import Labeller
from headswap.text import tokenizer
from headswap.text.loader import fitted
from headswap.text.tokenizer import cores
from headswap.types import Ids

FACTS, FILE, SMALL_FILE = "headswap.json", "model.onnx", "model.int8.onnx"


def is_exported(path: Path) -> bool:
    """An exported folder, or one of its files."""
    return (folder_of(path) / FACTS).is_file()


def folder_of(path: Path) -> Path:
    return path.parent if path.suffix == ".onnx" else path


class Exported(Labeller):
    """An exported classifier, loaded: a folder, or its ``model.int8.onnx``."""

    def __init__(self, path: Path) -> None:
        folder = folder_of(path)
        self.path = path if path.suffix == ".onnx" else folder / FILE
        try:
            facts = json.loads((folder / FACTS).read_text("utf-8"))
            self.labels = tuple(map(str, facts["labels"]))
            self._begins, self._ends = int(facts["begins_with"]), facts["ends_with"]
            self._room = int(facts["length"]) - (1 if self._ends is None else 2)
            self._long, self.clean = facts["long"], tuple(facts["clean"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"not an exported model ({error})", where=folder / FACTS) from error
        if not self.labels or facts.get("output", "labels") != "labels":
            raise UsageError(
                "the exported model has no labels to predict",
                where=folder,
                fix="export a classifier",
            )
        if not self.path.is_file():
            raise DataError("no such file", where=self.path, fix="export the run again")
        self.tokens = tokenizer.load(folder)

    def scored(self, texts: Sequence[str]) -> np.ndarray:
        rows = [self._row(ids) for ids in self.tokens.encode(texts)]
        if not rows:
            return np.zeros((0, len(self.labels)))
        if len(rows) == 1:
            return self._run(self._alone, rows[0])
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # the last ones are short
        found = self._pool.map(lambda i: self._run(self._beside, rows[i]), order)
        by_text = dict(zip(order, found, strict=True))
        return np.concatenate([by_text[i] for i in range(len(rows))])

    def _row(self, ids: Ids) -> Ids:
        ending = [] if self._ends is None else [self._ends]
        kept = fitted(ids, self._room, self._long)
        return np.concatenate([[self._begins], kept, ending]).astype(np.int64)

    @staticmethod
    def _run(session: Any, row: Ids) -> np.ndarray:
        given = {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)}
        return np.asarray(session.run(None, given)[0])

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(cores(), thread_name_prefix="onnx")

    @cached_property
    def _alone(self) -> Any:
        """For one text: its products on all cores."""
        return self._session(cores())

    @cached_property
    def _beside(self) -> Any:
        """For many texts: each on a core of its own."""
        return self._session(1)

    def _session(self, threads: int) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise ResourceError(
                "this needs onnxruntime", fix="pip install 'headswap[export]'"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            return onnxruntime.InferenceSession(
                str(self.path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors have no common class
            first = str(error).splitlines()[0]
            raise DataError(f"onnxruntime cannot load it ({first})", where=self.path) from error
