"""Watches the first steps under a plan: measured peak against prediction and budget.

In come the beginning of planned calls and the ends of steps; out goes a `PeakReading` to each plan
that was at work. After three measured steps a plan is left alone: the first compiles and makes the
optimizer's state, the others are like all that follow.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from legroom.capture import ObservedRun, is_in_backward
from legroom.engine.graph import guard, notebook
from legroom.meter import PeakGauge, PeakReading, RunNote

_MEASURED_STEPS = 3
_REMEMBERED = 21

OnReading = Callable[[PeakReading], None]


class StepWatch:
    """Measures steps until everybody who asked has seen enough.

    Attributes:
        step_ms: How long the latest steps took that were not measured.
        num_steps: Steps that have ended.
        on_opening: Is told who begins a measured step, and how large what is alive then is.
        on_step: Is told of each measured step before those who asked for it are.
        is_worth_reading: Says, of the runs in a step, whether what was recorded is looked at. If
            not, those who asked for it have seen enough.
        reading: Open while a recorded step is read, and told.
    """

    def __init__(self, device: torch.device) -> None:
        self.step_ms: list[float] = []
        self.num_steps = 0
        self.on_step: OnReading | None = None
        self.on_opening: Callable[[Hashable, Sequence[int]], None] | None = None
        self.is_worth_reading: Callable[[Sequence[ObservedRun]], bool] = lambda runs: True
        self.reading: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._device = device
        self._gauge: PeakGauge | None = None
        self._waiting: dict[Hashable, OnReading] = {}
        self._counts: dict[Hashable, int] = {}
        self._last_s: float | None = None
        self._is_closed = self._has_begun = self._is_wanted = False

    def call_begins(self, identity: Hashable, on_reading: OnReading) -> None:
        """A planned call begins; it is measured if its plan is new.

        A step is measured from its first planned call on, or not at all: what is alive in its
        middle says little about when it began.
        """
        is_first, self._has_begun = not self._has_begun, True
        is_new = self._counts.get(identity, 0) < _MEASURED_STEPS
        if is_new:
            self._waiting[identity] = on_reading
        if self._gauge is not None or self._is_closed or not (is_new or self._is_wanted):
            return
        self._is_wanted = not is_first
        if is_first:
            self._start(identity)

    def _start(self, identity: Hashable) -> None:
        gc.collect()  # what compiling has left behind is no part of the step
        gauge = PeakGauge(self._device)
        if not gauge.start():
            return
        self._gauge = gauge
        notebook.begin()
        if self.on_opening is not None:
            self.on_opening(identity, gauge.opening_sizes)

    def step_ends(self) -> None:
        """A step has ended: tell what was measured."""
        now_s = time.perf_counter()
        self.num_steps += 1
        gauge, self._gauge = self._gauge, None
        was_closed, self._is_closed = self._is_closed, False
        self._has_begun = False
        if gauge is None:
            self._waiting.clear()
        if was_closed:
            self._last_s = None
            return
        if gauge is None:
            if self._last_s is not None:
                self.step_ms = [*self.step_ms, 1000 * (now_s - self._last_s)][-_REMEMBERED:]
            self._last_s = now_s
            return
        self._last_s = None
        with self.reading():
            self._tell(gauge, notebook.end())

    def _tell(self, gauge: PeakGauge, notes: Sequence[RunNote]) -> None:
        waiting, self._waiting = self._waiting, {}
        if not self.is_worth_reading([note.run for note in notes]):
            gauge.discard()
            self._counts |= dict.fromkeys(waiting, _MEASURED_STEPS)
            return
        reading = gauge.stop(notes, is_first=self.num_steps == 1)
        if reading is None:
            return
        if self.on_step is not None:
            self.on_step(reading)
        for identity, on_reading in waiting.items():
            self._counts[identity] = self._counts.get(identity, 0) + 1
            on_reading(reading)

    def close(self) -> None:
        """Stop measuring for the rest of this step; what was seen of it is forgotten.

        A scope may be open that began while we measured, as in DDP's forward: no other profiler
        may start before it ends (see Note [Open scopes]), and it ends within the step.
        """
        gauge, self._gauge = self._gauge, None
        if gauge is not None:
            self._is_closed = True
            notebook.end()
            with contextlib.suppress(RuntimeError):
                gauge.discard()
        self._waiting.clear()


class StepEnds:
    """Tells a watch where steps end, in a loop that somebody else has written.

    A step ends when each of the optimizers has made its update. It has ended as well where a call
    begins after some of them did, or after all did during the backward pass, or, if there are none,
    after a backward pass.
    """

    def __init__(self, watch: StepWatch, optimizers: Iterable[Optimizer]) -> None:
        self._watch = watch
        self._updated: set[int] = set()
        self._num_backwards: int | None = None
        self._hooks = contextlib.ExitStack()
        myself = weakref.ref(self)

        def update_ends(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            ends = myself()
            if ends is not None:
                ends._update_ends(optimizer)

        handles = [optimizer.register_step_post_hook(update_ends) for optimizer in optimizers]
        self._num_optimizers = len(handles)
        for handle in handles:
            self._hooks.callback(handle.remove)

    def _update_ends(self, optimizer: Optimizer) -> None:
        if guard.is_planning:
            return
        self._updated.add(id(optimizer))
        # A profiler that is stopped inside a backward pass counts as running after it.
        if len(self._updated) == self._num_optimizers and not is_in_backward():
            self._end_step()

    def call_begins(self, num_backwards: int) -> None:
        """A planned call begins, after so many backward passes."""
        was_backward = self._num_backwards not in (None, num_backwards)
        self._num_backwards = num_backwards
        if self._updated or (was_backward and not self._num_optimizers):
            self._end_step()

    def _end_step(self) -> None:
        self._updated.clear()
        self._watch.step_ends()

    def close(self) -> None:
        """Listen no longer."""
        self._hooks.close()
