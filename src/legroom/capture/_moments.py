"""When a script failed, in its own count of steps: in its third step, or after it.

In come the ends of steps and, later, the script's error; out comes `"in step 3"`. See Note
[Moments].
"""

# Note [Moments]
# 1. Steps are counted from 1, as whoever counts what a loop prints does.
# 2. Where a step ends, the rest of the loop's body still belongs to it: the loss is printed, a file
#    is written. What fails there failed after that step, and not in the next.
# 3. A step ends where the program has come to a certain instruction in each function that is
#    running. An error that passed through the same functions came from further on in the innermost
#    of them that they share, or from before it or from the same call: that is the next step.

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import final

_Place = tuple[CodeType, int]
"""A function, and the instruction in it that is running."""


@final
class StepCount:
    """Counts steps, and tells in which one something happened.

    Attributes:
        num_steps: Steps that have ended.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._end: list[_Place] = []

    def step_ends(self) -> None:
        """A step has ended here."""
        self.num_steps += 1
        self._end = list(_places_of_callers())[::-1]

    def moment_of(self, error: BaseException | None) -> str:
        """When the error came: `"in step 3"`, `"after step 3"`; see Note [Moments]."""
        if self.num_steps and self._is_after_the_end(error):
            return f"after step {self.num_steps}"
        return f"in step {self.num_steps + 1}"

    def _is_after_the_end(self, error: BaseException | None) -> bool:
        error = _origin_of(error)
        came_from = list(_places_of_traceback(error.__traceback__ if error else None))
        if not came_from:
            return False
        outermost = came_from[0][0]
        codes = [code for code, _ in self._end]
        if outermost not in codes:
            return False
        for (code, instruction), (own_code, own) in zip(
            self._end[codes.index(outermost) :], came_from, strict=False
        ):
            if code is not own_code:
                return False
            if own != instruction:
                return own > instruction
        return False


def _places_of_callers() -> Iterator[_Place]:
    """Innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]


def _places_of_traceback(entry: TracebackType | None) -> Iterator[_Place]:
    """Outermost first."""
    while entry is not None:
        yield entry.tb_frame.f_code, entry.tb_lasti
        entry = entry.tb_next


def _origin_of(error: BaseException | None) -> BaseException | None:
    """What an error was raised because of, at the bottom: handlers stand behind what they guard."""
    while error is not None:
        hidden = None if error.__suppress_context__ else error.__context__
        cause = error.__cause__ or hidden
        if cause is None:
            return error
        error = cause
    return None
