"""Watches the first steps under a plan: measured peak against prediction and budget.

In come the beginning of planned calls and the ends of steps; out goes a `PeakReading` to each plan
that was at work. After two measured steps a plan is left alone: the first makes the optimizer's
state, the second has it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable

import torch

from legroom.meter import PeakGauge, PeakReading

_MEASURED_STEPS = 2
_REMEMBERED = 21

OnReading = Callable[[PeakReading], None]


class StepWatch:
    """Measures steps until everybody who asked has seen enough.

    Attributes:
        step_ms: How long the latest steps took that were not measured.
        num_steps: Steps that have ended.
    """

    def __init__(self, device: torch.device) -> None:
        self.step_ms: list[float] = []
        self.num_steps = 0
        self._device = device
        self._gauge: PeakGauge | None = None
        self._waiting: dict[Hashable, OnReading] = {}
        self._counts: dict[Hashable, int] = {}
        self._last_s: float | None = None

    def call_begins(self, identity: Hashable, on_reading: OnReading) -> None:
        """A planned call begins; it is measured if its plan is new."""
        if self._counts.get(identity, 0) >= _MEASURED_STEPS:
            return
        self._waiting[identity] = on_reading
        if self._gauge is None:
            gauge = PeakGauge(self._device)
            if gauge.start():
                self._gauge = gauge

    def step_ends(self) -> None:
        """A step has ended: tell what was measured."""
        now_s = time.perf_counter()
        self.num_steps += 1
        gauge, self._gauge = self._gauge, None
        if gauge is None:
            if self._last_s is not None:
                self.step_ms = [*self.step_ms, 1000 * (now_s - self._last_s)][-_REMEMBERED:]
            self._last_s = now_s
            return
        self._last_s = None
        reading = gauge.stop()
        waiting, self._waiting = self._waiting, {}
        if reading is None:
            return
        for identity, on_reading in waiting.items():
            self._counts[identity] = self._counts.get(identity, 0) + 1
            on_reading(reading)

    def close(self) -> None:
        """Stop measuring."""
        gauge, self._gauge = self._gauge, None
        if gauge is not None:
            with contextlib.suppress(RuntimeError):
                gauge.stop()
        self._waiting.clear()
