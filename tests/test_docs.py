"""The documentation is true: its commands run, its figures come from files, its links lead
somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import corpus_text, review_rows

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def surroundings(folder: Path) -> dict[str, str]:
    """A user's: all cores, and a cache of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**kept, "HEADSWAP_CACHE": str(folder / "cache")}


def test_results_are_rendered_from_their_files():
    command = [sys.executable, str(ROOT / "benchmarks/results.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_paper_plan_is_rendered_from_its_file():
    command = [sys.executable, str(ROOT / "benchmarks/paper_plan.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_examples_for_schedulers_run_their_line(tmp_path):
    """Each picks one command of the list, by the index that its scheduler gives it."""
    import yaml

    page = ROOT / "docs/scaling.md"
    (tmp_path / "todo").write_text("headswap resume x --run a\nheadswap resume x --run b\n")
    (tmp_path / "headswap").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "headswap").chmod(0o755)
    around = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    parts, round_ = (block for block in blocks(page, "sh") if "#SBATCH" in block)
    (job,) = map(yaml.safe_load, blocks(page, "yaml"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (line,) = container["args"]
    for code, index, expected in (
        (parts, {"SLURM_ARRAY_TASK_ID": "3"}, "--part 3/8"),
        (round_, {"SLURM_ARRAY_TASK_ID": "2"}, "resume x --run b"),
        (line.replace("/shared/", ""), {"JOB_COMPLETION_INDEX": "0"}, "resume x --run a"),
    ):
        command = [*container["command"], code]
        done = subprocess.run(
            command, env={**around, **index}, cwd=tmp_path, capture_output=True, text=True
        )
        assert expected in done.stdout, done.stderr


def test_the_readmes_verdict_is_the_demos():
    found = json.loads((ROOT / "docs/results/transfer.json").read_text("utf-8"))
    assert found["demo"]["verdict"] in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", found.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert anchor in anchors, target


def test_the_site_has_no_dead_links(tmp_path):
    command = [sys.executable, str(ROOT / "docs/site.py"), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
    pages = {path.name: path.read_text("utf-8") for path in tmp_path.glob("*.html")}
    assert {"index.html", "tour.html", "settings.html", "architecture.html"} <= pages.keys()
    for name, content in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', content):
            path, _, anchor = link.partition("#")
            assert "://" not in link, (name, link)
            assert (tmp_path / (path or name)).exists(), (name, link)
            if anchor:
                assert f'id="{anchor}"' in pages[path or name], (name, link)


def test_every_setting_is_documented_and_nothing_else():
    from dataclasses import fields

    from headswap import settings
    from headswap.nn.spec import Stack
    from headswap.objectives import OBJECTIVES
    from headswap.text.tokenizer import TokenizerPlan
    from headswap.training.plan import Plan

    kinds = {"model": Stack, "tokenizer": TokenizerPlan, "data": settings.DataPlan, "train": Plan}
    kinds |= {name: kind for name, kind in OBJECTIVES.items() if name != "backwards"}
    parts = re.split(r"^## (\w+)$", (ROOT / "docs/settings.md").read_text("utf-8"), flags=re.M)
    documented = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert documented.keys() == kinds.keys()
    for section, kind in kinds.items():
        cells = re.findall(r"^\| (`.*?) \|", documented[section], flags=re.M)
        names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
        assert names == {field.name for field in fields(kind)}, section


@pytest.mark.slow
def test_the_readmes_commands_run(tmp_path):
    """Every headswap command and the Python examples, top to bottom, on small files."""
    (tmp_path / "corpus.txt").write_text(corpus_text(300), "utf-8")
    rows = "".join(f'"{row["text"]}",{row["label"]}\n' for row in review_rows(100))
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows, "utf-8")
    rows = "".join(f'"{row["text"]}",{row["label"]}\n' for row in review_rows(60, seed=8))
    (tmp_path / "unseen.csv").write_text("text,label\n" + rows, "utf-8")
    pairs = "".join(f"{row['text']}\t{row['text'][::-1]}\n" for row in review_rows(80))
    (tmp_path / "pairs.tsv").write_text(pairs, "utf-8")
    environment = surroundings(tmp_path)
    ran = 0
    for block in blocks(ROOT / "README.md", "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if not words or words[0] != "headswap":
                continue
            command = [sys.executable, "-m", *words]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            ran += 1
    for page in ("README.md", "docs/python.md"):
        (example,) = blocks(ROOT / page, "python")
        script = tmp_path / "example.py"
        script.write_text(example, "utf-8")
        command = [sys.executable, str(script)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert ran >= 9


@pytest.fixture(scope="session")
def toured(tmp_path_factory):
    """The folder in which every command of the tour was run, both demos first."""
    folder = tmp_path_factory.mktemp("tour")
    command = [sys.executable, str(ROOT / "benchmarks/tour.py"), "--folder", str(folder)]
    notebook = folder / "tour.ipynb"
    done = subprocess.run(
        [*command, "--out", str(notebook)],
        env=surroundings(folder),
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_tours_commands_run_and_say_what_it_says(toured):
    cells = json.loads((toured / "tour.ipynb").read_text("utf-8"))["cells"]
    said = "".join(output["text"] for cell in cells for output in cell.get("outputs", []))
    for expected in ("21,018,401", "10,968,602", "none moved by 0.000000", "position by position"):
        assert expected in said
    kept = json.loads((ROOT / "docs/tour.ipynb").read_text("utf-8"))["cells"]
    assert [cell["source"] for cell in kept] == [cell["source"] for cell in cells]
    for page in ("mask.html", "attention.html", "heads.html", "film.html", "bank.html"):
        assert (toured / page).stat().st_size > 10_000


@pytest.mark.slow
def test_the_demo(toured):
    found = json.loads((toured / "runs/demo/report.json").read_text())
    gains = {(row["from"], row["to"]): row for row in found["differences"]}
    for other in ("scratch", "linear"):
        gain = gains[other, "english-small"]
        assert gain["over_texts"]["low"] > 0, found["verdict"]
    assert gains["scratch", "english-small"]["over_seeds"]["low"] > 0
    assert (toured / "runs/demo/report.html").stat().st_size < 5e6


@pytest.mark.slow
def test_the_translation_demo(toured):
    notebook = (toured / "tour.ipynb").read_text("utf-8")
    exact = float(re.search(r"unseen numbers: ([0-9.]+)", notebook).group(1))
    assert exact >= 0.98


@pytest.fixture
def extension(tmp_path):
    """The objective of docs/extending.md as a module of its own."""
    (code,) = blocks(ROOT / "docs/extending.md", "python")
    (tmp_path / "backwards.py").write_text(code, "utf-8")
    paths = [str(tmp_path), str(ROOT / "tests"), *sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HEADSWAP_CACHE": str(tmp_path / "cache"),
    }


def test_the_extension_trains(extension, tmp_path):
    (tmp_path / "corpus.txt").write_text(corpus_text(200), "utf-8")
    code = (
        "import backwards, headswap\n"
        "small = ['model.width=16', 'model.heads=2', 'model.layers=1', 'model.length=24']\n"
        "small += ['tokenizer.vocabulary=330', 'train.steps=60', 'train.lr=0.01']\n"
        "run = headswap.train('backwards', 'corpus.txt', out='run', changes=small)\n"
        "assert run.run.scores()['valid']['loss'] < 4.5\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=extension, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_conformance_tests_pick_it_up_unasked(extension, tmp_path):
    tests = str(ROOT / "tests/objectives/test_objectives.py")
    arguments = [tests, "-k", "backwards", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = f"import backwards, pytest, sys; sys.exit(pytest.main({arguments!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=extension, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"(\d+) passed", done.stdout)
