"""The interface: answers equal the library's, refusals say what to send instead."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

import headswap as api
from conftest import review_rows, write_jsonl
from headswap.cli import main
from headswap.cli.serving import named
from headswap.errors import UsageError
from headswap.serve.batching import Batcher, QueueFull

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
from headswap.serve import app as serving  # noqa: E402

SMALL = [
    "model.width=32", "model.heads=4", "model.layers=1", "model.feedforward=48",
    "model.length=48", "tokenizer.vocabulary=330",
]  # fmt: skip
TEXTS = ["the film was good", "a bad book", "东京 🙂 <script>alert(1)</script>"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    table = write_jsonl(folder / "t.jsonl", review_rows(60, 1))
    pairs = [(f"word{i} and more", f"mot{i} et plus") for i in range(60)]
    aligned = write_jsonl(folder / "p.jsonl", [{"source": a, "target": b} for a, b in pairs])
    text = folder / "c.txt"
    text.write_text("\n\n".join(row["text"] for row in review_rows(120, 2)))
    steps = ["train.steps=2"]
    return {
        "reviews": api.train("classify", table, out=folder / "a", changes=[*SMALL, *steps]),
        "base": api.train("hybrid", text, out=folder / "b", changes=[*SMALL, *steps]),
        "en-fr": api.train(
            "translate", aligned, out=folder / "c", recipe="tiny-translate",
            changes=[*SMALL, "model.decoder_layers=1", *steps],
        ),
    }  # fmt: skip


def client(models, token=None, **limits):
    app = serving.build(serving.Server(models, serving.Limits(**limits)), token)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def ask(models, path, sent=None, headers=None, token=None, **limits):
    """One request: a GET, or a POST of these bytes or of this as JSON."""

    async def once():
        async with client(models, token, **limits) as http:
            if sent is None:
                return await http.get(path, headers=headers)
            content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
            return await http.post(path, content=content, headers=headers)

    return asyncio.run(once())


def test_answers_are_the_librarys(models):
    said = ask(models, "/v1/models/reviews/classify", {"texts": TEXTS}).json()["predictions"]
    for one, right in zip(said, models["reviews"].predict(TEXTS), strict=True):
        assert one["label"] == right.label
        assert one["probabilities"] == pytest.approx(right.probabilities, abs=1e-5)
    said = ask(models, "/v1/models/base/generate", {"prompt": "the film", "length": 5}).json()
    assert said["text"] == models["base"].generate(["the film"], 5)[0]
    said = ask(models, "/v1/models/base/fill", {"text": "the <mask> film", "most": 3}).json()
    assert [row["token"] for row in said["masks"][0]] == [
        candidate.token for candidate in models["base"].fill("the <mask> film", 3)[0]
    ]
    body = {"texts": ["word3 and more"], "align": True}
    (said,) = ask(models, "/v1/models/en-fr/translate", body).json()["translations"]
    assert said["text"] == next(iter(models["en-fr"].translate(["word3 and more"])))[0].text
    assert "alignment" in said
    vectors = ask(models, "/v1/models/base/embed", {"texts": TEXTS[:2]}).json()["vectors"]
    assert len(vectors) == 2 and len(vectors[0]) == 32


def test_what_is_there(models):
    rows = ask(models, "/v1/models").json()["models"]
    assert {row["name"]: row["can"] for row in rows} == {
        "reviews": ["classify", "embed", "attention"],
        "base": ["generate", "fill", "embed", "attention"],
        "en-fr": ["translate", "embed", "attention"],
    }
    assert ask(models, "/healthz").json()["status"] == "ok"
    assert "headswap_waiting 0" in ask(models, "/metrics").text
    described = ask(models, "/openapi.json").json()
    assert "/v1/models/{model}/translate" in described["paths"]


@pytest.mark.parametrize(
    ("path", "sent", "status", "says"),
    [
        ("reviews/classify", {"texts": []}, 422, "no text"),
        ("reviews/classify", {"texts": [3]}, 422, "not a string"),
        ("reviews/classify", {"texts": "x"}, 422, "not a list"),
        ("reviews/nothing", {"texts": ["x"]}, 404, "Not Found"),
        ("reviews/classify", {"texts": [" "]}, 422, "empty"),
        ("reviews/classify", {"texts": ["x" * 101]}, 422, "characters"),
        ("reviews/classify", {"texts": ["x"] * 9}, 422, "9 texts"),
        ("reviews/classify", ["x"], 422, "not an object"),
        ("reviews/classify", b"{", 400, "not JSON"),
        ("reviews/classify", b'{"texts": ["\xff"]}', 400, "UTF-8"),
        ("reviews/classify", b" " * 3_000, 413, "too long"),
        ("nothing/classify", {"texts": ["x"]}, 404, "no model"),
        ("reviews/generate", {"prompt": "x"}, 409, "cannot"),
        ("base/classify", {"texts": ["x"]}, 409, "cannot"),
        ("base/generate", {"prompt": "x", "length": "long"}, 422, "length"),
        ("base/generate", {"prompt": "x", "length": 10_000}, 422, "length"),
        ("base/fill", {"text": "no mask"}, 422, "no <mask>"),
        ("base/fill", {"texts": ["<mask>"]}, 422, "unknown field 'texts'"),
        ("base/generate", {}, 422, "no prompt to work on"),
        ("base/generate", {"prompt": "x", "lenght": 3}, 422, "unknown field 'lenght'"),
        ("base/generate", {"prompt": 3}, 422, "prompt is not a string"),
        ("base/generate", {"prompt": "x", "length": 2.5}, 422, "length is 2.5"),
        ("en-fr/translate", {"texts": ["x"], "align": 1}, 422, "align"),
    ],
)
def test_refusals_say_what_to_send(models, path, sent, status, says):
    content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    limits = {"body": 2_000, "texts": 8, "characters": 100}
    answer = ask(models, f"/v1/models/{path}", content, **limits)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert says in error["what"] and error["fix"]


def test_a_token_is_asked_for(models):
    assert ask(models, "/v1/models", token="secret").status_code == 401
    wrong = {"Authorization": "Bearer secre"}
    assert ask(models, "/v1/models", headers=wrong, token="secret").status_code == 401
    right = {"Authorization": "Bearer secret"}
    assert ask(models, "/v1/models", headers=right, token="secret").status_code == 200
    assert ask(models, "/healthz", token="secret").status_code == 200


def test_company_changes_nothing(models):
    async def together():
        async with client(models) as http:
            path = "/v1/models/reviews/classify"
            asked = [http.post(path, json={"texts": [text]}) for text in TEXTS * 8]
            return [answer.json()["predictions"][0] for answer in await asyncio.gather(*asked)]

    alone = {
        text: ask(models, "/v1/models/reviews/classify", {"texts": [text]}).json()["predictions"][0]
        for text in TEXTS
    }
    for text, said in zip(TEXTS * 8, asyncio.run(together()), strict=True):
        assert said["label"] == alone[text]["label"]
        assert said["probabilities"] == pytest.approx(alone[text]["probabilities"], abs=1e-4)


def test_a_full_queue_is_refused_and_batches_form():
    release = threading.Event()
    sizes = []

    def work(items):
        release.wait(10)
        sizes.append(len(items))
        return [item * 2 for item in items]

    async def crowd():
        queue = Batcher(most=4, room=6)
        asked = [asyncio.create_task(queue.submit("k", work, [n])) for n in range(12)]
        await asyncio.sleep(0.05)
        release.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        queue.close()
        return found

    found = asyncio.run(crowd())
    refused = [one for one in found if isinstance(one, QueueFull)]
    assert len(refused) == 5, "one is being computed, six wait"
    done = [one for one in found if not isinstance(one, QueueFull)]
    assert done == [[0], [2], [4], [6], [8], [10], [12]]
    assert sizes == [1, 4, 2]


def test_a_request_longer_than_the_queue_is_let_in_when_there_is_room(models):
    answer = ask(models, "/v1/models/reviews/classify", {"texts": TEXTS * 20}, queue=2, batch=4)
    assert answer.status_code == 200
    assert len(answer.json()["predictions"]) == 20 * len(TEXTS)


def test_a_busy_server_answers_503(models):
    async def crowd():
        async with client(models, queue=2, batch=1) as http:
            path = "/v1/models/reviews/classify"
            asked = [http.post(path, json={"texts": [text]}) for text in TEXTS * 8]
            return await asyncio.gather(*asked)

    answers = asyncio.run(crowd())
    assert {answer.status_code for answer in answers} == {200, 503}
    busy = next(answer for answer in answers if answer.status_code == 503)
    assert busy.headers["Retry-After"] == "1"


def test_a_slow_client_is_closed(models, monkeypatch, capsys):
    import socket

    from headswap.serve import server

    monkeypatch.setattr(server, "ARRIVAL_SECONDS", 0.5)
    process = server.make(serving.build(serving.Server(models)), "127.0.0.1", 0)
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    while not process.started:
        time.sleep(0.01)
    (listening,) = process.servers[0].sockets
    address = listening.getsockname()
    assert capsys.readouterr().out == f"http://127.0.0.1:{address[1]}\n", "the port it was given"
    try:
        with socket.create_connection(address) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            slow.settimeout(5)
            assert slow.recv(100) == b"", "closed without an answer"
        answer = httpx.get(f"http://{address[0]}:{address[1]}/healthz")
        assert answer.status_code == 200 and "server" not in answer.headers
    finally:
        process.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def test_the_command_refuses_an_open_door(models, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["serve", str(models["reviews"].run.path), "--host", "0.0.0.0"])
    assert stop.value.code == 2 and "without a token" in capsys.readouterr().err


def test_nobody_suffers_from_anothers_text():
    def work(items):
        if "bad" in items:
            raise ValueError("bad")
        return [item.upper() for item in items]

    async def crowd():
        queue = Batcher(most=8, room=64)
        asked = [asyncio.create_task(queue.submit("k", work, [t])) for t in ("a", "b", "bad", "c")]
        found = await asyncio.gather(*asked, return_exceptions=True)
        queue.close()
        return found

    a, b, bad, c = asyncio.run(crowd())
    assert (a, b, c) == (["A"], ["B"], ["C"]) and isinstance(bad, ValueError)


def test_odd_bodies_are_refused_or_read(models):
    path = "/v1/models/reviews/classify"
    assert ask(models, path, b'{"texts": ["so good \\ud83d"]}').status_code == 200
    assert ask(models, path, b"[" * 100_000).status_code == 400
    cold = {"prompt": "a", "temperature": 1e-300}
    assert ask(models, "/v1/models/base/generate", cold).status_code == 422


def test_attention_has_a_limit(models):
    path = "/v1/models/reviews/attention"
    whole = ask(models, path, {"text": "a good book"})
    assert whole.status_code == 200
    assert max(len(str(w)) for w in whole.json()["attention"][0]["layers"][0][0][0]) <= 6
    assert ask(models, path, {"text": "a good book"}, weights=10).status_code == 422


@pytest.mark.parametrize("option", [("--port", "99999"), ("--batch", "0"), ("--queue", "-1")])
def test_impossible_numbers_are_refused_before_anything_is_loaded(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["serve", "no-such-run", *option])
    assert stop.value.code == 2 and option[1] in capsys.readouterr().err


def test_a_target_is_checked_as_any_text(models):
    where = "/v1/models/en-fr/attention"
    ill = ask(models, where, {"text": "one", "target": "\ud800"})
    assert ill.status_code == 200, "mended, as texts are"
    long = ask(models, where, {"text": "one", "target": "x" * 50_000})
    assert long.status_code == 422 and "characters" in long.json()["error"]["what"]


def test_who_is_cut_off_by_a_stop_is_told_so(models):
    server = serving.Server(models)
    app = serving.build(server)

    async def cut() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            never = asyncio.Event()

            async def waits(*given: object) -> list[object]:
                await never.wait()
                return []

            server.queue.submit = waits  # type: ignore[method-assign]
            path, sent = "/v1/models/reviews/classify", {"texts": ["x"]}
            asked = asyncio.create_task(client.post(path, json=sent))
            await asyncio.sleep(0.05)
            asked.cancel()
            return await asked

    answer = asyncio.run(cut())
    assert answer.status_code == 503 and "stopping" in answer.json()["error"]["what"]


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path):
    runs = [tmp_path / "a" / "best", tmp_path / "b" / "best", tmp_path / "other"]
    assert named(runs) == ["a-best", "b-best", "other"]
    with pytest.raises(UsageError, match="two runs are named a-best"):
        named([runs[0], tmp_path / "x" / "a" / "best"])
