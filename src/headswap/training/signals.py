"""Asking a training to stop without losing anything."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_asked = threading.Event()


def asked() -> bool:
    """Whether a training was asked to stop, be it in its last step, since ``forget``."""
    return _asked.is_set()


def forget() -> None:
    _asked.clear()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM ask the loop to save and stop; a second Ctrl-C stops at once, but
    schedulers repeat themselves. A signal that this process ignores stays ignored."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    before = {kind: old for kind, old in before.items() if old != signal.SIG_IGN}

    def handle(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()
        _asked.set()

    for kind in before:
        signal.signal(kind, handle)
    try:
        yield stop
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)
