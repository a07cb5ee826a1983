"""Options that several commands share, and what commands need around them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from headswap.progress import Reporter

BUDGET = Group("Budget (one of)")
READING = Group("Reading")
HOSTS = Group("Many hosts")

WHERE = "Where to compute: auto, cpu, cuda, cuda:N."
Device = Annotated[str, Parameter(help=WHERE)]
OwnDevice = Annotated[str | None, Parameter(help=f"{WHERE} As the recipe says, or auto.")]
Json = Annotated[
    bool, Parameter(name="--json", negative="", help="Print one JSON object for machines.")
]
JsonLines = Annotated[
    bool, Parameter(name="--json", negative="", help="Print a JSON object a line, one a text.")
]
TextColumn = Annotated[
    str | None,
    Parameter(group=READING, help="The column that holds the text, when its name is unusual."),
]
LabelColumn = Annotated[
    str | None,
    Parameter(group=READING, help="The column that holds the label, when its name is unusual."),
]
SPLIT = "How .txt files are split: at blank lines, one document a line, or as it looks."
Splitting = Literal["auto", "blank", "line"]
Documents = Annotated[Splitting, Parameter(group=READING, help=SPLIT)]
OwnDocuments = Annotated[
    Splitting | None, Parameter(group=READING, help=f"{SPLIT} As the recipe says, or auto.")
]
Gpus = Annotated[
    int | None, Parameter(help="Train on so many GPUs of this machine, a process on each.")
]
Processes = Annotated[
    int | None,
    Parameter(help="Train in so many processes: on the CPU, or on as many GPUs as --gpus would."),
]
On = Annotated[
    Literal["here", "ray"] | None,
    Parameter(
        group=HOSTS,
        help="Where runs are made: in processes here, or on the Ray cluster that RAY_ADDRESS "
        "names or that this host is part of: --on ray.",
    ),
]
List = Annotated[
    bool,
    Parameter(
        name="--list",
        negative="",
        group=HOSTS,
        help="Make no runs, but print those that can be made now as commands for any scheduler: "
        "headswap resume runs/transfer-reviews --list.",
    ),
]
Files = Annotated[list[Path], Parameter(consume_multiple=True, negative="")]
Sources = Annotated[list[str], Parameter(consume_multiple=True, negative="")]
"""Files, or URLs, which a path would spoil."""
Repeated = Annotated[list[str], Parameter(negative="")]


def reporter() -> Reporter:
    from headswap.progress import reporter

    return reporter()
