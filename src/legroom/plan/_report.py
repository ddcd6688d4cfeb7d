"""From a captured step to a `PlanReport`: times, floor, frontier, and the plan asked for.

In go a `Capture` and the options; out comes the report. Nothing of the model runs here, except
single operations, to be timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import torch

from legroom import tiers, variants, ways
from legroom.capture import Capture, Graph
from legroom.errors import UsageError
from legroom.meter import (
    OperationTime,
    OperationTimes,
    TierSpeed,
    modelled_host_speed,
    modelled_times,
    parse_device,
    tier_speed,
)
from legroom.plan._budget import Budget
from legroom.plan._contest import gap_of
from legroom.plan._effort import Allowance
from legroom.plan._executor_time import executor_time
from legroom.plan._measured import MeasuredStep
from legroom.plan._options import PlanOptions
from legroom.plan._plan import FrontierPoint, Plan, PlanReport, PresetPoint
from legroom.plan._planner import Planner
from legroom.plan._problem import signatures_of_ways
from legroom.plan._reserve import Judge, plan_with_reserve
from legroom.variants import AbstractVariant
from legroom.ways import AbstractWay, Exactness, RunCost

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
    allowance = options.allowance_after(capture.seconds)

    def report(capture: Capture, options: PlanOptions) -> tuple[PlanReport, Planner]:
        planner, notes = planner_of(capture, options, allowance=allowance, on_progress=on_progress)
        return _report(capture, options, planner, notes, target=target), planner

    judge: Judge[tuple[PlanReport, Planner]] = Judge(
        floor_bytes=lambda found: found[0].floor_peak_bytes,
        plan=lambda found: found[0].chosen,
        step_ms=lambda found: found[0].step_ms,
        as_written_ms=lambda found: found[1].as_written_ms,
    )
    return plan_with_reserve(capture, options, report, judge=judge)[0]


def _report(
    capture: Capture, options: PlanOptions, planner: Planner, notes: list[str], *, target: str
) -> PlanReport:
    started = time.perf_counter()
    planned = planner.graph
    budget_bytes = _budget_bytes(options, planner)
    chosen = None if budget_bytes is None else planner.plan(budget_bytes)
    frontier = with_all_candidates(
        planner.frontier(options.num_points),
        (*planner.presets, *(() if chosen is None else (chosen,))),
        step_ms=planner.problem.step_ms,
    )
    step_ms = planned.step_ms - planner.rewrite_ms
    measured_ms = sum(op.time_ms for op in planned.operations if op.is_measured)
    return PlanReport(
        target=target,
        device=options.device or planned.device,
        torch_version=planned.torch_version,
        plain_peak_bytes=planner.plain.peak_bytes,
        floor_peak_bytes=planner.floor_bytes,
        state_bytes=planner.plain.state_bytes,
        step_ms=step_ms,
        measured_share=measured_ms / planned.step_ms if planned.step_ms else 0.0,
        num_tensors=len(planner.problem.candidates),
        num_operations=len(planned.operations),
        num_pieces=planned.num_pieces,
        ways=planner.technique_names,
        rewrites=variants.names_of(capture.rewritten_by),
        exactness=options.exactness,
        capture_s=capture.seconds,
        solve_s=time.perf_counter() - started,
        frontier=frontier,
        presets=planner.presets,
        chosen=chosen,
        asked_budget=_in_words(options.chosen_budget),
        not_planned=(
            *((each.what, each.why, each.num_bytes) for each in planned.not_captured),
            *(("times", note, None) for note in notes),
        ),
        peak_kinds={kind.value: num for kind, num in planner.plain.kinds.items()},
        phase_peaks=planner.plain.phase_peaks,
    )


def report_of_measured(measured: MeasuredStep, options: PlanOptions, *, target: str) -> PlanReport:
    """What is known of a step that could not be captured: a real one was measured."""
    return PlanReport(
        target=target,
        device=measured.device,
        torch_version=torch.__version__,
        plain_peak_bytes=measured.peak_bytes,
        floor_peak_bytes=measured.peak_bytes,
        state_bytes=measured.opening_bytes,
        step_ms=measured.step_ms,
        measured_share=1.0,
        num_tensors=0,
        num_operations=0,
        num_pieces=0,
        ways=(),
        exactness=options.exactness,
        capture_s=0.0,
        solve_s=0.0,
        frontier=(),
        presets=(),
        not_planned=(("the step", f"it could not be captured: {measured.why}", None),),
    )


def _budget_bytes(options: PlanOptions, planner: Planner) -> int | None:
    budget = options.chosen_budget
    if budget is not None:
        return planner.bytes_of(budget)
    return parse_device(options.device).memory_bytes if options.device is not None else None


def with_all_candidates(
    frontier: Sequence[FrontierPoint],
    candidates: Sequence[PresetPoint | Plan],
    *,
    step_ms: float,
) -> tuple[FrontierPoint, ...]:
    """The frontier with a point for the chosen plan, and none that a recipe or that plan beats.

    Args:
        candidates: Whatever else was simulated.
        step_ms: What gaps are shares of.
    """
    points = list(frontier)
    known = {point.budget_bytes for point in points}
    for each in candidates if points else ():
        if isinstance(each, Plan) and each.budget_bytes not in known:
            points.append(
                FrontierPoint(
                    each.budget_bytes,
                    each.predicted_peak_bytes,
                    each.added_ms,
                    each.bound_ms,
                    each.gap,
                    each.preset,
                )
            )
    points = [_best_within(point, candidates, step_ms) for point in points]
    return tuple(sorted(points, key=lambda point: -point.budget_bytes))


def _best_within(
    point: FrontierPoint, candidates: Sequence[PresetPoint | Plan], step_ms: float
) -> FrontierPoint:
    """The point, or what fits its budget and is faster, or as fast and leaner."""
    for each in candidates:
        mine = (each.added_ms, each.predicted_peak_bytes)
        is_better = mine < (point.added_ms, point.predicted_peak_bytes)
        if each.predicted_peak_bytes <= point.budget_bytes and is_better:
            bound_ms = min(point.bound_ms, each.added_ms)
            point = replace(
                point,
                predicted_peak_bytes=each.predicted_peak_bytes,
                added_ms=each.added_ms,
                bound_ms=bound_ms,
                gap=gap_of(each.added_ms, bound_ms, step_ms),
                preset=each.preset if isinstance(each, Plan) else each.name,
            )
    return point


def _in_words(budget: Budget | None) -> str:
    """A budget that is not in bytes."""
    return "" if budget is None or budget.num_bytes is not None else str(budget)


class Stopwatch(Protocol):
    """Says how long operations take: measured, or modelled."""

    notes: list[str]

    def measure(
        self, signatures: Iterable[str], *, on_progress: OnProgress | None = None
    ) -> dict[str, OperationTime]:
        """The time of each."""


@final
class ModelledTimes:
    """Times on a device that is not here, worked out from what it is known to do."""

    def __init__(self, device: str) -> None:
        self.notes: list[str] = []
        self._device = parse_device(device)

    def measure(
        self, signatures: Iterable[str], *, on_progress: OnProgress | None = None
    ) -> dict[str, OperationTime]:
        """The time of each."""
        return modelled_times(list(signatures), self._device)


@final
@dataclass(frozen=True)
class Timed:
    """A captured step with times and scratch memory.

    Attributes:
        costs: Of what ways run themselves, by signature.
        rewrite_ms: What rewrites in reserve add to the step.
        as_written_ms: What the step takes without rewrites; None where there are none.
        notes: What could not be measured, in sentences.
    """

    plain: Graph
    planned: Graph
    costs: dict[str, RunCost]
    rewrite_ms: float
    as_written_ms: float | None
    notes: list[str]


def with_times(
    capture: Capture,
    stopwatch: Stopwatch,
    ways: tuple[type[AbstractWay], ...] = (),
    variants: tuple[type[AbstractVariant], ...] = (),
    *,
    on_progress: OnProgress | None = None,
) -> Timed:
    """The plain and the planned graph, and what the ways would run, with times."""
    own = signatures_of_ways(capture.planned, ways, variants)
    times = stopwatch.measure([*_signatures(capture), *own], on_progress=on_progress)
    planned, without = _timed(capture.planned, times), capture.without_reserve
    added_ms = 0.0 if without is None else planned.step_ms - _timed(without, times).step_ms
    other = capture.as_written
    return Timed(
        plain=_timed(capture.plain, times),
        planned=planned,
        rewrite_ms=max(0.0, added_ms),
        as_written_ms=None if other is None else _timed(other.planned, times).step_ms,
        costs={
            each: RunCost(times[each].ms, times[each].workspace_bytes)
            for each in own
            if each in times
        },
        notes=stopwatch.notes,
    )


def planner_of(
    capture: Capture,
    options: PlanOptions,
    *,
    allowance: Allowance | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[Planner, list[str]]:
    """Time a captured step and get ready to plan it; also what could not be measured.

    Args:
        allowance: Of time, where other forms of the step are planned within it too; None: its own.
    """
    exactness = Exactness(options.exactness)
    enabled = ways.select(options.way_names, exactness=exactness)
    stopwatch: Stopwatch = OperationTimes(capture.planned.device)
    if options.device is not None:
        stopwatch = ModelledTimes(options.device)
    formulas = variants.select(options.variant_names, exactness=exactness)
    timed = with_times(capture, stopwatch, enabled, formulas, on_progress=on_progress)
    planner = Planner(
        timed.plain,
        timed.planned,
        ways=enabled,
        variants=formulas,
        rewrites=variants.rewrites(options.variant_names, exactness=exactness),
        costs=timed.costs,
        speeds=_speeds(enabled, options, capture.planned.device, on_progress),
        rewrite_ms=timed.rewrite_ms,
        as_written_ms=timed.as_written_ms,
        exactness=options.exactness,
        preset=options.preset,
        stash=options.chosen_stash,
        is_described=options.device is not None,
        is_compiled=options.is_compiled,
        executor=executor_time(
            options.device or capture.planned.device, is_compiled=options.is_compiled
        ),
        allowance=allowance or options.allowance(),
        on_progress=on_progress,
    )
    return planner, timed.notes


def _speeds(
    enabled: tuple[type[AbstractWay], ...],
    options: PlanOptions,
    device: str,
    on_progress: OnProgress | None,
) -> dict[str, TierSpeed]:
    """How fast the tiers are that ways move tensors to: measured here, or of a described device.

    Raises:
        UsageError: One is not for tensors of the device.
        TierError: One cannot be used.
    """
    moves = [way for way in enabled if issubclass(way, ways.AbstractMove)]
    if options.device is not None:
        known = {ways.Host.tier: modelled_host_speed(parse_device(options.device))}
        return {way.tier: known[way.tier] for way in moves if way.tier in known}
    for way in moves:
        if not way.is_for(device):
            raise UsageError(
                f"the step is on {device!r}, and {way.name!r} is for tensors of an accelerator.\n"
                f"  try: leave {way.name!r} out; {ways.Disk.name!r} takes tensors of any device"
            )
    if isinstance(options.disk, str):
        tiers.set_folder(options.disk)
    return {way.tier: tier_speed(tiers.current(way.tier), on_progress=on_progress) for way in moves}


def _signatures(capture: Capture) -> list[str]:
    other = capture.as_written
    further = (capture.without_reserve, None if other is None else other.planned)
    return [
        op.signature
        for graph in (capture.planned, capture.plain, *further)
        if graph is not None
        for op in graph.operations
        if op.signature
    ]


def _timed(graph: Graph, times: dict[str, OperationTime]) -> Graph:
    unknown = OperationTime(0.0, is_measured=False)
    found = [times.get(op.signature, unknown) for op in graph.operations]
    return graph.with_times((each.ms, each.is_measured, each.workspace_bytes) for each in found)
