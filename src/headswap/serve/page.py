"""The page: one file with its script and style inside, and the policy that allows no others."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources


@cache
def page() -> tuple[str, str]:
    """The page and its content policy."""
    style = _file("headswap.report", "templates", "report.css") + _file(
        "headswap.serve", "page.css"
    )
    script = _file("headswap.serve", "page.js")
    made = _file("headswap.serve", "page.html")
    made = made.replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return made, policy


def _file(package: str, *names: str) -> str:
    return resources.files(package).joinpath(*names).read_text("utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
