"""What does a step of a case of another size take? One try, one process.

In go a case, the fields of its size that are changed, what is tried (`plain`, `plan`, `run`), and
how it is fitted, each as JSON; out comes one JSON object on stdout. `benchmarks.reach` searches
with these. One thread; nothing else shares the process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import legroom
from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.engine import fit_case
from benchmarks.exactness import measure_peak
from legroom.errors import InfeasibleBudgetError

NUM_STEPS = 3
"""So many are run before one is measured; a fitted model measures itself in the first two."""
TIMED_STEPS = 3


def try_plain(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """Train as PyTorch does: the allocator's peak, and how long a step takes."""
    return _run(case)


def try_plan(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """Plan and do not train: the lowest peak that a plan reaches."""
    report = legroom.plan(case.step, points=0, **options)
    return {
        "floor_bytes": report.floor_peak_bytes,
        "state_bytes": report.state_bytes,
        "plain_peak_bytes": report.plain_peak_bytes,
    }


def try_run(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """Train fitted into a budget: the same as plain, or by how much no plan fits."""
    try:
        fitted = fit_case(case, **options)
        ran = _run(case)
    except InfeasibleBudgetError as error:
        return {"floor_bytes": error.floor_bytes}
    report = fitted.report()
    return {
        **ran,
        "predicted_peak_bytes": report.predicted_peak_bytes,
        "replans": report.replans,
        "gradient_error": report.gradient_error,
        "ways": report.to_dict()["ways"],
    }


def _run(case: Case) -> dict[str, Any]:
    losses = [case.step().item() for _ in range(NUM_STEPS)]
    peak_bytes = measure_peak(case.step)
    times = []
    for _ in range(TIMED_STEPS):
        wall, processor = time.perf_counter(), time.process_time()
        case.step()
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    walls, processors = zip(*times, strict=True)
    return {
        "peak_bytes": peak_bytes,
        "losses": losses,
        "step_ms": 1000 * statistics.median(walls),
        "processor_ms": 1000 * statistics.median(processors),
    }


TRIES: dict[str, Callable[[Case, dict[str, Any]], dict[str, Any]]] = {
    "plain": try_plain,
    "plan": try_plan,
    "run": try_run,
}


def main() -> None:
    """Try what the command line says and print the answer."""
    name, changes, what, *options = sys.argv[1:]
    torch.set_num_threads(1)
    legroom.keep_freed_memory()  # steps of different processes are compared
    case = cases.build(name, **json.loads(changes))
    torch.manual_seed(0)
    print(json.dumps(TRIES[what](case, json.loads(options[0]) if options else {})))


if __name__ == "__main__":
    main()
