"""The page, used as a person would, in a browser."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from headswap.objectives import Causal
from headswap.serve import page

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from headswap.serve import app as serving
from headswap.serve import server as process
from serve.test_app import ask, models  # noqa: F401

HOSTILE = "<img src=x onerror=alert(1)><b>good</b> film"


def test_words_that_mattered_come_with_a_classification(models):  # noqa: F811
    body = {"texts": ["the film was good"], "words": True}
    (said,) = ask(models, "/v1/models/reviews/classify", body).json()["predictions"]
    assert [word["text"] for word in said["words"]] == ["the", "film", "was", "good"]


def test_a_stream_is_the_text_token_by_token(models):  # noqa: F811
    body = {"prompt": "the film", "length": 6, "stream": True}
    answer = ask(models, "/v1/models/base/generate", body)
    rows = [json.loads(line) for line in answer.text.splitlines()]
    whole = models["base"].generate(["the film"], 6)[0]
    assert "the film" + "".join(row["text"] for row in rows) == whole
    for row in rows:
        assert row["alternatives"] == sorted(row["alternatives"], key=lambda one: -one[1])
        assert 0 < row["probability"] <= 1


def test_attention_is_the_librarys(models):  # noqa: F811
    found = ask(models, "/v1/models/en-fr/attention", {"text": "word3 and more"}).json()
    assert [one["name"] for one in found["attention"]] == ["source", "target", "cross"]
    for one in found["attention"]:
        for head in one["layers"][0]:
            assert len(head) == len(one["queries"])
            assert sum(head[0]) == pytest.approx(1, abs=1e-2)
    wrong = ask(models, "/v1/models/base/attention", {"text": "film", "target": 7})
    assert wrong.status_code == 422
    wrong = ask(models, "/v1/models/base/attention", {"text": "film " * 300})
    assert wrong.status_code == 422 and "tokens" in wrong.json()["error"]["what"]


def test_the_page_needs_no_token_but_what_it_asks_for_does(models):  # noqa: F811
    assert ask(models, "/", token="secret").status_code == 200
    assert ask(models, "/v1/models", token="secret").status_code == 401


def test_the_policy_allows_the_page_s_own_script_alone():
    made, policy = page.page()
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "/*script*/" not in made and "http://" not in made.replace("http://www.w3.org", "")
    assert Causal.name  # the page names tasks, not objectives


@contextmanager
def running(models, token=None):  # noqa: F811
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = process.make(serving.build(serving.Server(models), token), "127.0.0.1", port)
    thread = threading.Thread(target=lambda: asyncio.run(made.serve()), daemon=True)
    thread.start()
    while not made.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        made.should_exit = True
        thread.join(15)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("width", [1100, 390])
def test_every_function_in_a_browser(models, width):  # noqa: F811
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium")
    with running(models) as address, playwright.sync_playwright() as player:
        options = {"executable_path": chromium, "args": ["--no-sandbox", "--disable-gpu"]}
        browser = player.chromium.launch(**options)
        view = browser.new_page(viewport={"width": width, "height": 900})
        problems, asked = [], []
        view.on("console", lambda one: problems.append(one.text) if one.type == "error" else None)
        view.on("pageerror", lambda error: problems.append(str(error)))
        view.on("request", lambda request: asked.append(request.url))
        view.on("dialog", lambda dialog: problems.append("a dialog opened"))
        view.goto(address)
        view.wait_for_selector("[role=tab]")

        def use(model, tab, text):
            view.select_option("#first", model)
            view.click(f"[role=tab]:has-text('{tab}')")
            view.fill("#text", text)
            view.keyboard.press("Control+Enter")
            view.wait_for_selector("#state:text-matches('[0-9] s$')")
            assert view.locator(".problem").count() == 0
            return view.locator(".answer-card")

        card = use("reviews", "Classify", HOSTILE)
        assert card.locator(".chance").count() == 2 and card.locator(".piece").count() > 1
        assert card.locator("img, b").count() == 0 and "<img" in card.inner_text()
        view.select_option("#second", "en-fr")
        view.click("#go")
        view.wait_for_selector(".problem")
        assert view.locator(".answer-card").count() == 2
        view.select_option("#second", "")
        card = use("base", "Complete", "the film")
        card.locator(".token").first.click()
        card.locator("button.piece").nth(1).click()
        view.wait_for_selector("#state:text-matches('[0-9] s$')")
        assert view.locator("#text").input_value() != "the film"
        assert use("base", "Fill a mask", "the <mask> film").locator(".chance").count() >= 5
        assert use("en-fr", "Translate", "word3 and more").locator(".said").count() == 1
        card = use("base", "Attention", "the good film")
        card.locator("button.piece").first.click()
        assert card.locator("span.piece").count() > 2
        wide = view.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        assert problems == []
        assert all(url.startswith((address, "data:")) for url in asked)
        browser.close()
