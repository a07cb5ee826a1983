"""The documentation as a site: python docs/site.py OUT (or: make docs).

Pages are the repository's Markdown files in the order of ``PAGES``; links between them, to
pictures and to result files work from disk, and nothing is fetched.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
STYLES = (ROOT / "src/headswap/report/templates/report.css", ROOT / "docs/site.css")
PAGES = {
    "Learn": ["README.md", "docs/tour.md"],
    "Do": [
        "docs/experiment.md",
        "docs/python.md",
        "docs/translation.md",
        "docs/data.md",
        "docs/import.md",
        "docs/export.md",
        "docs/serving.md",
        "docs/scaling.md",
        "docs/extending.md",
    ],
    "Look up": ["docs/settings.md", "docs/planning.md", "docs/performance.md", "docs/results.md"],
    "Understand": ["docs/architecture.md", "CONTRIBUTING.md", "CHANGELOG.md"],
}


def anchor(title: str) -> str:
    """The name of a heading, as links to it spell it."""
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def title_of(text: str) -> str:
    return re.search(r"^# (.*)$", text, re.MULTILINE)[1]  # type: ignore[index]


def target(path: Path) -> str:
    """Where a page of the repository lies in the site."""
    name = "index" if path.name == "README.md" else path.stem.lower()
    return f"{name}.html"


def page(path: Path, known: dict[Path, str]) -> str:
    text = path.read_text("utf-8")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r"&lt;!--.*?--&gt;", "", body)
    body = body.replace("<table>", '<div class="scroll"><table>').replace(
        "</table>", "</table></div>"
    )

    def named(found: re.Match[str]) -> str:
        plain = html.unescape(re.sub(r"<[^>]+>", "", found[2]))
        return f'<h{found[1]} id="{html.escape(anchor(plain))}">{found[2]}</h{found[1]}>'

    def led(found: re.Match[str]) -> str:
        link, _, place = html.unescape(found[2]).partition("#")
        if "://" in link or not link:
            return found[0]
        other = (path.parent / link).resolve()
        where = known.get(other, f"files/{other.relative_to(ROOT)}")
        return f'{found[1]}="{html.escape(where + ("#" + place if place else ""))}"'

    body = re.sub(r"<h(\d)>(.*?)</h\1>", named, body)
    body = re.sub(r'(href|src)="([^"]+)"', led, body)
    menu = ""
    for group, names in PAGES.items():
        menu += f"<h2>{group}</h2>"
        for name in names:
            other = ROOT / name
            if other in known:
                here = ' aria-current="page"' if other == path else ""
                label = html.escape(title_of(other.read_text("utf-8")))
                menu += f'<a href="{known[other]}"{here}>{label}</a>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title_of(text))}</title>"
        f'<link rel="stylesheet" href="style.css"></head><body><div><nav>{menu}</nav>'
        f"<main>{body}</main></div></body></html>\n"
    )


def build(out: Path) -> None:
    paths = [ROOT / name for names in PAGES.values() for name in names if (ROOT / name).exists()]
    known = {path: target(path) for path in paths}
    out.mkdir(parents=True, exist_ok=True)
    (out / "style.css").write_text("".join(s.read_text("utf-8") for s in STYLES), "utf-8")
    for path in paths:
        made = page(path, known)
        (out / known[path]).write_text(made, "utf-8")
        for name in re.findall(r'"files/([^"#]+)', made):
            (out / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy(ROOT / name, out / "files" / name)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
