"""A script in a process of its own: plain or fitted, recorded for some steps, then ended.

In goes the path of a `RecordedRun` as JSON; out come a recording and an `Outcome` in its folder.
`legroom verify` starts this as `python -m legroom.engine._recorded_script FILE`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from legroom.capture import (
    Script,
    ScriptOutcome,
    StepFinder,
    StopScript,
    failure_of,
    is_out_of_memory,
    kept_out_of_the_script,
    run_script,
)
from legroom.engine._adoption import Adopted
from legroom.engine._recorded_run import MOST_FURTHER_STEPS, Outcome, RecordedRun
from legroom.engine._recording import Recorder
from legroom.engine._scripted import FittedScript, ScriptRun
from legroom.engine.graph import choose_executor
from legroom.errors import LegroomError, NoTrainingError, ScriptError
from legroom.plan import PlanOptions


def main() -> None:
    """Run what the file says."""
    data = json.loads(Path(sys.argv[1]).read_text())
    run = RecordedRun(**data)
    folder = Path(run.folder)
    recorder = Recorder(folder, most_bytes=run.most_bytes, most_steps=run.num_steps)
    script = Script(run.target, tuple(run.arguments), is_module=run.is_module)
    seed_everything(run.seed)
    record = _record_plain if run.options is None else _record_fitted
    outcome = record(run, script, recorder)
    recorder.save()
    outcome.save(folder)
    sys.exit(outcome.exit_code)


def seed_everything(seed: int) -> None:
    """Seed every generator that a training program shares."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _record_plain(run: RecordedRun, script: Script, recorder: Recorder) -> Outcome:
    own_error: list[Exception] = []

    def step_ends() -> None:
        with kept_out_of_the_script(finder, own_error.append):
            recorder.step_ends()
        if recorder.num_steps >= run.num_steps:
            raise StopScript

    finder = StepFinder(step_ends)
    finder.observer = recorder
    with finder.watching():
        ended = run_script(script)
    if own_error:
        raise own_error[0]
    return _outcome(run, recorder, _failure(run, recorder, finder, ended), ended)


def _record_fitted(run: RecordedRun, script: Script, recorder: Recorder) -> Outcome:
    options = PlanOptions(**{**(run.options or {}), "ways": _as_tuple((run.options or {})["ways"])})

    num_further = 0

    def step_ends() -> None:
        nonlocal num_further
        num_further += recorder.is_full
        recorder.step_ends()
        is_enough = all_measured(fitted.adoption.adopted) or num_further >= MOST_FURTHER_STEPS
        if recorder.is_full and is_enough:
            raise StopScript

    fitted = FittedScript(
        script,
        options,
        choose_executor(run.executor, options.exactness),
        leave=tuple(run.leave),
        listener=recorder,
        on_step=step_ends,
    )
    result = fitted.run()
    decisions = tuple(row for each in fitted.adoption.adopted for row in _decisions(each))
    failed_later = result.error if recorder.is_full else None
    error = None if failed_later is not None else result.error
    return replace(
        _outcome(run, recorder, error, result, decisions),
        num_further_steps=num_further,
        further_error="" if failed_later is None else str(failed_later),
    )


def all_measured(adopted: Iterable[Adopted]) -> bool:
    """Whether of every plan that is carried out a step was measured."""
    reports = [each.report for each in adopted]
    return all(each is None or each.measured_peak_bytes is not None for each in reports)


def _outcome(
    run: RecordedRun,
    recorder: Recorder,
    failure: LegroomError | None,
    ended: ScriptOutcome | ScriptRun,
    decisions: tuple[tuple[str, str, str], ...] = (),
) -> Outcome:
    report = ended.report if isinstance(ended, ScriptRun) else None
    cause = ended.error
    return Outcome(
        error="" if failure is None else str(failure),
        exit_code=0 if failure is None else failure.exit_code,
        ran_out_of_memory=cause is not None and _is_about_memory(cause),
        traceback=failure.traceback if isinstance(failure, ScriptError) else "",
        num_steps=recorder.num_steps,
        report=None if report is None else report.to_dict(),
        decisions=decisions,
        unreadable=tuple(recorder.unreadable),
    )


def _is_about_memory(error: BaseException) -> bool:
    return is_out_of_memory(error) or "ran out of memory" in str(error)


def _failure(
    run: RecordedRun, recorder: Recorder, finder: StepFinder, ended: ScriptOutcome
) -> LegroomError | None:
    """Why a plain run cannot be compared with; None if it can."""
    if recorder.num_steps >= run.num_steps or (recorder.num_steps and ended.error is None):
        return None
    if ended.error is None:
        elsewhere = finder.children.explanation(run.target, "verify", without="is not compared")
        if elsewhere is not None and not finder.num_backwards:
            return NoTrainingError(elsewhere)
        return NoTrainingError(
            f"{run.target} ended without training: no step was seen.\n"
            "  try: the script that trains, with arguments that make it train; "
            "`--help` of the script, after its name, shows them"
        )
    moment = finder.steps.moment_of(ended.error)
    failure = failure_of(ended, name=run.target, moment=moment, memory_hint="--smaller")
    if isinstance(failure, ScriptError) and isinstance(ended.error, Exception):
        failure.traceback = ended.traceback
    return failure


def _decisions(adopted: Adopted) -> list[tuple[str, str, str]]:
    plan = adopted.plan
    return [] if plan is None else [(d.module, d.line, d.form) for d in plan.decisions]


def _as_tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


if __name__ == "__main__":
    main()
