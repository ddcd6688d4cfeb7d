"""Can a step be planned by a process in which the step itself does not fit?

In goes what to do (`plan` or `step`) and how many bytes of data the process may have beyond what
it has before the model is built; out comes one JSON object on stdout. The limit is `RLIMIT_DATA`;
a thread watches how much is in use.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import answer_of, one_line

CASE, SHARE, BUDGET = "gpt2", 0.6, "50%"
_STEPS = 3
_WATCHED = ("VmData", "VmRSS")


def measure_limited() -> dict[str, Any]:
    """Plan, and as a control step, each in a process limited to a share of the plain peak."""
    plain = answer_of("benchmarks.meter", CASE, "profile")
    if "error" in plain:
        return plain
    allowed = str(int(SHARE * plain["peak_bytes"]))
    with tempfile.TemporaryDirectory() as folder:  # so that operations are timed under the limit
        cold = {"LEGROOM_CACHE_DIR": folder}
        rows = {
            action: answer_of("benchmarks.limited", action, allowed, env=cold) for action in ACTIONS
        }
    return {
        "case": CASE,
        "share": SHARE,
        "budget": BUDGET,
        "plain_peak_bytes": plain["peak_bytes"],
        "allowed_bytes": int(allowed),
        "rows": rows,
    }


def _plan() -> dict[str, Any]:
    import legroom
    from benchmarks import cases

    report = legroom.plan(cases.build(CASE).step, budget=BUDGET, points=0)
    assert report.chosen is not None
    return {
        "predicted_peak_bytes": report.chosen.predicted_peak_bytes,
        "added_ms": report.chosen.added_ms,
        "measured_share": report.measured_share,
    }


def _step() -> dict[str, Any]:
    from benchmarks import cases

    case = cases.build(CASE)
    return {"loss": [case.step().item() for _ in range(_STEPS)]}


ACTIONS: dict[str, Callable[[], dict[str, Any]]] = {"plan": _plan, "step": _step}


def _run_limited(action: str, allowed_bytes: int) -> dict[str, Any]:
    import legroom  # noqa: F401 - what a program has loaded before it builds its model
    from benchmarks import cases

    cases.load(CASE)
    before = _status_bytes()
    highest = dict(before)
    _watch(highest)
    limit = before["VmData"] + allowed_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    started = time.perf_counter()
    try:
        answer = ACTIONS[action]()
    except Exception as error:  # running out of memory is the question
        answer = {"failed": one_line(error)}
    return {
        **answer,
        "seconds": time.perf_counter() - started,
        "before_bytes": before,
        "highest_bytes": highest,
    }


def _status_bytes() -> dict[str, int]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: 1024 * int(fields[name].split()[0]) for name in _WATCHED}


def _watch(highest: dict[str, int]) -> None:
    """Keep the highest figures; the thread's small stack is below a megabyte."""

    def look() -> None:
        while True:
            for name, value in _status_bytes().items():
                highest[name] = max(highest[name], value)
            time.sleep(0.002)

    threading.stack_size(256 * 1024)
    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    print(json.dumps(_run_limited(sys.argv[1], int(sys.argv[2]))))
