"""Does the plan fit, is it near the optimum, and is it better than recipes? One part, one process.

In go a case's name and a part (`levels`, `plain_peak`), or a part alone that is measured once
(`deep`, `reference`, `limited`); out comes one JSON object on stdout. `benchmarks.run` puts the
answers side by side.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks import cases
from benchmarks.limited import measure_limited
from benchmarks.meter import measure_profile
from benchmarks.processes import one_line
from legroom.errors import InfeasibleBudgetError
from legroom.plan import parse_activations

if TYPE_CHECKING:
    from legroom.plan._planner import Planner

LEVELS = ("100%", "75%", "50%", "35%", "25%")
DEEP_LEVELS = ("50%", "25%")
TIME_LIMIT_S = 30.0
DEEP_TIME_LIMIT_S = 90.0
FRONTIER_POINTS = 10
RECIPE = "per-block"


def measure_levels(name: str) -> dict[str, Any]:
    """Plans of one case for shares of its activations and for the floor, beside the presets."""
    planner, about = prepare(cases.build(name).step, time_limit_s=TIME_LIMIT_S)
    started = time.perf_counter()
    floor_bytes = planner.floor_bytes
    about["floor_bytes"], about["floor_s"] = floor_bytes, time.perf_counter() - started
    rows = [{"level": level, **plan_row(planner, _level_bytes(planner, level))} for level in LEVELS]
    rows.append({"level": "floor", **plan_row(planner, planner.floor_bytes)})
    return {
        **about,
        "rows": rows,
        "presets": [asdict(point) for point in planner.presets],
        "recipe": _compare_with_recipe(planner),
        "frontier": _frontier(planner),
    }


def prepare(step: Callable[[], object], *, time_limit_s: float) -> tuple[Planner, dict[str, Any]]:
    """Capture a step, time its operations and try the presets; how long each took."""
    from legroom.capture import capture_step
    from legroom.plan import PlanOptions, planner_of

    capture = capture_step(step)
    started = time.perf_counter()
    planner, _ = planner_of(capture, PlanOptions(time_limit_s=time_limit_s))
    planned = planner.graph
    return planner, {
        "capture_s": capture.seconds,
        "timing_s": time.perf_counter() - started,
        "step_ms": planner.problem.step_ms,
        "plain_peak_bytes": planner.plain.peak_bytes,
        "state_bytes": planner.plain.state_bytes,
        "num_operations": len(planned.operations),
        "num_candidates": len(planner.problem.candidates),
        "num_pieces": planned.num_pieces,
        "not_captured": [f"{each.what}: {each.why}" for each in planned.not_captured],
    }


def _level_bytes(planner: Planner, level: str) -> int:
    plain = planner.plain
    return parse_activations(level).resolve(plain.peak_bytes, plain.state_bytes)


def plan_row(planner: Planner, budget_bytes: int) -> dict[str, Any]:
    """The plan for a budget, or what was wrong; below the floor, whether the error is right."""
    started = time.perf_counter()
    planner.allowance.renew()
    row: dict[str, Any] = {"budget_bytes": budget_bytes}
    try:
        plan = planner.plan(budget_bytes)
    except InfeasibleBudgetError as error:
        row |= {"status": "below floor", "named_floor_bytes": error.floor_bytes}
        row["solve_s"] = time.perf_counter() - started
        row["passed"] = error.floor_bytes == planner.floor_bytes and _works_at(
            planner, error.floor_bytes
        )
        return row
    except Exception as error:  # a row, not the end of the benchmark
        return {**row, "status": "failed", "error": one_line(error)}
    return {
        **row,
        "status": "planned",
        "solve_s": time.perf_counter() - started,
        "predicted_peak_bytes": plan.predicted_peak_bytes,
        "added_ms": plan.added_ms,
        "share_of_step": plan.added_ms / planner.problem.step_ms,
        "bound_ms": plan.bound_ms,
        "gap": plan.gap,
        "winner": plan.preset,
        "order": plan.order,
        "timed_out": plan.timed_out,
        "num_decisions": len(plan.decisions),
    }


def _works_at(planner: Planner, floor_bytes: int) -> bool:
    try:
        return planner.plan(floor_bytes).predicted_peak_bytes <= floor_bytes
    except InfeasibleBudgetError:
        return False


def _compare_with_recipe(planner: Planner) -> dict[str, Any] | None:
    """The plan for exactly the peak that checkpointing every block reaches; None: no blocks."""
    point = next((point for point in planner.presets if point.name == RECIPE), None)
    if point is None:
        return None
    return {
        "recipe_peak_bytes": point.predicted_peak_bytes,
        "recipe_added_ms": point.added_ms,
        **plan_row(planner, point.predicted_peak_bytes),
    }


def _frontier(planner: Planner) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        points = planner.frontier(FRONTIER_POINTS)
    except Exception as error:  # a row, not the end of the benchmark
        return {"error": one_line(error)}
    return {
        "seconds": time.perf_counter() - started,
        "points": [asdict(point) for point in points],
        "is_monotone": all(
            lower.added_ms >= higher.added_ms for higher, lower in itertools.pairwise(points)
        ),
        "fits": all(point.predicted_peak_bytes <= point.budget_bytes for point in points),
    }


def measure_plain_peak(name: str) -> dict[str, Any]:
    """What the meter measures for the plain step; `levels` has what is predicted."""
    seen = measure_profile(name)
    return {"peak_bytes": seen["peak_bytes"], "peak_phase": seen["peak_phase"]}


def measure_deep() -> dict[str, Any]:
    """A GPT-2 of 48 layers."""
    step = cases.build("gpt2", "deep").step
    planner, about = prepare(step, time_limit_s=DEEP_TIME_LIMIT_S)
    rows = [
        {"level": level, **plan_row(planner, _level_bytes(planner, level))} for level in DEEP_LEVELS
    ]
    return {**about, "rows": rows}


def measure_reference() -> dict[str, Any]:
    """Plans for the peaks that PyTorch's own means reach on the published reference model."""
    from benchmarks.reference import EAGER, PUBLISHED_MB, SEGMENTS, Reference

    reference = Reference()
    measured = {
        setting: reference.measure_peak_bytes(length)
        for setting, length in {EAGER: 0, **SEGMENTS}.items()
    }
    uncounted_bytes = reference.uncounted_bytes
    planner, about = prepare(reference.step, time_limit_s=TIME_LIMIT_S)
    started = time.perf_counter()
    about["floor_bytes"] = planner.floor_bytes
    about["floor_s"] = time.perf_counter() - started
    rows = [
        {
            "setting": setting,
            "published_bytes": round(published_mb * 1e6),
            "measured_bytes": measured.get(setting),
            **plan_row(planner, round(published_mb * 1e6) + uncounted_bytes),
        }
        for setting, published_mb in sorted(PUBLISHED_MB.items(), key=lambda item: -item[1])
    ]
    rows.append({"setting": "the floor", **plan_row(planner, planner.floor_bytes)})
    return {
        **about,
        "uncounted_bytes": uncounted_bytes,
        "rows": rows,
        "presets": [asdict(point) for point in planner.presets],
    }


CASE_PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "levels": measure_levels,
    "plain_peak": measure_plain_peak,
}
SINGLE_PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "deep": measure_deep,
    "reference": measure_reference,
    "limited": measure_limited,
}


def _answer(arguments: list[str]) -> dict[str, Any]:
    try:
        if len(arguments) == 1:
            return SINGLE_PARTS[arguments[0]]()
        return CASE_PARTS[arguments[1]](arguments[0])
    except Exception as error:  # said by its first line, which the traceback's last is not
        return {"error": one_line(error)}


if __name__ == "__main__":
    print(json.dumps(_answer(sys.argv[1:])))
