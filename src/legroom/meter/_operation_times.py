"""Times of operations on this device, for the shapes at hand.

In go signatures (`capture.signature_of`); out comes an `OperationTime` for each. What was measured
before on this device comes from the cache, what can be run is run, and what cannot is modelled by
its arithmetic and its traffic, at the rates that the others achieved.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import final

import torch

from legroom.errors import TorchInterfaceError
from legroom.meter._costs import OperationTime, cost_of, name_of
from legroom.meter._devices import Device, modelled_times
from legroom.meter._resident import release_free_heap
from legroom.meter._stopwatch import LONG_MS, Call, measure_workspace, time_round, undisturbed
from legroom.meter._time_cache import TimeCache, device_name, surroundings_of
from legroom.tiers import available_bytes
from legroom.units import format_bytes

OnProgress = Callable[[str, int, int], None]

_STAGE = "timing operations"
_ROUNDS = 2
# Below, what is seen is the call rather than the device; and above what a call alone takes.
_RATED_BYTES, _RATED_FLOPS, _CALL_BYTES = 2**20, 10**7, 2**14
_CORE_FLOPS_PER_S, _HOST_BYTES_PER_S = 30e9, 10e9
_CARD = (20e12, 40e12, 400e9)
_CALL_MS = 0.005


@final
class OperationTimes:
    """Measures operations, each once for each surrounding in which it is met.

    Args:
        device: Where to run them.
        limit_bytes: An operation whose inputs and outputs take more is modelled, not run. None:
            four fifths of the memory that the machine has free now. A container's own limit is
            not seen: where there is one, say it here.
        is_cached: Whether to read and write the cache folder (`LEGROOM_CACHE_DIR`).

    Attributes:
        notes: What could not be measured or kept, in sentences.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        limit_bytes: int | None = None,
        is_cached: bool = True,
    ) -> None:
        self.notes: list[str] = []
        self._device = torch.device(device)
        self._limit_bytes = limit_bytes
        self._is_cached = is_cached

    def measure(
        self, signatures: Iterable[str], *, on_progress: OnProgress | None = None
    ) -> dict[str, OperationTime]:
        """The time of each distinct signature, in the order of their first appearance.

        Each is run for about 60 ms, and at least four times where it takes less than 200 ms; its
        tensors are released before the next. What is measured is in the cache at once, so that
        Ctrl-C loses nothing. Random numbers, modes and gradients of the program stay as they are.

        Args:
            on_progress: Called with a stage, how much of it is done, and how much there is.
        """
        distinct = list(dict.fromkeys(signatures))
        cache = TimeCache(surroundings_of(self._device))
        times = _restricted(cache.read(), distinct) if self._is_cached else {}
        missing = [signature for signature in distinct if signature not in times]
        if missing:
            times |= self._measure_all(missing, cache, on_progress)
            release_free_heap()
        left = [signature for signature in missing if signature not in times]
        if left:
            times |= modelled_times(left, achieved_rates(times, self._device))
        self.notes += cache.notes
        return {signature: times[signature] for signature in distinct}

    def _measure_all(
        self, signatures: list[str], cache: TimeCache, on_progress: OnProgress | None
    ) -> dict[str, OperationTime]:
        """Two rounds in no particular order: a busy moment then meets one run of an operation.

        The quieter round counts, since other programs only ever make an operation slower.
        """
        times: dict[str, OperationTime] = {}
        failed: dict[str, str] = {}
        total = _ROUNDS * len(signatures)
        limit_bytes = self._limit_bytes
        if limit_bytes is None:
            limit_bytes = _four_fifths_of_free(self._device)
        for number in range(_ROUNDS):
            order = sorted(signatures)
            random.Random(number).shuffle(order)
            for place, signature in enumerate(order, start=1):
                before = times.get(signature)
                if signature not in failed and (before is None or before.ms < LONG_MS):
                    measured = self._measure_one(signature, before, limit_bytes, failed)
                    if measured is not None:
                        times[signature] = measured
                        cache.add(signature, measured)
                if on_progress is not None:
                    on_progress(_STAGE, number * len(signatures) + place, total)
        self._note_failures(failed)
        return times

    def _measure_one(
        self,
        signature: str,
        before: OperationTime | None,
        limit_bytes: int | None,
        failed: dict[str, str],
    ) -> OperationTime | None:
        cost = cost_of(signature)
        if limit_bytes is not None and cost.held_bytes > limit_bytes:
            held, limit = format_bytes(cost.held_bytes), format_bytes(limit_bytes)
            failed[signature] = f"it needs {held}, and the limit is {limit}"
            return None
        try:
            with undisturbed(self._device):
                call = Call.of(signature, cost, self._device)
                ms = time_round(call)
                if before is not None:
                    return before if before.ms <= ms else replace(before, ms=ms)
                return OperationTime(ms, is_measured=True, workspace_bytes=measure_workspace(call))
        except TorchInterfaceError:
            raise
        except Exception as error:  # whatever an operation raises, out of memory included
            if before is None:
                failed[signature] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return before

    def _note_failures(self, failed: dict[str, str]) -> None:
        """One note for each operation, however many shapes of it failed."""
        by_name: dict[str, list[str]] = {}
        for signature, reason in failed.items():
            by_name.setdefault(name_of(signature), []).append(reason)
        for name, reasons in sorted(by_name.items()):
            more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            self.notes.append(f"the time of {name!r} is modelled, not measured: {reasons[0]}{more}")


def achieved_rates(times: Mapping[str, OperationTime], device: torch.device) -> Device:
    """This device as the operations measured on it show it; defaults where none of a kind is."""
    flops_per_s, bytes_per_s, call_ms = [], [], []
    for signature, time in times.items():
        cost, seconds = cost_of(signature), time.ms / 1e3
        if not time.is_measured or seconds <= 0:
            continue
        if cost.is_matrix_product and cost.flops >= _RATED_FLOPS:
            flops_per_s.append(cost.flops / seconds)
        elif cost.is_elementwise and cost.moved_bytes >= _RATED_BYTES:
            bytes_per_s.append(cost.moved_bytes / seconds)
        elif cost.is_elementwise and cost.moved_bytes <= _CALL_BYTES:
            call_ms.append(time.ms)
    assumed = _assumed_rates(device)
    rate = statistics.median(flops_per_s) if flops_per_s else assumed.flops_per_s
    return replace(
        assumed,
        flops_per_s=rate,
        half_flops_per_s=rate if flops_per_s else assumed.half_flops_per_s,
        bytes_per_s=statistics.median(bytes_per_s) if bytes_per_s else assumed.bytes_per_s,
        launch_ms=statistics.median(call_ms) if call_ms else assumed.launch_ms,
    )


def _assumed_rates(device: torch.device) -> Device:
    name = device_name(device)
    if device.type == "cuda":
        return Device(name, 0, *_CARD, _HOST_BYTES_PER_S, _CALL_MS)
    rate = torch.get_num_threads() * _CORE_FLOPS_PER_S
    return Device(name, 0, rate, rate, _HOST_BYTES_PER_S, _HOST_BYTES_PER_S, _CALL_MS)


def _restricted(
    times: Mapping[str, OperationTime], signatures: list[str]
) -> dict[str, OperationTime]:
    return {signature: times[signature] for signature in signatures if signature in times}


def _four_fifths_of_free(device: torch.device) -> int | None:
    """None where the system does not tell."""
    free_bytes = available_bytes(device)
    return None if free_bytes is None else free_bytes * 4 // 5
