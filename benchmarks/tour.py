"""Run docs/tour.md from the top and write it as an executed notebook.

    python benchmarks/tour.py --out docs/tour.ipynb

Commands run in a folder of their own (--folder keeps it); the first that fails ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)


def cells() -> list[dict[str, Any]]:
    """The tour as cells: prose, and one cell for each block."""
    text = (DOCS / "tour.md").read_text("utf-8")
    found: list[dict[str, Any]] = []
    place = 0
    for block in BLOCK.finditer(text):
        prose = text[place : block.start()].strip()
        if prose:
            found.append({"cell_type": "markdown", "metadata": {}, "source": prose})
        found.append({"cell_type": block[1], "source": block[2].strip()})
        place = block.end()
    rest = text[place:].strip()
    return [*found, {"cell_type": "markdown", "metadata": {}, "source": rest}]


def ran(kind: str, source: str, folder: Path) -> str:
    """What a block printed; progress, which goes to standard error, is left out."""
    commands = [source] if kind == "python" else source.splitlines()
    said = ""
    for line in commands:
        words = [sys.executable, "-c", line] if kind == "python" else ["bash", "-c", line]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "100"}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{line}\n{done.stdout}{done.stderr}")
        said += done.stdout
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="the notebook")
    parser.add_argument("--folder", type=Path, help="where the commands run")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    made = []
    for number, cell in enumerate(cells(), 1):
        if cell["cell_type"] != "markdown":
            kind, source = cell["cell_type"], cell["source"]
            said = ran(kind, source, folder)
            shown = source
            if kind == "sh":
                shown = "\n".join(f"!{line}" for line in source.splitlines())
            output = {"output_type": "stream", "name": "stdout", "text": said}
            cell = {
                "cell_type": "code",
                "execution_count": number,
                "metadata": {},
                "outputs": [output] if said else [],
                "source": shown,
            }
        made.append({"id": f"cell-{number}", **cell})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": made,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    if options.out:
        options.out.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
