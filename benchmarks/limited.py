"""Can a step be planned, and carried out, by a process in which the plain step does not fit?

In goes what to do (`plan` or `step`), how many bytes of data the process may have beyond what it
has before the model is built, a case and its size; out comes one JSON object on stdout. The limit
is `RLIMIT_DATA`; a thread watches how much is in use. What is carried out goes through
`legroom run --limit`, as a user would type it.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, TIMEOUT_S, answer_of, one_line

CASE, SHARE, BUDGET = "gpt2", 0.6, "50%"
RUN_CASE, RUN_SIZE, RUN_SHARE = "gpt2", "deep", 0.5
_STEPS = 3
_FAR = 10
"""A limit this many times what a step needs is none."""
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
            action: answer_of("benchmarks.limited", action, allowed, CASE, "small", env=cold)
            for action in ACTIONS
        }
    return {
        "case": CASE,
        "share": SHARE,
        "budget": BUDGET,
        "plain_peak_bytes": plain["peak_bytes"],
        "allowed_bytes": int(allowed),
        "rows": rows,
    }


def measure_limited_run() -> dict[str, Any]:
    """Train plain, plain under a limit, and under the same limit with `legroom run --limit`."""
    case = [RUN_CASE, RUN_SIZE]
    script = ["-m", f"benchmarks.cases.{RUN_CASE}", "--size", RUN_SIZE]
    peak_bytes = _command("profile", *script, "--steps", "4")["report"]["peak_bytes"]
    allowed = int(RUN_SHARE * peak_bytes)
    steps = ["--steps", str(_STEPS)]
    fitted = _command("run", "--limit", "--budget", str(allowed), *script, *steps)
    return {
        "case": RUN_CASE,
        "size": RUN_SIZE,
        "share": RUN_SHARE,
        "plain_peak_bytes": peak_bytes,
        "allowed_bytes": allowed,
        "plain": answer_of("benchmarks.limited", "step", str(_FAR * peak_bytes), *case),
        "limited": answer_of("benchmarks.limited", "step", str(allowed), *case),
        "fitted": fitted,
    }


def _command(name: str, *arguments: str) -> dict[str, Any]:
    """Run one of legroom's commands; the losses that the script printed, and the report."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        run = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "legroom",
                name,
                "--json",
                str(file),
                *arguments,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        return {
            "exit_code": run.returncode,
            "losses": re.findall(r"loss (\d\S*)", run.stdout),
            "said": run.stderr[-2000:] if run.returncode else "",
            "report": json.loads(file.read_text()) if file.exists() else None,
        }


def _plan(case: str, size: str) -> dict[str, Any]:
    import legroom
    from benchmarks import cases

    report = legroom.plan(cases.build(case, size).step, budget=BUDGET, points=0)
    assert report.chosen is not None
    return {
        "predicted_peak_bytes": report.chosen.predicted_peak_bytes,
        "added_ms": report.chosen.added_ms,
        "measured_share": report.measured_share,
    }


def _step(case: str, size: str) -> dict[str, Any]:
    from benchmarks import cases

    built = cases.build(case, size)
    return {"losses": [f"{built.step().item():.6f}" for _ in range(_STEPS)]}  # as it prints them


ACTIONS: dict[str, Callable[[str, str], dict[str, Any]]] = {"plan": _plan, "step": _step}


def _run_limited(action: str, allowed_bytes: int, case: str, size: str) -> dict[str, Any]:
    import legroom  # noqa: F401 - what a program has loaded before it builds its model
    from benchmarks import cases

    cases.load(case)
    before = _status_bytes()
    highest = dict(before)
    _watch(highest)
    limit = before["VmData"] + allowed_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    started = time.perf_counter()
    try:
        answer = ACTIONS[action](case, size)
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
    print(json.dumps(_run_limited(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])))
