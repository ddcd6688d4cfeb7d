"""Runs one measurement in a process of its own and reads its answer.

In goes a module with its arguments; out comes the JSON object that it prints as its last line, or
`{"error": ...}`: what went wrong is a row, not the end of the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 1800
TOOK_MORE = "took more than"


def answer_of(
    module: str, *arguments: str, env: dict[str, str] | None = None, limit_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """What `python -m module arguments` answers, within so many seconds."""
    try:
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"{TOOK_MORE} {limit_s:g} s"}
    if run.returncode != 0:
        said = (run.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": said if run.returncode > 0 else f"signal {-run.returncode}: {said}"}
    return dict(json.loads(run.stdout.splitlines()[-1]))


def print_answer(
    case_parts: Mapping[str, Callable[[str], dict[str, Any]]],
    single_parts: Mapping[str, Callable[[], dict[str, Any]]],
) -> None:
    """Measure the part that this process was asked for, of a case or alone, and print it."""
    first, *rest = sys.argv[1:]
    answer = single_parts[first]() if first in single_parts else case_parts[rest[0]](first)
    print(json.dumps(answer))


def one_line(error: Exception) -> str:
    """An exception as a row of a table shows it."""
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"[:200].replace("|", "/")
