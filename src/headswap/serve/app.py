"""The application: what is asked, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headswap.decoding.beam import Beam
from headswap.decoding.strategies import Sampling
from headswap.decoding.translation import Search
from headswap.errors import HeadswapError
from headswap.objectives import Classify, Translate
from headswap.serve.batching import Batcher, QueueFull
from headswap.serve.description import openapi
from headswap.types import Table
from headswap.use import Loaded, Trained
from headswap.version import __version__


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how much may wait."""

    body: int = 1_000_000
    texts: int = 256
    characters: int = 20_000
    tokens: int = 512
    seconds: float = 60.0
    queue: int = 64
    batch: int = 32


class Refused(Exception):
    """An answer of the 4xx kind: what is wrong and what to send instead."""

    def __init__(self, status: int, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.status, self.what, self.fix = status, what, fix


class Server:
    """Models by name, one queue for all of them."""

    def __init__(self, models: Mapping[str, Loaded], limits: Limits = Limits()) -> None:
        self.models, self.limits = models, limits
        self.queue = Batcher(limits.batch, limits.queue)
        self.answered: dict[tuple[str, int], int] = {}
        self.seconds = 0.0

    def model(self, request: Request) -> tuple[str, Loaded]:
        name = request.path_params["model"]
        if name not in self.models:
            known = ", ".join(self.models)
            raise Refused(404, f"there is no model {name!r}", f"use one of: {known}")
        return name, self.models[name]

    async def classify(self, request: Request) -> Response:
        name, model = self.model(request)
        if "classify" not in abilities(model):
            raise _unable(name, model)
        texts = self._texts(await _json(request), "texts")

        def work(items: Sequence[str]) -> list[Table]:
            found = model.predict(list(items))
            return [{"label": one.label, "probabilities": one.probabilities} for one in found]

        return JSONResponse({"predictions": await self._each((name, "classify"), work, texts)})

    async def embed(self, request: Request) -> Response:
        name, model = self.model(request)
        if not isinstance(model, Trained):
            raise _unable(name, model)
        texts = self._texts(await _json(request), "texts")

        def work(items: Sequence[str]) -> list[list[float]]:
            return [row.tolist() for row in model.embed(list(items))]

        return JSONResponse({"vectors": await self._each((name, "embed"), work, texts)})

    async def translate(self, request: Request) -> Response:
        name, model = self.model(request)
        if "translate" not in abilities(model):
            raise _unable(name, model)
        assert isinstance(model, Trained)
        body = await _json(request)
        texts = self._texts(body, "texts")
        beam = _number(body, "beam", 4, 1, 16)
        aligned = _flag(body, "align")

        def work(items: Sequence[str]) -> list[Table]:
            how = Search(Beam(int(beam)))
            rows = model.translate(list(items), how, aligned=aligned)
            return [_translation(row[0]) for row in rows]

        key = (name, "translate", int(beam), aligned)
        return JSONResponse({"translations": await self._each(key, work, texts)})

    async def fill(self, request: Request) -> Response:
        name, model = self.model(request)
        if "fill" not in abilities(model):
            raise _unable(name, model)
        assert isinstance(model, Trained)
        body = await _json(request)
        (text,) = self._texts({"texts": [body.get("text")]}, "texts")
        most = int(_number(body, "most", 5, 1, 50))

        def work() -> list[list[Table]]:
            found = model.fill(text, most)
            return [
                [{"token": c.token, "probability": c.probability} for c in row] for row in found
            ]

        return JSONResponse({"masks": await self._alone(work)})

    async def generate(self, request: Request) -> Response:
        name, model = self.model(request)
        if "generate" not in abilities(model):
            raise _unable(name, model)
        assert isinstance(model, Trained)
        body = await _json(request)
        (prompt,) = self._texts({"texts": [body.get("prompt")]}, "texts", empty=True)
        length = int(_number(body, "length", 50, 1, self.limits.tokens))
        sampling = Sampling(
            temperature=_number(body, "temperature", 0.0, 0.0, 10.0),
            seed=int(_number(body, "seed", 0, 0, 2**31)),
        )

        def work(items: Sequence[str]) -> list[str]:
            return model.generate(list(items), length, sampling)

        key = (name, "generate", length, sampling)
        if sampling.temperature:  # a draw depends on the row's number: drawn alone
            text = (await self._alone(lambda: work([prompt])))[0]
        else:
            (text,) = await self._each(key, work, [prompt])
        return JSONResponse({"text": text})

    async def listed(self, request: Request) -> Response:
        rows = [{"name": n, "can": abilities(m), **_facts(m)} for n, m in self.models.items()]
        return JSONResponse({"models": rows})

    async def healthy(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "headswap": __version__})

    async def metrics(self, request: Request) -> Response:
        lines = [
            "# TYPE headswap_requests_total counter",
            *(
                f'headswap_requests_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self.answered.items())
            ),
            "# TYPE headswap_request_seconds_total counter",
            f"headswap_request_seconds_total {self.seconds:.6f}",
            "# TYPE headswap_batches_total counter",
            f"headswap_batches_total {self.queue.batches}",
            "# TYPE headswap_batched_items_total counter",
            f"headswap_batched_items_total {self.queue.items}",
            "# TYPE headswap_waiting gauge",
            f"headswap_waiting {self.queue.waiting}",
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def described(self, request: Request) -> Response:
        return JSONResponse(openapi())

    def _texts(self, body: Table, field: str, empty: bool = False) -> list[str]:
        texts = body.get(field)
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
            what = "text, prompt or texts" if field == "texts" else field
            raise Refused(422, f"no {what} to work on", 'send {"texts": ["…"]}')
        if len(texts) > self.limits.texts:
            raise Refused(422, f"{len(texts)} texts", f"send at most {self.limits.texts} at once")
        for text in texts:
            if len(text) > self.limits.characters:
                most = self.limits.characters
                raise Refused(422, f"a text of {len(text):,} characters", f"send at most {most:,}")
            if not empty and not text.strip():
                raise Refused(422, "an empty text", "send some words")
        return texts

    async def _each(self, key: Any, work: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        waiting = [self.queue.submit(key, work, item) for item in items]
        async with asyncio.timeout(self.limits.seconds):
            return list(await asyncio.gather(*waiting))

    async def _alone(self, work: Callable[[], Any]) -> Any:
        async with asyncio.timeout(self.limits.seconds):
            return await self.queue.alone(work)


def abilities(model: Loaded) -> list[str]:
    """What a run can be asked for."""
    if not isinstance(model, Trained):
        return ["classify"]
    objective = model.settings.objective
    if isinstance(objective, Classify):
        return ["classify", "embed"]
    if isinstance(objective, Translate):
        return ["translate", "embed"]
    views = {"causal": "generate", "masked": "fill"}
    return [*(views[one.name] for one in objective.views() if one.name in views), "embed"]


def build(server: Server, token: str | None = None) -> Starlette:
    """The application; with a ``token`` every request but a health check must bear it."""
    posts = ("classify", "embed", "translate", "fill", "generate")
    routes = [
        Route("/healthz", server.healthy),
        Route("/metrics", server.metrics),
        Route("/openapi.json", server.described),
        Route("/v1/models", server.listed),
        *(
            Route(f"/v1/models/{{model}}/{name}", getattr(server, name), methods=["POST"])
            for name in posts
        ),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        server.queue.close()

    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(_Watch, server=server),
            Middleware(_Guard, token=token, body=server.limits.body),
        ],
        exception_handlers={
            Refused: _refuse,
            HeadswapError: _refuse_ours,
            QueueFull: _busy,
            TimeoutError: _late,
        },
    )


class _Watch:
    """Counts answers and seconds; no text of a user is ever kept."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app, self.server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path = time.monotonic(), scope["path"].rsplit("/", 1)[-1]
        known = path if path in _PATHS else "other"

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                key = (known, int(message["status"]))
                self.server.answered[key] = self.server.answered.get(key, 0) + 1
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            self.server.seconds += time.monotonic() - began


_PATHS = {
    "healthz", "metrics", "openapi.json", "models",
    "classify", "embed", "translate", "fill", "generate",
}  # fmt: skip


class _Guard:
    """Refuses strangers, and bodies that are too long before they are read."""

    def __init__(self, app: ASGIApp, token: str | None, body: int) -> None:
        self.app, self.token, self.body = app, token, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self.token is not None and scope["path"] != "/healthz":
            given = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                answer = _error(401, "no valid token", "send Authorization: Bearer TOKEN")
                answer.headers["WWW-Authenticate"] = "Bearer"
                await answer(scope, receive, send)
                return
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.body:
            await self._too_long(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.body:
                raise Refused(413, "the body is too long", f"send at most {self.body:,} bytes")
            return message

        await self.app(scope, counted, send)

    async def _too_long(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _error(413, "the body is too long", f"send at most {self.body:,} bytes")
        answer.headers["Connection"] = "close"
        await answer(scope, receive, send)


async def _json(request: Request) -> Table:
    try:
        body = json.loads((await request.body()).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(400, "the body is not UTF-8", "send JSON in UTF-8") from error
    except ValueError as error:
        raise Refused(400, f"the body is not JSON ({error})", "send a JSON object") from error
    if not isinstance(body, dict):
        raise Refused(422, "the body is not an object", 'send {"texts": ["…"]}')
    return body


def _number(body: Table, name: str, default: float, low: float, high: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refused(422, f"{name} is {value!r}", f"send a number from {low:g} to {high:g}")
    return value


def _flag(body: Table, name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refused(422, f"{name} is {value!r}", "send true or false")
    return value


def _unable(name: str, model: Loaded) -> Refused:
    can = ", ".join(abilities(model))
    return Refused(409, f"the model {name!r} cannot do this", f"it can: {can}")


def _translation(found: Any) -> Table:
    told: Table = {"text": found.text, "score": found.score}
    return told if found.alignment is None else told | {"alignment": found.alignment}


def _facts(model: Loaded) -> Table:
    found: Table = {}
    if "classify" in abilities(model):
        found["labels"] = list(model.labels)
    if isinstance(model, Trained):
        found["objective"] = model.settings.objective.name
        found["length"] = model.settings.model.length
    return found


def _error(status: int, what: str, fix: str = "") -> JSONResponse:
    return JSONResponse({"error": {"what": what, "fix": fix}}, status_code=status)


def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _error(error.status, error.what, error.fix)


def _refuse_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadswapError)
    return _error(422, error.what, error.fix or "")


def _busy(request: Request, error: Exception) -> Response:
    answer = _error(503, "too much is waiting", "try again in a second")
    answer.headers["Retry-After"] = "1"
    return answer


def _late(request: Request, error: Exception) -> Response:
    answer = _error(503, "it took too long", "send less at once")
    answer.headers["Retry-After"] = "5"
    return answer
