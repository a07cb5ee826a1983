"""The application: what is asked, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from headswap.api import Usable
from headswap.decoding.beam import Beam
from headswap.decoding.strategies import Sampling
from headswap.decoding.translation import Search
from headswap.experiment.explain import words
from headswap.looking.attention import attention
from headswap.looking.reading import read
from headswap.serve import page as pages
from headswap.serve.batching import Batcher, QueueFull
from headswap.serve.description import openapi
from headswap.serve.gate import HANDLERS, Guard, Refused, Watch, flag, number, read_json, whole
from headswap.text.tables import mended
from headswap.types import Table
from headswap.use import Trained
from headswap.version import __version__


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how much may wait."""

    body: int = 1_000_000
    texts: int = 256
    characters: int = 20_000
    tokens: int = 512
    weights: int = 4_000_000
    seconds: float = 60.0
    queue: int = 64
    batch: int = 32


class Server:
    """Models by name, one queue for all of them."""

    def __init__(self, models: Mapping[str, Usable], limits: Limits = Limits()) -> None:
        self.models, self.limits = models, limits
        self.queue = Batcher(limits.batch, limits.queue)
        self.answered: dict[tuple[str, int], int] = {}
        self.seconds = 0.0
        self.received = 0

    def count(self, path: str, status: int) -> None:
        self.answered[path, status] = self.answered.get((path, status), 0) + 1

    def spend(self, seconds: float) -> None:
        self.seconds += seconds

    def receive(self, size: int) -> None:
        self.received += size

    def model(self, request: Request) -> tuple[str, Usable]:
        name = request.path_params["model"]
        if name not in self.models:
            known = ", ".join(self.models)
            raise Refused(404, f"there is no model {name!r}", f"use one of: {known}")
        return name, self.models[name]

    async def classify(self, request: Request) -> Response:
        name, model = self.model(request)
        if "classify" not in abilities(model):
            raise _unable(name, model)
        body = await read_json(request, "classify")
        texts = self._texts(body)

        def work(items: Sequence[str]) -> list[Table]:
            found = model.predict(list(items))
            return [{"label": one.label, "probabilities": one.probabilities} for one in found]

        said = await self._each((name, "classify"), work, texts)
        if flag(body, "words"):
            async with asyncio.timeout(self.limits.seconds):
                for text, one in zip(texts, said, strict=True):
                    one["words"] = await self._alone(partial(words, model, text))
        return JSONResponse({"predictions": said})

    async def attention(self, request: Request) -> Response:
        name, model = self.model(request)
        if "attention" not in abilities(model):
            raise _unable(name, model)
        assert isinstance(model, Trained)
        body = await read_json(request, "attention")
        text = self._text(body, "text")
        target = body.get("target")
        if target is not None:
            target = self._text(body, "target", empty=True)

        def work() -> str:
            seen = attention(model, read(model, text, target))
            weights = sum(layer.size for one in seen for layer in one.layers)
            if weights > self.limits.weights:
                most = self.limits.weights
                raise Refused(422, f"{weights:,} weights, {most:,} at most", "send a shorter text")
            rows = [
                {
                    "name": one.name,
                    "causal": one.causal,
                    "queries": one.queries,
                    "keys": one.keys,
                    "layers": [layer.astype(float).round(4).tolist() for layer in one.layers],
                }
                for one in seen
            ]
            return json.dumps({"attention": rows}, ensure_ascii=False)

        return Response(await self._alone(work), media_type="application/json")

    async def embed(self, request: Request) -> Response:
        name, model = self.model(request)
        if not isinstance(model, Trained):
            raise _unable(name, model)
        texts = self._texts(await read_json(request, "embed"))

        def work(items: Sequence[str]) -> list[list[float]]:
            return [row.tolist() for row in model.embed(list(items))]

        return JSONResponse({"vectors": await self._each((name, "embed"), work, texts)})

    async def translate(self, request: Request) -> Response:
        name, model = self.model(request)
        if "translate" not in abilities(model):
            raise _unable(name, model)
        assert isinstance(model, Trained)
        body = await read_json(request, "translate")
        texts = self._texts(body)
        beam = whole(body, "beam", 4, 1, 16)
        aligned = flag(body, "align")

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
        body = await read_json(request, "fill")
        text = self._text(body, "text")
        most = whole(body, "most", 5, 1, 50)

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
        body = await read_json(request, "generate")
        prompt = self._text(body, "prompt", empty=True)
        length = whole(body, "length", 50, 1, self.limits.tokens)
        sampling = Sampling(
            temperature=number(body, "temperature", 0.0, 0.0, 10.0),
            seed=whole(body, "seed", 0, 0, 2**31),
        )

        if flag(body, "stream"):
            return await self._streamed(model, prompt, length, sampling)

        def work(items: Sequence[str]) -> list[str]:
            return model.generate(list(items), length, sampling)

        key = (name, "generate", length, sampling)
        if sampling.temperature:  # a draw depends on the row's number: drawn alone
            text = (await self._alone(lambda: work([prompt])))[0]
        else:
            (text,) = await self._each(key, work, [prompt])
        return JSONResponse({"text": text})

    async def _streamed(
        self, model: Trained, prompt: str, length: int, sampling: Sampling
    ) -> Response:
        """A JSON line for each token as it is chosen; other requests have their turn between
        two tokens."""
        tokens = model.stream(prompt, length, sampling)
        first = await self._alone(lambda: next(tokens))

        async def told() -> AsyncIterator[str]:
            token = first
            while token is not None:
                others = [[one.token, one.probability] for one in token.alternatives]
                row: Table = {"text": token.text, "probability": token.chance}
                yield json.dumps(row | {"alternatives": others, "ended": token.ended}) + "\n"
                try:
                    token = await self._alone(lambda: next(tokens, None))
                except (QueueFull, TimeoutError):
                    yield json.dumps({"error": {"what": "too much is waiting"}}) + "\n"
                    return

        return StreamingResponse(told(), media_type="application/x-ndjson")

    async def page(self, request: Request) -> Response:
        made, policy = pages.page()
        return HTMLResponse(made, headers={"Content-Security-Policy": policy})

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
            "# TYPE headswap_body_bytes_total counter",
            f"headswap_body_bytes_total {self.received}",
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

    def _text(self, body: Table, field: str, empty: bool = False) -> str:
        text = body.get(field)
        if not isinstance(text, str):
            what = f"no {field} to work on" if text is None else f"{field} is not a string"
            raise Refused(422, what, f'send {{"{field}": "…"}}')
        return self._texts({"texts": [text]}, empty)[0]

    def _texts(self, body: Table, empty: bool = False) -> list[str]:
        texts, fix = body.get("texts"), 'send {"texts": ["…"]}'
        if isinstance(texts, str):
            raise Refused(422, "texts is a string, not a list", fix)
        if not isinstance(texts, list) or not texts:
            raise Refused(422, "no texts to work on", fix)
        if not all(isinstance(text, str) for text in texts):
            raise Refused(422, "a text is not a string", fix)
        if len(texts) > self.limits.texts:
            raise Refused(422, f"{len(texts)} texts", f"send at most {self.limits.texts} at once")
        for text in texts:
            if len(text) > self.limits.characters:
                most = self.limits.characters
                raise Refused(422, f"a text of {len(text):,} characters", f"send at most {most:,}")
            if not empty and not text.strip():
                raise Refused(422, "an empty text", "send some words")
        return [mended(text) for text in texts]

    async def _each(self, key: Any, work: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        async with asyncio.timeout(self.limits.seconds):
            return await self.queue.submit(key, work, items)

    async def _alone(self, work: Callable[[], Any]) -> Any:
        async with asyncio.timeout(self.limits.seconds):
            return await self.queue.alone(work)


def abilities(model: Usable) -> list[str]:
    """What a run can be asked for."""
    if not isinstance(model, Trained):
        return ["classify"]
    objective = model.settings.objective
    views = {"causal": "generate", "masked": "fill", "classify": "classify"}
    views["translate"] = "translate"
    can = [views[one.name] for one in objective.views() if one.name in views]
    looks = ["attention"] if model.settings.model.mixer == "attention" else []
    return [*can, "embed", *looks]


def build(server: Server, token: str | None = None) -> Starlette:
    """The application; with a ``token`` every request but a health check must bear it."""
    posts = ("classify", "embed", "translate", "fill", "generate", "attention")
    routes = [
        Route("/", server.page),
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
            Middleware(Watch, answered=server.count, spent=server.spend),
            Middleware(Guard, token=token, body=server.limits.body, received=server.receive),
        ],
        exception_handlers=HANDLERS,
    )


def _unable(name: str, model: Usable) -> Refused:
    can = ", ".join(abilities(model))
    return Refused(409, f"the model {name!r} cannot do this", f"it can: {can}")


def _translation(found: Any) -> Table:
    told: Table = {"text": found.text, "score": found.score}
    return told if found.alignment is None else told | {"alignment": found.alignment}


def _facts(model: Usable) -> Table:
    found: Table = {}
    if "classify" in abilities(model):
        found["labels"] = list(model.labels)
    if isinstance(model, Trained):
        found["objective"] = model.settings.objective.name
        found["length"] = model.settings.model.length
    return found
