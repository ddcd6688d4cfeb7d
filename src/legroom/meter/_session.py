"""Warm-up, measurement and the end: what happens at each step of a training loop.

In come step boundaries, from a script that is watched or from a callable that is repeated; out
comes a `Profile`. The first steps are left alone: they create the optimizer's state, and their
time and resident memory are what the recorded step is compared with.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from legroom.capture import AbstractTrainingObserver
from legroom.errors import UsageError
from legroom.meter._build import Surroundings, build_profile
from legroom.meter._profile import Profile
from legroom.meter._profiler import profiler_is_running
from legroom.meter._recorder import Recorder, Recording
from legroom.meter._resident import (
    ResidentPeak,
    highest_resident_bytes,
    release_free_heap,
    reset_highest,
    resident_bytes,
)


@dataclass(frozen=True)
class SessionOptions:
    """How much to measure.

    Attributes:
        num_steps: Steps to record.
        num_warmup: Steps to leave alone first. With 0 the very first step is recorded, optimizer
            state being created in it.
        device: Whose memory to account for; None picks the accelerator if there is one in use.
    """

    num_steps: int = 1
    num_warmup: int = 2
    device: str | None = None

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise UsageError(f"steps must be at least 1, got {self.num_steps}")
        if self.num_warmup < 0:
            raise UsageError(f"warm-up must be at least 0 steps, got {self.num_warmup}")


class ProfilingSession:
    """Counts steps and records those after the warm-up.

    Args:
        options: How many steps to leave alone and to record.
        set_observer: Told who should hear of optimizer steps and backward passes.
        on_progress: Called with a stage and a count whenever something moves on.

    Attributes:
        num_steps_seen: Steps that have ended, warm-up included.
        is_blocked: Whether somebody else's profiler kept recording from beginning.
    """

    def __init__(
        self,
        options: SessionOptions,
        set_observer: Callable[[AbstractTrainingObserver], None],
        *,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._options = options
        self._set_observer = set_observer
        self._on_progress = on_progress or (lambda stage, done, total: None)
        self._recorder: Recorder | None = None
        self._distorted: Recording | None = None
        self._is_warm = False
        self._before_bytes: int | None = None
        self._can_reset = False
        self._resident: ResidentPeak | None = None
        self._last_ns: int | None = None
        self._plain_ms: list[float] = []
        self._recorded = 0
        self.num_steps_seen = 0
        self.is_blocked = False

    @property
    def is_finished(self) -> bool:
        """Whether all the steps asked for have been recorded."""
        return self._recorded >= self._options.num_steps

    @property
    def num_recorded(self) -> int:
        """Steps recorded to their end."""
        return self._recorded or int(self._distorted is not None)

    def training_starts(self) -> None:
        """Before the first step: note what the process holds."""
        release_free_heap()
        self._before_bytes = resident_bytes()
        self._can_reset = reset_highest()
        self._on_progress("warm-up", 0, self._options.num_warmup)
        if self._options.num_warmup == 0:
            self._start_recording()
        self._last_ns = time.perf_counter_ns()

    def step_ends(self) -> None:
        """At every end of a step: move on."""
        now_ns = time.perf_counter_ns()
        self.num_steps_seen += 1
        if self._recorder is not None and self._recorder.is_active:
            self._recorder.boundary()
            if self._recorder.is_distorted:
                self._recorder.stop()
                # Only what was seen is kept: the profiler itself holds on to the tensors.
                self._distorted, self._recorder = self._recorder.recording(), None
                self._set_observer(AbstractTrainingObserver())
                gc.collect()
                return
            self._recorded += 1
            self._on_progress("recording", self._recorded, self._options.num_steps)
            return
        if self._distorted is not None and self._recorder is None:
            # A step later, since this may be inside of Optimizer.step: see Note [Open scopes].
            self._start_recording(with_inputs=False)
        elif not self._is_warm:
            self._note_plain_step(now_ns)
            self._on_progress("warm-up", self.num_steps_seen, self._options.num_warmup)
            self.is_blocked = profiler_is_running()
            if self.num_steps_seen >= self._options.num_warmup and not self.is_blocked:
                self._start_recording()
        self._last_ns = time.perf_counter_ns()

    def halt(self, *, within_step: bool = False) -> None:
        """Stop recording, and nothing else: what was seen stays for `finish`."""
        if self._recorder is not None:
            self._recorder.stop(within_step=within_step)

    def finish(
        self,
        command: str,
        *,
        is_complete: bool = True,
        notes: tuple[str, ...] = (),
    ) -> Profile | None:
        """Stop recording and build the profile; None if recording never began."""
        if self._recorder is None and self._distorted is None:
            return None
        self.halt()
        self._on_progress("balancing the books", 0, 1)
        # A distorted recording is better than none.
        num_recorded = self.num_recorded
        recording = None if self._recorded else self._distorted
        if recording is None:
            assert self._recorder is not None, "bug in legroom: steps were recorded by nobody"
            recording = self._recorder.recording()
        # Let go of the recorder: it knows the model, which the program may want to drop.
        self._recorder = self._distorted = None
        self._set_observer(AbstractTrainingObserver())
        profile = build_profile(
            recording,
            Surroundings(
                command=command,
                step_ms=round(statistics.median(self._plain_ms), 4) if self._plain_ms else None,
                resident_peak_bytes=self._resident.growth_bytes if self._resident else None,
                resident_before_bytes=self._resident.before_bytes if self._resident else None,
                is_complete=is_complete and num_recorded > 0,
                notes=notes,
            ),
        )
        self._on_progress("balancing the books", 1, 1)
        return profile

    def _note_plain_step(self, now_ns: int) -> None:
        # The first step creates optimizer state and fills caches: its time says little.
        if self._last_ns is not None and self.num_steps_seen > 1:
            self._plain_ms.append((now_ns - self._last_ns) / 1e6)
        highest = highest_resident_bytes()
        if self._can_reset and self._before_bytes is not None and highest is not None:
            self._resident = ResidentPeak(self._before_bytes, highest)

    def _start_recording(self, *, with_inputs: bool = True) -> None:
        self._is_warm = True
        device = _pick_device(self._options.device)
        self._recorder = Recorder(device, with_inputs=with_inputs)
        self._set_observer(self._recorder)
        self._on_progress("recording", 0, self._options.num_steps)
        self._recorder.start()


def _pick_device(name: str | None) -> torch.device:
    if name is not None:
        return torch.device(name)
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
