"""How far a benchmark has come, and about how long it will go on.

In goes each part that is over; out comes a bar in a terminal, a line for each part elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

Clock = Callable[[], float]


class Told:
    """A context manager around a benchmark of so many parts.

    The estimate supposes that parts take as long as those that were measured in this run; parts
    that were stored already take no time and are left out of it.

    Args:
        title: What is measured.
        total: How many parts there are.
        console: Where to write.
        clock: In seconds.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int,
        console: Console | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._title, self._total, self._clock = title, total, clock
        self._console = console or Console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TextColumn("{task.fields[left]}"), console=self._console)
        self._task = self._bar.add_task(title, total=total, left="")
        self._before = 0
        self._measured = 0
        self._measured_s = 0.0
        self._since_s = clock()

    def done(self, what: str, parts: int) -> None:
        """So many parts are over, the last of which is `what`."""
        now = self._clock()
        taken_s, self._since_s = now - self._since_s, now
        if taken_s >= _STORED_S:
            self._measured += parts - self._before
            self._measured_s += taken_s
        self._before = parts
        text, left = f"{self._title}, {what}", self.left(parts)
        self._bar.update(self._task, description=text, completed=parts, left=left)
        if not self._console.is_terminal:
            self._console.print(f"{parts}/{self._total} {text} ({left})", soft_wrap=True)

    def left(self, parts: int) -> str:
        """How long the rest will take, for people."""
        if not self._measured:
            return "no estimate yet"
        left_s = (self._total - parts) * self._measured_s / self._measured
        if left_s < 90:
            return f"about {left_s:.0f} s left"
        if left_s < 5400:
            return f"about {left_s / 60:.0f} min left"
        return f"about {left_s / 3600:.1f} h left"

    def __enter__(self) -> Told:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()


_STORED_S = 0.5
"""What takes less was not measured, but stored."""
