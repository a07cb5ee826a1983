"""The process: uvicorn, with a deadline for every request's arrival."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

ARRIVAL_SECONDS = 8.0


class Punctual(H11Protocol):
    """Closes connections whose request does not arrive in time: uvicorn itself waits for
    headers and bodies as long as a client likes to take."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = getattr(self, "cycle", None)
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._disarm()  # a whole request, and not the last one

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle = getattr(self, "cycle", None)  # perhaps of a request that had come already
        working = cycle is not None and not cycle.more_body and not cycle.response_complete
        if not self.transport.is_closing() and not working:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(ARRIVAL_SECONDS, self._too_late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self.transport.close()


class Announced(uvicorn.Server):
    """Tells its address when it listens, and with the port that it was given for 0."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.servers:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = self.config.host
            print(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", flush=True)


def make(app: Starlette, host: str, port: int) -> uvicorn.Server:
    """A server that has not begun yet. Its log names no paths, queries or texts."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Punctual,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=10,
        server_header=False,
        lifespan="on",
    )
    return Announced(config)
