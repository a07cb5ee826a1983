"""Asking a training to stop."""

from __future__ import annotations

import signal

import pytest

from headswap.training import signals


def test_schedulers_may_repeat_themselves_and_users_may_insist():
    signals.forget()
    with pytest.raises(KeyboardInterrupt), signals.stop_signals() as stop:
        assert not stop.is_set() and not signals.asked()
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.is_set() and signals.asked()
        signal.raise_signal(signal.SIGINT)
    signals.forget()
    assert not signals.asked()


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals.stop_signals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
