"""The look inside, in a browser: by pointer and by keyboard, wide and narrow, light and dark."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from conftest import STACKS
from headswap.looking.picture import picture
from headswap.objectives import Causal, Classify, Translate
from headswap.report import look
from looking.test_looking import trained

HOSTILE = "<img src=x onerror=alert(1)> good film"


def test_the_courses_shape_at_512_tokens_stays_below_five_megabytes(tokens):
    stack = replace(STACKS["classic"], width=40, heads=2, layers=4, length=514)
    run = trained(Causal(), tokens, stack)
    text = "the good film was long " * 400
    ids = tokens.encode([text])[0][:511]
    page = look.page(picture(run, tokens.decode([int(i) for i in ids])))
    assert 1_000_000 < len(page.encode()) < 5_000_000


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_in_a_browser(width, scheme, tokens, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium")
    stack = replace(STACKS["modern"], length=64)
    sentences = ["the film", "a good film"]
    made = {
        "classify": (trained(Classify(("bad", "good")), tokens, stack), HOSTILE, {}),
        "causal": (
            trained(Causal(), tokens, stack),
            "the good film",
            {"word": "film", "sentences": sentences},
        ),
        "translate": (
            trained(Translate(), tokens, replace(STACKS["classic"], decoder_layers=2)),
            "the film",
            {"target": "a good film"},
        ),
    }
    with playwright.sync_playwright() as player:
        options = {"executable_path": chromium, "args": ["--no-sandbox", "--disable-gpu"]}
        browser = player.chromium.launch(**options)
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        for name, (run, text, more) in made.items():
            path = tmp_path / f"{name}.html"
            path.write_text(look.page(picture(run, text, **more)), "utf-8")
            view, asked, problems = context.new_page(), [], []
            view.on("request", lambda request, a=asked: a.append(request.url))
            view.on("console", lambda one, p=problems: p.append(one.text))
            view.on("pageerror", lambda error, p=problems: p.append(str(error)))
            view.on("dialog", lambda dialog, p=problems: p.append("a dialog"))
            view.goto(path.as_uri())
            assert view.evaluate("document.documentElement.scrollWidth") <= width
            readout = view.locator("[data-show=readout]")
            matrix = view.locator("canvas[data-show=matrix]")
            matrix.focus()
            view.keyboard.press("ArrowDown")
            first = readout.inner_text()
            assert " looks at " in first
            view.keyboard.press("ArrowDown")
            assert readout.inner_text() != first
            view.select_option("[data-choose=layer]", "0")
            view.select_option("[data-choose=head]", "1")
            matrix.scroll_into_view_if_needed()
            box = matrix.bounding_box()
            view.mouse.move(box["x"] + box["width"] - 12, box["y"] + box["height"] - 12)
            assert " looks at " in readout.inner_text()
            for view_name in ("lines", "words"):
                view.select_option("[data-choose=view]", view_name)
                assert view.locator(f"[data-show={view_name}]").is_visible()
            if name != "translate":
                view.select_option("[data-choose=layer]", "rollout")
            for index in range(view.locator("[data-choose=mask] option").count()):
                view.select_option("[data-choose=mask]", str(index))
            view.locator("canvas[data-show=mask]").focus()
            view.keyboard.press("ArrowRight")
            assert "look at" in view.locator("[data-show=allowed]").inner_text()
            if name == "classify":
                shown = view.locator("#mattered")
                assert shown.locator(".piece").count() > 2 and view.locator("img").count() == 0
            else:
                view.locator("#candidates button").first.click()
                assert view.locator("[data-show=likeliest] tr").count() in (5, 6)
            assert problems == [] and asked == [path.as_uri()]
            view.close()
        browser.close()
