"""The command that answers requests: serve."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headswap.cli.options import Device
from headswap.errors import ResourceError, StorageError, UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    runs: list[Path],
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    queue: int = 64,
    batch: int = 32,
    device: Device = "auto",
) -> None:
    """Serve a page to try models on, and the same as JSON: classify, generate, fill, translate,
    embed, attention.

    Requests that arrive together are computed together. `/openapi.json` describes the
    interface, `/healthz` and `/metrics` are for machines. No text of a request is logged.

    Example:

        headswap serve runs/reviews runs/scratch --port 8000

    Parameters
    ----------
    runs
        Finished runs, classifiers exported to ONNX, or finished experiments, whose seeds then
        vote; each is named after its folder.
    host
        The address to listen on. Any but this machine's own needs a token.
    port
        The port to listen on.
    token
        What clients must send as `Authorization: Bearer TOKEN`; HEADSWAP_TOKEN is read too.
    queue
        How many texts may wait; beyond them the answer is 503 with Retry-After.
    batch
        How many texts are computed at once.
    """
    token = token or os.environ.get("HEADSWAP_TOKEN")
    if host not in LOOPBACK and not token:
        raise UsageError(
            f"serving on {host} without a token", fix="give --token, or leave --host out"
        )
    for name, value in (("queue", queue), ("batch", batch)):
        if value < 1:
            raise UsageError(f"--{name} {value}", fix="give 1 or more")
    if not 0 <= port < 2**16:
        raise UsageError(f"there is no port {port}", fix="give one from 0 to 65535")
    names = named(runs)
    try:
        from headswap.serve import app, server
    except ImportError as error:
        raise ResourceError(
            f"serving needs {error.name}", fix="pip install 'headswap[serve]'"
        ) from error
    from headswap.api import load

    models = {name: load(path, device=device) for name, path in zip(names, runs, strict=True)}
    limits = app.Limits(queue=queue, batch=batch)
    process = server.make(app.build(app.Server(models, limits), token), host, port)
    try:
        process.run()
    except SystemExit as error:
        if error.code:
            raise StorageError(
                f"cannot listen on {host}:{port}",
                fix="is the port in use, or --host not this machine's?",
            ) from error


def named(runs: Sequence[Path]) -> list[str]:
    """What clients call each run: its folder's name, with its parent's where two are alike."""
    last = [path.resolve().name for path in runs]
    names = [
        f"{path.resolve().parent.name}-{name}" if last.count(name) > 1 else name
        for name, path in zip(last, runs, strict=True)
    ]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two runs are named {twice}", fix="rename one of the folders")
    return names
