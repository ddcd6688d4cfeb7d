"""How do capturing, planning, compiling and running under a plan grow with the model?

In goes a part, a GPT-2 with so many narrow layers (`6 layers` to `96 layers`); out comes one JSON
object on stdout: seconds of processor time, and by how much the process grew. One thread, since
what is measured is legroom's own work and not the model's.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.engine import fit_case
from benchmarks.processes import print_answer
from legroom.capture import capture_step
from legroom.meter._resident import (
    highest_resident_bytes,
    release_free_heap,
    reset_highest,
    resident_bytes,
)
from legroom.plan import PlanOptions, parse_activations, planner_of

NUM_LAYERS = (6, 12, 24, 48, 96)
SHAPE = {"width": 64, "num_heads": 2, "vocabulary": 512, "batch": 2, "length": 64}
"""Narrow: the step itself is to take little beside what legroom does."""
LEVEL = "50%"
"""Of the activations."""
TIME_LIMIT_S = 30.0
WARMUP_STEPS = 3
"""The first steps under a plan compile it and measure themselves: what they take beyond later ones
is counted as compiling."""
TIMED_STEPS = 11

T = TypeVar("T")


def measure_growth(num_layers: int) -> dict[str, Any]:
    """Processor seconds and growth of the process, stage by stage."""
    torch.set_num_threads(1)
    case = build(num_layers)
    for _ in range(WARMUP_STEPS):
        case.step()
    plain_ms = _step_ms(case)
    seconds: dict[str, float] = {}
    grown: dict[str, int | None] = {}

    def staged(stage: str, work: Callable[[], T]) -> T:
        gc.collect()
        release_free_heap()
        before = resident_bytes()
        reset_highest()
        started = time.process_time()
        result = work()
        seconds[stage] = time.process_time() - started
        highest = highest_resident_bytes()
        grown[stage] = None if before is None or highest is None else highest - before
        return result

    options = PlanOptions(time_limit_s=TIME_LIMIT_S)
    capture = staged("capture", lambda: capture_step(case.step))
    planner, _ = staged("times and recipes", lambda: planner_of(capture, options))
    budget_bytes = planner.bytes_of(parse_activations(LEVEL))
    plan = staged("plan", lambda: planner.plan(budget_bytes))
    staged("floor", lambda: planner.floor_bytes)
    counts = {
        "num_operations": len(planner.graph.operations),
        "num_tensors": len(planner.graph.tensors),
    }
    fitted = fit_case(case, activations=LEVEL, time_limit_s=TIME_LIMIT_S)
    staged("compile", lambda: [case.step() for _ in range(WARMUP_STEPS)])
    fitted_ms = _step_ms(case)
    added_ms, executor_ms = fitted.plan.added_ms, fitted.plan.executor_ms
    fitted.undo()
    seconds["compile"] = max(0.0, seconds["compile"] - WARMUP_STEPS * fitted_ms / 1000)
    return {
        "num_layers": num_layers,
        **counts,
        "seconds": seconds,
        "grown_bytes": grown,
        "timed_out": plan.timed_out,
        "plain_ms": plain_ms,
        "fitted_ms": fitted_ms,
        "added_ms": added_ms,
        "executor_ms": executor_ms,
    }


def build(num_layers: int) -> Case:
    """The narrow GPT-2."""
    return cases.build("gpt2", num_layers=num_layers, **SHAPE)


def _step_ms(case: Case) -> float:
    times = []
    for _ in range(TIMED_STEPS):
        started = time.process_time()
        case.step()
        times.append(1000 * (time.process_time() - started))
    return statistics.median(times)


SINGLE_PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    f"{number} layers": functools.partial(measure_growth, number) for number in NUM_LAYERS
}


if __name__ == "__main__":
    print_answer({}, SINGLE_PARTS)
