"""A script, plain and fitted, each in a process of its own, compared step by step.

In goes a `Script`; out comes a `Verification`. Both runs start from the same seeds and are ended
after some steps; if they differ, the plain one is run once more, to see whether it is the script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from legroom.capture import Script
from legroom.engine._compare import Comparison, compare, tolerance_for
from legroom.engine._recorded_run import Outcome, RecordedRun
from legroom.engine._recording import Recording
from legroom.engine._run_report import RunReport
from legroom.engine._scripted import check_budget
from legroom.engine._verification import Difference, Verification
from legroom.engine.graph import choose_executor
from legroom.errors import (
    LegroomError,
    NotRepeatableError,
    PlainRunTooLargeError,
    ScriptError,
    ScriptInterruptedError,
    UsageError,
)
from legroom.plan import OnProgress, PlanOptions

_FEW_BYTES, _MANY_BYTES = 256 * 2**20, 16 * 2**30
_KILLED = (-9, 137)


def verify_script(  # noqa: PLR0913 - as `verify`
    script: Script,
    options: PlanOptions,
    *,
    executor: str = "eager",
    steps: int = 3,
    tolerance: float | None = None,
    leave: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    on_progress: OnProgress | None = None,
) -> Verification:
    """Run the script plain and fitted from the same seeds, and compare what it computes.

    Args:
        script: What to run; it is ended after the last step.
        options: Budget, ways, exactness, and how long to solve.
        executor: `"eager"` or `"inductor"`.
        steps: Training steps to compare.
        tolerance: The largest relative error that counts as equal; None: what goes with the
            exactness.
        leave: Classes or paths of modules that stay as they are.
        notes: What else the result should say.
        on_progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        UsageError: There is nothing to run, or an option is wrong.
        ScriptError: The script failed, or never trained.
        PlainRunTooLargeError: The plain run ran out of memory.
        NotRepeatableError: Two plain runs differ, so nothing can be said about a fitted one.
    """
    options.check()
    check_budget(options.budget or options.activations or options.stash)
    check_steps(steps)
    choose_executor(executor, options.exactness)
    script.check()
    report = on_progress or (lambda stage, done, total: None)
    margin = tolerance_for(options.exactness, tolerance)
    with tempfile.TemporaryDirectory(prefix="legroom-") as temporary:
        plan = RecordedRun(
            folder="",
            target=script.target,
            arguments=script.arguments,
            is_module=script.is_module,
            num_steps=steps,
            most_bytes=_MANY_BYTES if margin else _FEW_BYTES,
            leave=leave,
            executor=executor,
        )
        folder = Path(temporary)
        report("running the script plain", 0, 2)
        plain, _ = _run(replace(plan, folder=str(folder / "plain")), "plain")
        report("running the script fitted", 1, 2)
        fitted_run = replace(plan, folder=str(folder / "fitted"), options=asdict(options))
        fitted, outcome = _run(fitted_run, "fitted")
        report("comparing", 2, 2)
        found = compare(plain, fitted, tolerance=margin)
        if found.different:
            report("running the script plain once more", 2, 3)
            again, _ = _run(replace(plan, folder=str(folder / "again")), "plain")
            _check_repeatable(compare(plain, again, tolerance=margin), script)
    return verification(
        found,
        target=script.command,
        exactness=options.exactness,
        tolerance=margin,
        decisions=outcome.decisions,
        run=None if outcome.report is None else read_report(outcome.report),
        notes=(*notes, *_notes(found, steps, outcome)),
    )


def check_steps(steps: int) -> None:
    """Raise `UsageError` if there is nothing to compare."""
    if steps < 1:
        raise UsageError(f"{steps!r} steps leave nothing to compare; write 1 or more")


def verification(
    found: Comparison,
    *,
    target: str,
    exactness: str,
    tolerance: float,
    decisions: Iterable[tuple[str, str, str]],
    run: RunReport | None,
    notes: tuple[str, ...],
) -> Verification:
    """The result, with what the plan does to each module that differs."""
    rows = [(module, line, way) for module, line, way in decisions if way != "hold"]
    return Verification(
        target=target,
        equal=not found.different,
        exactness=exactness,
        tolerance=tolerance,
        steps=found.steps,
        compared=found.compared,
        different=tuple(_with_way(each, rows) for each in found.different),
        errors=found.errors,
        run=run,
        notes=notes,
    )


def read_report(data: dict[str, object]) -> RunReport:
    """A `RunReport` as another process has written it."""
    values = {name: value for name, value in data.items() if name != "schema"}
    models = tuple(read_report(each) for each in values.pop("models", ()))  # type: ignore[attr-defined]
    pairs = tuple(tuple(pair) for pair in values.pop("not_planned"))  # type: ignore[attr-defined]
    return RunReport(**values, not_planned=pairs, models=models)  # type: ignore[arg-type]


def _with_way(difference: Difference, rows: list[tuple[str, str, str]]) -> Difference:
    """Name the line and the ways of its module, or of the nearest module around that has any."""
    path = difference.module
    near: list[tuple[str, str, str]] = []
    while path and not near:
        near = [row for row in rows if _is_within(row[0], path)]
        path = path.rpartition(".")[0]
    near = near or rows
    if not near:
        return replace(difference, way="hold")
    ways = ", ".join(dict.fromkeys(way for _, _, way in near))
    return replace(difference, line=near[0][1] if difference.module else "", way=ways)


def _is_within(module: str, path: str) -> bool:
    """Whether a module is that of a path or inside it; models may be known under longer paths."""
    return f".{module}.".find(f".{path}.") >= 0


def _notes(found: Comparison, steps: int, outcome: Outcome) -> Iterable[str]:
    if found.steps < steps:
        yield f"the script ended after {found.steps} of {steps} steps; those were compared"
    yield from notes_on_measuring(
        outcome.num_further_steps, outcome.report, failure=outcome.further_error
    )
    if outcome.unreadable:
        names = ", ".join(outcome.unreadable[:5])
        yield f"{len(outcome.unreadable)} tensors could not be read and were not compared: {names}"


def notes_on_measuring(
    num_further: int, report: Mapping[str, object] | None, *, failure: str = ""
) -> Iterable[str]:
    """Which plan was measured, where that is not the one that was compared."""
    if failure:
        yield f"after the steps that were compared: {failure}"
    if report is None:
        return
    if report["measured_peak_bytes"] is None:
        yield "the last plan was made in a step after which none was measured: no measured peak"
    elif num_further:
        steps = "1 further step was" if num_further == 1 else f"{num_further} further steps were"
        yield f"{steps} run, and not compared, to measure the plan that was made last"


def _check_repeatable(found: Comparison, script: Script) -> None:
    if not found.different:
        return
    first = found.different[0]
    raise NotRepeatableError(
        f"{script.target} itself is not repeatable: two plain runs from the same seeds differ, "
        f"first in {first.kind} {first.name} of step {first.step}, so nothing can be said about a "
        "fitted run.\n  try: seed every generator of its own, "
        "torch.use_deterministic_algorithms(True), a single thread (OMP_NUM_THREADS=1), no workers "
        "that draw random numbers"
    )


def _run(run: RecordedRun, what: str) -> tuple[Recording, Outcome]:
    """Run it in a process of its own."""
    folder = Path(run.folder)
    folder.mkdir()
    spec = folder / "run.json"
    spec.write_text(json.dumps(asdict(run)))
    command = [sys.executable, "-m", f"{__package__}._recorded_script", str(spec)]
    with open(folder / "output.txt", "w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
            raise ScriptInterruptedError(f"interrupted during the {what} run") from None
        output.seek(0)
        said = output.read()
    outcome = Outcome.load(folder)
    failure = _failure(run, what, outcome, code, said)
    if failure is not None or outcome is None:
        raise failure or ScriptError(f"the {what} run left nothing behind")
    return Recording.load(folder), outcome


def _failure(
    run: RecordedRun, what: str, outcome: Outcome | None, code: int, said: str
) -> LegroomError | None:
    if outcome is not None and not outcome.error:
        return None
    if code in _KILLED or (outcome is not None and outcome.ran_out_of_memory):
        return _out_of_memory(run, what, said)
    if outcome is None:
        last = (said.strip().splitlines() or ["no output"])[-1]
        return ScriptError(
            f"the {what} run of {run.target} died with code {code}: {last}", traceback=said
        )
    text = f"in the {what} run: {outcome.error}"
    if outcome.exit_code == UsageError.exit_code:
        return UsageError(text)
    kind = (
        ScriptInterruptedError
        if outcome.exit_code == ScriptInterruptedError.exit_code
        else ScriptError
    )
    return kind(text, traceback=outcome.traceback)


def _out_of_memory(run: RecordedRun, what: str, said: str) -> LegroomError:
    if what == "fitted":
        return ScriptError(f"the fitted run of {run.target} ran out of memory", traceback=said)
    return PlainRunTooLargeError(
        f"the plain run of {run.target} ran out of memory, so there is nothing to compare with.\n"
        "  try: --smaller ARG=VALUE, which sets an argument of the script for both runs, for "
        "example --smaller batch-size=2, with a budget in per cent"
    )
