"""The report's page: safe with hostile content, whole without a network, readable."""

from __future__ import annotations

import html
import json
import re
import shutil

import pytest

from headswap.experiment import verdict
from headswap.report import page

HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    "</style></title></svg>\"'><svg/onload=window.hacked=1>{{7*7}}javascript:alert(1)"
    "https://evil.example/x.png"
)


@pytest.fixture
def found(experiment):
    path, _ = experiment
    return json.loads((path / "report.json").read_text())


def spoilt(value):
    """The findings with every label, text, title and name turned against the reader."""
    if isinstance(value, dict):
        return {spoilt(k) if k == "good" else k: spoilt(v) for k, v in value.items()}
    if isinstance(value, list):
        return [spoilt(item) for item in value]
    if isinstance(value, str) and value in ("good", "bad"):
        return value + HOSTILE
    return value


def make_hostile(found):
    found = spoilt(found)
    found["title"] = HOSTILE
    for example in found["examples"]:
        example["text"] = HOSTILE
        for words in example["words"].values():
            for word in words:
                word["text"] = HOSTILE
    found["provenance"]["command"] = [HOSTILE]
    found["told"] = [HOSTILE]
    found["check"]["findings"].append({"what": HOSTILE, "count": 1, "detail": HOSTILE})
    return found


def test_the_page_is_whole_and_light(found):
    drawn = html.unescape(page.render(found))
    assert len(drawn) < 5e6
    outside = re.sub(r'xmlns(:\w+)?="http://www\.w3\.org/[^"]*"', "", drawn)
    assert "http" not in outside.replace("http-equiv", "")
    assert "default-src 'none'" in drawn and "unsafe" not in drawn and " style=" not in drawn
    assert found["verdict"] in drawn
    assert drawn.count("<details>") >= 7 and drawn.count("<svg") >= 6


def test_an_arm_with_one_label_count_speaks_for_itself(found):
    assert "causal, 60 labels: 0." not in re.sub('aria-label="[^"]*"', "", page.render(found))
    found["sizes"] = [60]
    found["arms"] = [row for row in found["arms"] if row["labels"] != 20]
    drawn = re.sub('aria-label="[^"]*"', "", page.render(found))
    assert ">causal, 60 labels: 0." in drawn and ">masked, 60 labels: 0." in drawn
    assert ">linear, 60 labels" not in drawn, "it was trained with 120 too"
    assert "labels alone are a point with its interval" in drawn


def test_hostile_content_is_only_text(found):
    drawn = page.render(make_hostile(found))
    assert "<script>window" not in drawn and "<img" not in drawn and "onload=window" in drawn
    assert drawn.count("<script>") == 1 and drawn.count("</style>") == 1
    assert "&lt;script&gt;" in drawn and "{{7*7}}" in drawn


def test_the_card_is_plain_too(found):
    card = verdict.card(make_hostile(found))
    assert "<script>" not in card.replace("\\<", "")


def test_both_verdicts(found):
    gain = verdict.difference(found, found["scratch"], found["winner"])
    gain["gain"] = 0.1
    gain["over_seeds"] = {"low": 0.05, "high": 0.15, "p": 0.01}
    gain["over_texts"] |= {"low": 0.06, "high": 0.14}
    assert verdict.verdict(found).startswith("Pretraining raised accuracy")
    gain["over_texts"] |= {"low": -0.06}
    assert "no measurable difference" in verdict.verdict(found)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(found, tmp_path, width, scheme):
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    path = tmp_path / "report.html"
    path.write_text(page.render(make_hostile(found)), "utf-8")
    with sync_playwright() as player:
        browser = player.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=False
        )
        view = context.new_page()
        requests, messages, dialogs = [], [], []
        view.on("request", lambda request: requests.append(request.url))
        view.on("console", lambda message: messages.append(message.text))
        view.on("dialog", lambda dialog: dialogs.append(dialog.message))
        view.goto(path.as_uri())
        assert requests == [path.as_uri()]
        assert not messages and not dialogs
        assert view.evaluate("window.hacked") is None
        # The page itself never scrolls sideways; wide tables do, inside themselves.
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        mark = view.locator('svg [aria-roledescription="point"]').first
        mark.hover()
        assert view.locator("#hint").inner_text() == mark.get_attribute("aria-label")
        colour = "getComputedStyle(document.body).backgroundColor"
        assert (view.evaluate(colour) == "rgb(255, 255, 255)") == (scheme == "light")
        browser.close()
