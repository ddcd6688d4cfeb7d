"""`--vary ARG=LOW:HIGH`: the same script with several values of one of its arguments.

In goes the text; out comes what to run. Each value is planned in a process of its own, because a
script may be run only once in one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from legroom.capture import Script
from legroom.cli._progress import OnProgress
from legroom.errors import LegroomError, ScriptError, ScriptInterruptedError, UsageError
from legroom.plan import PlanOptions, PlanReport, SweepPoint, find_largest, parse_budget

_FORM = re.compile(r"^\s*([^=\s]+)\s*=\s*(\d+)\s*:\s*(\d+)\s*(?::\s*(\d+)\s*)?$")


@dataclass(frozen=True)
class Variation:
    """An argument of a script and the values to try.

    Attributes:
        name: As the user wrote it: `"batch-size"`, `"-b"`.
    """

    name: str
    low: int
    high: int
    step: int = 1

    def apply(self, script: Script, value: int) -> Script:
        """The script with that value; see `set_argument`."""
        return set_argument(script, self.name, str(value))


def set_argument(script: Script, name: str, value: str) -> Script:
    """The script with that argument: in place of the one it has, or added at the end.

    `--name VALUE`, `--name=VALUE` and, as Hydra has it, `name=VALUE` are understood.
    """
    flag = name if name.startswith("-") else f"--{name}"
    arguments = list(script.arguments)
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            arguments[i + 1] = value
            break
        if argument.startswith((f"{flag}=", f"{name}=")):
            arguments[i] = f"{argument.partition('=')[0]}={value}"
            break
    else:
        arguments += [flag, value]
    return replace(script, arguments=tuple(arguments))


def parse_variation(text: str) -> Variation:
    """The variation in `"batch-size=8:256"` or `"batch-size=8:256:8"`.

    Raises:
        UsageError: It is not one, or its range is empty.
    """
    match = _FORM.match(text)
    if match is None:
        raise UsageError(
            f"--vary {text!r} is not understood; write ARG=LOW:HIGH with whole numbers, "
            "for example batch-size=8:256"
        )
    low, high, step = int(match[2]), int(match[3]), int(match[4] or 1)
    if not 1 <= low <= high or step < 1:
        raise UsageError(
            f"--vary {text!r} has nothing to try; write LOW:HIGH with 1 <= LOW <= HIGH, and a "
            "step of at least 1"
        )
    return Variation(match[1], low, high, step)


def sweep(
    script: Script, options: PlanOptions, variation: Variation, on_progress: OnProgress
) -> list[SweepPoint]:
    """Plan the script for some of the values; see `find_largest`."""
    assert options.budget is not None, "checked before: a bug of legroom"
    budget_bytes = parse_budget(options.budget).resolve(0, 0)
    num_tried = 0

    def probe(value: int) -> SweepPoint:
        nonlocal num_tried
        on_progress(f"trying {variation.name} {value}", num_tried, num_tried + 1)
        num_tried += 1
        report = _plan_apart(variation.apply(script, value), options, f"{variation.name} {value}")
        return SweepPoint(
            value=value,
            plain_peak_bytes=report.plain_peak_bytes,
            floor_peak_bytes=report.floor_peak_bytes,
            phases=report.phase_peaks,
            fits=report.floor_peak_bytes <= budget_bytes,
        )

    return find_largest(
        probe,
        low=variation.low,
        high=variation.high,
        step=variation.step,
        budget_bytes=budget_bytes,
    )


def _plan_apart(script: Script, options: PlanOptions, situation: str) -> PlanReport:
    """The floor of the script's step, found in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="legroom-") as folder:
        path = str(Path(folder) / "plan.json")
        command = [sys.executable, "-m", "legroom", "plan", "--json", path, "--points", "0"]
        command += [*_as_flags(options), *(["-m"] if script.is_module else [])]
        ended = subprocess.run(
            [*command, script.target, *script.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "120"},
        )
        if ended.returncode != 0:
            raise _failure(ended, situation)
        return PlanReport.load(path)


def _as_flags(options: PlanOptions) -> Iterator[str]:
    """The options of the command that plans without a budget: only the floor is of interest."""
    yield from ("--exactness", options.exactness, "--effort", options.effort)
    yield from ("--time-limit", str(options.time_limit_s))
    if options.preset is not None:
        yield from ("--preset", options.preset)
    if options.device is not None:
        yield from ("--device", options.device)
    for name in options.ways or ():
        yield from ("--with", name)


def _failure(ended: subprocess.CompletedProcess[str], situation: str) -> LegroomError:
    """What the other process said, with the situation added."""
    before, found, message = ended.stderr.rpartition("legroom: ")
    if not found:
        before, message = ended.stderr, f"the process ended with code {ended.returncode}"
    text = f"while trying {situation}: {message.strip()}"
    if ended.returncode == ScriptInterruptedError.exit_code:
        return ScriptInterruptedError(text)
    return UsageError(text) if ended.returncode == 2 else ScriptError(text, traceback=before)
