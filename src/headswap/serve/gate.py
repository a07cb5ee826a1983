"""What stands before every answer: the token, the body's length, counting, and refusals."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headswap.errors import HeadswapError, did_you_mean
from headswap.serve.batching import QueueFull
from headswap.serve.description import BODIES
from headswap.types import Table

OPEN = ("/healthz", "/")


class Refused(Exception):
    """An answer of the 4xx kind: what is wrong and what to send instead."""

    def __init__(self, status: int, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.status, self.what, self.fix = status, what, fix


class Watch:
    """Counts answers and seconds; no text of a user is ever kept."""

    def __init__(
        self, app: ASGIApp, answered: Callable[[str, int], None], spent: Callable[[float], None]
    ) -> None:
        self.app, self.answered, self.spent = app, answered, spent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path = time.monotonic(), scope["path"].rsplit("/", 1)[-1]
        known = path if path in PATHS else "other"
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self.answered(known, int(message["status"]))
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            if not begun:
                answer = _error(503, "the server is stopping", "try again in a minute")
                await answer(scope, receive, watched)
        except Exception:
            self.answered(known, 500)
            raise
        finally:
            self.spent(time.monotonic() - began)


PATHS = {
    "healthz", "metrics", "openapi.json", "models",
    "classify", "embed", "translate", "fill", "generate", "attention", "",
}  # fmt: skip


class Guard:
    """Refuses strangers, and bodies that are too long before they are read."""

    def __init__(
        self, app: ASGIApp, token: str | None, body: int, received: Callable[[int], None]
    ) -> None:
        self.app, self.token, self.body, self.received = app, token, body, received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self.token is not None and scope["path"] not in OPEN:
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
            size = len(message.get("body", b""))
            self.received(size)
            read += size
            if read > self.body:
                raise Refused(413, "the body is too long", f"send at most {self.body:,} bytes")
            return message

        await self.app(scope, counted, send)

    async def _too_long(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _error(413, "the body is too long", f"send at most {self.body:,} bytes")
        answer.headers["Connection"] = "close"
        await answer(scope, receive, send)


async def read_json(request: Request, what: str) -> Table:
    """The object that was sent, with no fields but those of what is asked for."""
    try:
        body = json.loads((await request.body()).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(400, "the body is not UTF-8", "send JSON in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON ({error})", "send a JSON object") from error
    if not isinstance(body, dict):
        raise Refused(422, "the body is not an object", 'send {"texts": ["…"]}')
    if strange := next((name for name in body if name not in BODIES[what]), None):
        raise Refused(422, f"unknown field {strange!r}", did_you_mean(strange, BODIES[what]))
    return body


def number(body: Table, name: str, default: float, low: float, high: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refused(422, f"{name} is {value!r}", f"send a number from {low:,} to {high:,}")
    return value


def whole(body: Table, name: str, default: int, low: int, high: int) -> int:
    value = number(body, name, default, low, high)
    if value != int(value):
        raise Refused(422, f"{name} is {value!r}", "send a whole number")
    return int(value)


def flag(body: Table, name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refused(422, f"{name} is {value!r}", "send true or false")
    return value


def _error(status: int, what: str, fix: str = "") -> JSONResponse:
    return JSONResponse({"error": {"what": what, "fix": fix}}, status_code=status)


def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _error(error.status, error.what, error.fix)


def _refuse_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadswapError)
    return _error(422, error.what, error.fix or "")


def _strange(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _error(error.status_code, error.detail, "GET /openapi.json tells what there is")
    answer.headers.update(error.headers or {})
    return answer


def _busy(request: Request, error: Exception) -> Response:
    answer = _error(503, "too much is waiting", "try again in a second")
    answer.headers["Retry-After"] = "1"
    return answer


def _late(request: Request, error: Exception) -> Response:
    answer = _error(503, "it took too long", "send less at once")
    answer.headers["Retry-After"] = "5"
    return answer


HANDLERS: dict[Any, Any] = {
    Refused: _refuse,
    HeadswapError: _refuse_ours,
    HTTPException: _strange,
    QueueFull: _busy,
    TimeoutError: _late,
}
