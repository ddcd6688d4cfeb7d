"""How a script failed, in words for its user.

In goes how it ended and what it was doing; out comes the error to raise.
"""

from __future__ import annotations

import re

import torch

from legroom.capture._script import ScriptOutcome
from legroom.capture._sites import line_of
from legroom.errors import LegroomError, ScriptError, ScriptInterruptedError
from legroom.units import format_bytes


def failure_of(outcome: ScriptOutcome, *, name: str, moment: str, memory_hint: str) -> LegroomError:
    """The error that says how a script failed, where, and what to try.

    Args:
        outcome: How it ended; it has an error.
        name: The script, as the user calls it.
        moment: When: `"in step 3"`, `"before training began"`.
        memory_hint: What to try where memory ran out.
    """
    error, where = outcome.error, _short(outcome.where)
    at = f" at {where}" if where else ""
    if isinstance(error, KeyboardInterrupt):
        return ScriptInterruptedError(f"{name} was interrupted {moment}{at}")
    if isinstance(error, SystemExit):
        return ScriptError(f"{name} exited with code {error.code!r} {moment}")
    if error is not None and is_out_of_memory(error):
        asked = re.search(r"tried to allocate (\d+) bytes", str(error))
        more = f", asking for {format_bytes(int(asked[1]))} more" if asked else ""
        return ScriptError(f"{name} ran out of memory {moment}{at}{more}.\n  try: {memory_hint}")
    return ScriptError(f"{name} failed {moment}{at}: {type(error).__name__}: {error}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out, on whatever device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "not enough memory" in text or "out of memory" in text
    )


def _short(place: str) -> str:
    file, _, line = place.rpartition(":")
    return line_of(file, int(line)) if file else ""
