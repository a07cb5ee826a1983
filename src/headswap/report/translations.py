"""Translators compared on the same sentences: BLEU, and paired differences from the first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from headswap.errors import DataError, StorageError, UsageError
from headswap.report import bleu
from headswap.report.compare import check_fair
from headswap.run import PREDICTIONS, Run
from headswap.types import Table
from headswap.wording import counted


def are_translators(paths: Sequence[Path]) -> bool:
    """Whether runs translate; translators and classifiers together are refused."""
    kinds = {Run.open(path).settings().get("objective") for path in paths}
    if "translate" in kinds and len(kinds) > 1:
        raise UsageError("a translator cannot be compared with a classifier")
    return kinds == {"translate"}


def compare(paths: Sequence[Path], split: str, why: str | None = None) -> Table:
    """Every run's scores, and each later run against the first, sentence by sentence. Runs that
    differ in budget or selection rule are refused, unless ``why`` says why they may."""
    if len(paths) < 2:
        raise UsageError("one run cannot be compared", fix="name two or more")
    read = [texts(path, split) for path in paths]
    right = read[0][1]
    for path, (_, other) in zip(paths, read, strict=True):
        if other != right:
            raise UsageError(
                f"{paths[0]} and {path} translated different {split} sentences",
                fix=f"train both with the same --{split}",
            )
        ours, its = (Run.open(some).settings() for some in (paths[0], path))
        check_fair((paths[0], ours), (path, its), why)
    return {
        "split": split,
        "why": why,
        "sentences": len(right),
        "runs": [
            {"name": path.name, **bleu.scores(said, right, language(path))}
            for path, (said, _) in zip(paths, read, strict=True)
        ],
        "differences": [
            {"from": paths[0].name, "to": path.name, **bleu.paired(read[0][0], said, right)}
            for path, (said, _) in list(zip(paths, read, strict=True))[1:]
        ],
    }


def lines(found: Table) -> Iterator[str]:
    """The comparison for a terminal."""
    sentences = counted(found["sentences"], f"{found['split']} sentence")
    yield f"{sentences}; sacreBLEU {_signature(found)}"
    for row in found["runs"]:
        old = row.get(bleu.OLD)
        shown = "" if old is None else f"  tokenised lower-case BLEU {old:.2f}"
        yield (
            f"  {row['name']:20} BLEU {row['bleu']:.2f}  chrF {row['chrf']:.2f}  "
            f"TER {row['ter']:.2f}{shown}"
        )
    for row in found["differences"]:
        yield (
            f"  {row['to']} - {row['from']}: {row['gain']:+.2f} BLEU  over sentences "
            f"[{row['low']:.2f}, {row['high']:.2f}] (p {row['p']:.3g})"
        )


def _signature(found: Table) -> str:
    return str(found["runs"][0]["signature"])


def language(path: Path) -> str:
    """The target's, as the run knows it."""
    return str(Run.open(path).settings().get("translate", {}).get("language", "en"))


def texts(path: Path, split: str) -> tuple[list[str], list[str]]:
    """What a run said, and what would have been right."""
    run = Run.open(path)
    run.check_finished()
    source = path / PREDICTIONS / f"{split}.jsonl"
    try:
        rows = [json.loads(line) for line in source.read_bytes().splitlines()]
        return [row["translation"] for row in rows], [row["target"] for row in rows]
    except FileNotFoundError as error:
        raise StorageError(
            f"the run has no {split} translations", where=path, fix=f"train it with --{split}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"damaged translations ({error})", where=source) from error
