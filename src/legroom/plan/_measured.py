"""What is known of a training step that could not be captured: a real one was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class MeasuredStep:
    """A measured step.

    Attributes:
        opening_bytes: What was alive when it began.
        why: Why it could not be captured.
    """

    peak_bytes: int
    opening_bytes: int
    step_ms: float
    why: str
    device: str
