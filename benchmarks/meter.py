"""Is the meter right, and what does it cost? One case, one question, one process.

In go a case's name and a part (`profile`, `truth`, `memtracker`, `overhead`); out comes one JSON
object on stdout. `benchmarks.run` calls this for all cases and puts the answers side by side.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from benchmarks import cases

WARMUP_STEPS = 2
REPETITIONS = 5


def measure_profile(name: str) -> dict[str, Any]:
    """legroom's own answer: the peak of the third step, by kind."""
    from legroom import profile

    result = profile(cases.build(name).step, warmup=WARMUP_STEPS)
    unbalanced = sum(sum(m.kinds.values()) != m.total_bytes for m in result.timeline)
    return {
        "peak_bytes": result.peak_bytes,
        "peak_phase": result.peak_phase,
        "kinds": result.kinds,
        "kinds_sum_bytes": sum(result.kinds.values()),
        "num_moments": len(result.timeline),
        "num_unbalanced_moments": unbalanced,
        "untracked_share": result.kinds["untracked"] / result.peak_bytes,
        "largest_stash_bytes": result.largest_stash_bytes,
        "resident_peak_bytes": result.resident_peak_bytes,
        "step_ms": result.step_ms,
        "stash_with_place": result.coverage.stash_share,
        "peak_with_place": result.coverage.peak_share,
        "time_with_line": result.coverage.time_share,
        "findings": {f.name: f.bytes for f in result.findings},
        "limits": [limit.name for limit in result.limits],
    }


def measure_truth(name: str) -> dict[str, Any]:
    """The allocator's own count, watched since before the model existed."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        case = cases.build(name)
        for _ in range(WARMUP_STEPS):
            case.step()
        with record_function("measured step"):
            case.step()
    return {"peak_bytes": allocator_peak_bytes(profiler, within="measured step")}


def allocator_peak_bytes(profiler: torch.profiler.profile, *, within: str) -> int:
    """The highest running sum of the allocator's events within the event of that name."""
    events, pending = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        events.append(event)
        pending.extend(event.children)
    events.sort(key=lambda event: event.start_time_ns)
    measured = next(event for event in events if event.name == within)
    allocation = torch._C._profiler._EventType.Allocation
    total_bytes = peak_bytes = 0
    for event in events:
        kind, fields = event.typed
        if kind == allocation:
            total_bytes += fields.alloc_size
        if measured.start_time_ns <= event.start_time_ns <= measured.end_time_ns:
            peak_bytes = max(peak_bytes, total_bytes)
    return peak_bytes


def measure_memtracker(name: str) -> dict[str, Any]:
    """PyTorch's own MemTracker on the same step; its mode changes what autograd does in place."""
    from torch.distributed._tools.mem_tracker import MemTracker

    case = cases.build(name)
    for _ in range(WARMUP_STEPS):
        case.step()
    owned = {id(p) for model in case.models for p in (*model.parameters(), *model.buffers())}
    inputs = [
        thing
        for thing in gc.get_objects()
        if type(thing) is torch.Tensor and thing.is_leaf and id(thing) not in owned
    ]
    tracker = MemTracker()
    tracker.track_external(*case.models, *case.optimizers, *inputs)
    del inputs
    try:
        with tracker:
            case.step()
    except Exception as error:  # what a peer cannot run is a result, not a failure of ours
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {"peak_bytes": snapshot["Total"], "kinds": {str(k): v for k, v in snapshot.items()}}


def measure_overhead(name: str) -> dict[str, Any]:
    """A step plain and recorded, in turn; and plain again afterwards."""
    from legroom.capture import StepFinder
    from legroom.meter import Recorder

    case = cases.build(name)
    for _ in range(WARMUP_STEPS):
        case.step()
    before = [_milliseconds(case.step) for _ in range(REPETITIONS)]
    plain, recorded = [], []
    finder = StepFinder(lambda: None)
    with finder.watching():
        for _ in range(REPETITIONS):
            plain.append(_milliseconds(case.step))
            recorder = Recorder(torch.device("cpu"))
            finder.observer = recorder
            recorder.start()
            recorded.append(_milliseconds(case.step))
            recorder.stop()
            del recorder
    after = [_milliseconds(case.step) for _ in range(REPETITIONS)]
    return {
        "plain_ms": statistics.median(plain),
        "plain_spread_ms": [min(plain), max(plain)],
        "recorded_ms": statistics.median(recorded),
        "recorded_spread_ms": [min(recorded), max(recorded)],
        "ratio": statistics.median(r / p for r, p in zip(recorded, plain, strict=True)),
        "after_ratio": statistics.median(after) / statistics.median(before),
    }


def _milliseconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "profile": measure_profile,
    "truth": measure_truth,
    "memtracker": measure_memtracker,
    "overhead": measure_overhead,
}

if __name__ == "__main__":
    print(json.dumps(PARTS[sys.argv[2]](sys.argv[1])))
