"""What a user sees while waiting: a live line on a terminal, plain lines elsewhere.

Everything goes to standard error; standard output belongs to results.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0


class Reporter(Protocol):
    def say(self, line: str) -> None: ...
    def warn(self, line: str) -> None: ...
    def begin(self, title: str) -> None: ...
    def update(self, share: float | None, facts: str) -> None:
        """``share`` of the work done, 0 to 1, or None when the end is not known."""

    def end(self) -> None: ...


class Silent:
    """For the Python API and tests; keeps the warnings for whoever asks."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    warn = say

    def begin(self, title: str) -> None:
        pass

    def update(self, share: float | None, facts: str) -> None:
        pass

    def end(self) -> None:
        pass


class Plain:
    """Lines without colour or motion: for logs, pipes and NO_COLOR terminals."""

    def __init__(self) -> None:
        self._title, self._started, self._last = "", 0.0, 0.0

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def warn(self, line: str) -> None:
        self.say(f"warning: {line}")

    def begin(self, title: str) -> None:
        self._title, self._started = title, time.monotonic()
        self._last = self._started

    def update(self, share: float | None, facts: str) -> None:
        now = time.monotonic()
        if now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        if share is None:
            self.say(f"{self._title}  {facts}")
            return
        left, share = "", min(share, 1.0)
        if share > 0:
            left = f"  {duration((now - self._started) / share * (1 - share))} left"
        self.say(f"{self._title} {share:4.0%}  {facts}{left}")

    def end(self) -> None:
        pass


class Terminal:
    """A live bar with the time that is left."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def warn(self, line: str) -> None:
        self._console.print(f"warning: {line}", style="yellow", markup=False, highlight=False)

    def begin(self, title: str) -> None:
        self.end()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=None, facts="")
        self._bar.start()

    def update(self, share: float | None, facts: str) -> None:
        if self._bar is not None and self._task is not None:
            total = None if share is None else 1.0
            self._bar.update(self._task, completed=share or 0.0, total=total, facts=facts)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def reporter() -> Reporter:
    """The right one for this standard error."""
    console = Console(stderr=True)
    if console.is_terminal and not console.no_color:
        return Terminal(console)
    return Plain()


def duration(seconds: float) -> str:
    """``75`` as ``1m15s``; ``4000`` as ``1h06m``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def size(count: float) -> str:
    """``1234567`` as ``1.23M``."""
    count = float(f"{count:.3g}")  # 999,600 is a million, not a thousand thousands
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.3g}"
