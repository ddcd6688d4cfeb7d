"""The allocator's peak over one stretch of a program that runs anyway: one real training step.

In goes the moment at which the stretch begins and the one at which it ends; out come the most bytes
that were alive at once, and how far the process grew. Nothing but PyTorch's own memory events is
recorded, so compiled code runs as it does without. See Note [Peak gauge].
"""

# Note [Peak gauge]
# 1. CPU: the events and the opening balance are replayed by the ledger, as a profile's are, so the
#    two agree to the byte on the same stretch.
# 2. No shapes, stacks, function modes or module hooks: TorchDynamo guards modes and hooks, and
#    recorded shapes keep tensors inside torch.func's transforms alive.
# 3. A stretch begins and ends in the middle of things: inside a module's call, inside an
#    optimizer's hook. What is alive there in Python frames and in graphs is found by looking; see
#    Note [Opening balance].
# 4. The profiler hears one thread. What other threads allocate is missing, here as in a profile.

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch.profiler import ProfilerActivity

from legroom.capture import ObservedStep, scan_heap
from legroom.meter._events import read_events
from legroom.meter._ledger import build_ledger
from legroom.meter._observe import RunNote, observe
from legroom.meter._opening import OpeningBalance, take_opening_balance
from legroom.meter._profiler import profiler_is_running, start_profiler, stop_profiler
from legroom.meter._recorder import Recording
from legroom.meter._resident import (
    ResidentPeak,
    highest_resident_bytes,
    release_free_heap,
    reset_highest,
    resident_bytes,
)
from legroom.meter._scopes import Tag, mark, open_scope
from legroom.meter._timeline import balances


@final
@dataclass(frozen=True, slots=True)
class PeakReading:
    """What a stretch of a program held at its highest.

    Attributes:
        peak_bytes: The most bytes of tensors alive at once.
        opening_bytes: Those alive when it began.
        resident_bytes: How far the process grew at its highest, over what it held when the stretch
            began; a few megabytes of it are the events recorded. None where the system does not
            tell.
        observed: What happened in it between runs of pieces, where those were noted.
    """

    peak_bytes: int
    opening_bytes: int
    resident_bytes: int | None
    observed: ObservedStep | None = None


@final
class PeakGauge:
    """Measures from `start` to `stop`, as often as one likes.

    Args:
        device: Whose memory to account for. On a CPU the profiler tells, on CUDA the statistics of
            its allocator.

    Attributes:
        is_active: Whether it has been started and not yet stopped.

    Limits: the statistics of CUDA, which no test of ours has read, count in blocks of 512 bytes;
    `start` resets their peak for everybody.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profiler: torch.profiler.profile | None = None
        self._opening = OpeningBalance(())
        self._opening_bytes = 0
        self._before_bytes: int | None = None
        self._thread = 0
        self.is_active = False

    def start(self) -> bool:
        """Begin. False, and nothing happens, if it has begun or somebody's profiler is running.

        Cost: a look at everything alive, about 0.1 s per million Python objects. Free memory that
        glibc keeps goes back to the system, and the process's highest resident size starts anew.
        """
        if self.is_active or profiler_is_running():
            return False
        self.is_active, self._thread = True, threading.get_ident()
        try:
            if self._device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._device)
                self._opening_bytes = torch.cuda.memory_allocated(self._device)
            else:
                self._start_recording()
            release_free_heap()
            before_bytes = resident_bytes()
            self._before_bytes = before_bytes if reset_highest() else None
            mark(Tag.BOUNDARY)
        except BaseException:
            self._switch_off()
            raise
        return True

    @property
    def opening_sizes(self) -> tuple[int, ...]:
        """Bytes of each storage that was alive when it was started; of a CPU only."""
        return tuple(each.num_bytes for each in self._opening.storages)

    def stop(self, notes: Sequence[RunNote] = (), *, is_first: bool = False) -> PeakReading | None:
        """End, and say what was measured; None if it was not started.

        Args:
            notes: Of runs of pieces in it, by the numbers of their scopes.
            is_first: Whether it was the first step; see `ObservedStep`.

        None as well if somebody switched another profiler on in between, which took the events. On
        another thread than the one that started, None, and the measurement goes on. Cost: some
        20 µs for each operation and allocation recorded.
        """
        if not self.is_active or threading.get_ident() != self._thread:
            return None
        grown_bytes = self._grown_bytes()
        mark(Tag.BOUNDARY)
        profiler, opening = self._switch_off()
        if profiler is None:
            peak_bytes = torch.cuda.max_memory_allocated(self._device)
            return PeakReading(peak_bytes, self._opening_bytes, grown_bytes)
        return _read(profiler, opening, self._device, grown_bytes, notes, is_first)

    def discard(self) -> None:
        """End, and read nothing of what was recorded, which takes far longer than to record it.

        On another thread than the one that started, nothing happens, and the measurement goes on.
        """
        if self.is_active and threading.get_ident() == self._thread:
            mark(Tag.BOUNDARY)
            self._switch_off()

    def _start_recording(self) -> None:
        # See Note [Peak gauge], rule 2.
        self._profiler = torch.profiler.profile(
            activities=[ProfilerActivity.CPU], profile_memory=True
        )
        start_profiler(self._profiler, owner=self)
        myself = weakref.ref(self)  # what outlives us must not keep us: see Note [Abandoned]

        def freed(address: int) -> None:
            gauge = myself()
            if gauge is not None and gauge.is_active:
                mark(Tag.FREED, address)

        with open_scope(Tag.OVERHEAD):
            heap = scan_heap()
            self._opening = take_opening_balance(heap, self._device, on_freed=freed)

    def _switch_off(self) -> tuple[torch.profiler.profile | None, OpeningBalance]:
        """Leave nothing on and hold nothing; hand over what was recorded."""
        profiler, opening = self._profiler, self._opening
        self.is_active, self._profiler, self._opening = False, None, OpeningBalance(())
        opening.close()
        if profiler is not None:
            stop_profiler(profiler)
        return profiler, opening

    def _grown_bytes(self) -> int | None:
        highest_bytes = highest_resident_bytes()
        if self._before_bytes is None or highest_bytes is None:
            return None
        return ResidentPeak(self._before_bytes, highest_bytes).growth_bytes


def _read(
    profiler: torch.profiler.profile,
    opening: OpeningBalance,
    device: torch.device,
    grown_bytes: int | None,
    notes: Sequence[RunNote],
    is_first: bool,
) -> PeakReading | None:
    """The peak between the two marks. See Note [Peak gauge], rule 1."""
    stream = read_events(profiler, device)
    ledger = build_ledger(
        Recording(
            device=device,
            stream=stream,
            sites=(),
            opening=opening,
            snapshots=(),
            parameters={},
            module_classes={},
            opaque_nodes=frozenset(),
            has_lines=False,
            has_inputs=False,
        )
    )
    if len(ledger.boundaries_ns) != 2:
        return None
    moments = [moment.total_bytes for moment in balances(ledger, *ledger.boundaries_ns)]
    observed = observe(ledger, stream, notes, is_first=is_first) if notes else None
    return PeakReading(max(moments), moments[0], grown_bytes, observed)
