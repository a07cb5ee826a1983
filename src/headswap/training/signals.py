"""Asking a training to stop without losing anything."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stop:
    """A flag that a signal may raise. Setting it takes no lock, as an event's would: a second
    signal can come while the first is being handled, in the same thread."""

    raised = False

    def is_set(self) -> bool:
        return self.raised


_last = Stop()


def asked() -> bool:
    """Whether a training was asked to stop, be it in its last step, since ``forget``."""
    return _last.raised


def forget() -> None:
    _last.raised = False


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM ask the loop to save and stop; a second Ctrl-C stops at once, but
    schedulers repeat themselves. A signal that this process ignores stays ignored."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    before = {kind: old for kind, old in before.items() if old != signal.SIG_IGN}

    def handle(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.raised = _last.raised = True

    for kind in before:
        signal.signal(kind, handle)
    try:
        yield stop
    finally:
        for kind, old in before.items():
            signal.signal(kind, old)
