"""How long planning may take, in proportion to how long training has run.

In comes the time that capturing, planning and compiling take; out comes whether more may be spent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import final

_ALLOWED_S = 30.0
_SHARE = 0.05
MOMENT_S = 15.0
"""What is granted in any case to something that is begun: most calls and steps take less."""
ALLOWED_IN_WORDS = "30 s, and 5 % of the time since"


@final
class PlanningTime:
    """What planning has taken so far, of what it may: 30 s, and 5 % of the time since it began.

    One for all that is fitted in a training. What comes first is planned in any case.

    Attributes:
        spent_s: What capturing, planning and compiling have taken.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._began_s: float | None = None
        self._since_s = 0.0
        self._depth = 0

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time while the context is open; once, where contexts are nested."""
        began_s = time.perf_counter()
        if self._began_s is None:
            self._began_s = began_s
        if not self._depth:
            self._since_s = began_s
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.spent_s += time.perf_counter() - began_s

    @property
    def allowed_s(self) -> float:
        """What may be spent by now."""
        since_s = 0.0 if self._began_s is None else time.perf_counter() - self._began_s
        return _ALLOWED_S + _SHARE * since_s

    @property
    def left_s(self) -> float:
        """What may still be spent; 0 where that is nothing."""
        running_s = time.perf_counter() - self._since_s if self._depth else 0.0
        return max(0.0, self.allowed_s - self.spent_s - running_s)

    @property
    def is_spent(self) -> bool:
        """Whether what is new now has to do without a plan of its own."""
        return self.spent_s > self.allowed_s
