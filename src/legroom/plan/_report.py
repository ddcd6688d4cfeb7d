"""From a captured step to a `PlanReport`: times, floor, frontier, and the plan asked for.

In go a `Capture` and the options; out comes the report. Nothing of the model runs here, except
single operations, to be timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from legroom import variants, ways
from legroom.capture import Capture, Graph
from legroom.meter import OperationTime, OperationTimes, modelled_times, parse_device
from legroom.plan._options import PlanOptions
from legroom.plan._plan import PlanReport
from legroom.plan._planner import Planner
from legroom.ways import Exactness

OnProgress = Callable[[str, int, int], None]


def build_report(
    capture: Capture,
    options: PlanOptions,
    *,
    target: str,
    on_progress: OnProgress | None = None,
) -> PlanReport:
    """Time the operations, plan the step, and say what was found.

    Raises:
        InfeasibleBudgetError: No plan fits the budget that was asked for.
    """
    if options.device is not None:
        plain, planned, notes = _modelled(capture, options.device)
    else:
        stopwatch = OperationTimes(capture.planned.device)
        plain, planned, notes = with_times(capture, stopwatch, on_progress=on_progress)
    started = time.perf_counter()
    exactness = Exactness(options.exactness)
    enabled_ways = ways.select(options.way_names, exactness=exactness)
    enabled_variants = variants.select(options.variant_names, exactness=exactness)
    planner = Planner(
        plain,
        planned,
        ways=enabled_ways,
        variants=enabled_variants,
        exactness=options.exactness,
        time_limit_s=options.time_limit_s,
        on_progress=on_progress,
    )
    budget_bytes = _budget_bytes(options, planner)
    chosen = None if budget_bytes is None else planner.plan(budget_bytes)
    frontier = planner.frontier(options.num_points)
    step_ms = planned.step_ms
    measured_ms = sum(op.time_ms for op in planned.operations if op.is_measured)
    return PlanReport(
        target=target,
        device=options.device or planned.device,
        torch_version=planned.torch_version,
        plain_peak_bytes=planner.plain.peak_bytes,
        floor_peak_bytes=planner.floor_bytes,
        state_bytes=planner.plain.state_bytes,
        step_ms=step_ms,
        measured_share=measured_ms / step_ms if step_ms else 0.0,
        num_tensors=len(planner.problem.candidates),
        num_operations=len(planned.operations),
        num_pieces=planned.num_pieces,
        ways=(*(w.name for w in enabled_ways), *(v.name for v in enabled_variants)),
        exactness=options.exactness,
        capture_s=capture.seconds,
        solve_s=time.perf_counter() - started,
        frontier=frontier,
        presets=planner.presets,
        chosen=chosen,
        not_planned=(
            *((each.what, each.why, each.num_bytes) for each in planned.not_captured),
            *(("times", note, None) for note in notes),
        ),
        peak_kinds={kind.value: num for kind, num in planner.plain.kinds.items()},
        phase_peaks=planner.plain.phase_peaks,
    )


def _budget_bytes(options: PlanOptions, planner: Planner) -> int | None:
    budget = options.chosen_budget
    if budget is not None:
        return planner.bytes_of(budget)
    return parse_device(options.device).memory_bytes if options.device is not None else None


def with_times(
    capture: Capture, stopwatch: OperationTimes, *, on_progress: OnProgress | None = None
) -> tuple[Graph, Graph, list[str]]:
    """The plain and the planned graph with times and scratch memory measured on this device.

    Also what could not be measured, in sentences.
    """
    times = stopwatch.measure(_signatures(capture), on_progress=on_progress)
    return _timed(capture.plain, times), _timed(capture.planned, times), stopwatch.notes


def _modelled(capture: Capture, device: str) -> tuple[Graph, Graph, list[str]]:
    times = modelled_times(_signatures(capture), parse_device(device))
    return _timed(capture.plain, times), _timed(capture.planned, times), []


def _signatures(capture: Capture) -> list[str]:
    return [
        op.signature
        for graph in (capture.planned, capture.plain)
        for op in graph.operations
        if op.signature
    ]


def _timed(graph: Graph, times: dict[str, OperationTime]) -> Graph:
    unknown = OperationTime(0.0, is_measured=False)
    found = [times.get(op.signature, unknown) for op in graph.operations]
    return graph.with_times((each.ms, each.is_measured, each.workspace_bytes) for each in found)
