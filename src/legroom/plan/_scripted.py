"""The plan of a whole script: run it up to its training, capture a step without memory, end it.

In goes a `Script`; out comes a `PlanReport`. From the moment the first optimizer is made, nothing
that the script computes is real, so nothing of the size of its activations is allocated.
"""

from __future__ import annotations

import contextlib

from legroom.capture import (
    Capture,
    Script,
    ScriptOutcome,
    StepCapture,
    StepFinder,
    StopScript,
    failure_of,
    kept_out_of_the_script,
    run_script,
)
from legroom.errors import LegroomError, NoTrainingError, ScriptError, ScriptInterruptedError
from legroom.plan._callable import stage_of
from legroom.plan._options import PlanOptions
from legroom.plan._plan import PlanReport
from legroom.plan._report import OnProgress, build_report

_NUM_STEPS = 4
_NOTHING_COMPUTED = "capturing: figures that the script prints from here on are made up"


def plan_script(
    script: Script, options: PlanOptions, *, on_progress: OnProgress | None = None
) -> PlanReport:
    """Run the script until its training step is captured, then plan that step.

    Raises:
        UsageError: There is nothing to run, or an option is wrong.
        ScriptError: The script failed, or ended before a step could be captured.
        ScriptInterruptedError: Somebody pressed Ctrl-C.
        NothingCapturedError: No part of the step could be captured.
        InfeasibleBudgetError: No plan fits; names the lowest budget that one does.
    """
    options.check()
    capture = _Run(script, options, on_progress).run()
    try:
        return build_report(capture, options, target=script.command, on_progress=on_progress)
    except KeyboardInterrupt:
        raise ScriptInterruptedError(
            f"interrupted while planning {script.target}, after its step was captured"
        ) from None


class _Run:
    def __init__(
        self, script: Script, options: PlanOptions, on_progress: OnProgress | None
    ) -> None:
        self._script = script
        self._capture = StepCapture(
            exactness=options.exactness,
            rewrites=options.rewrites,
            as_written=options.plans_as_written,
            reserve=options.reserve,
            on_progress=stage_of(on_progress),
        )
        self._on_progress = on_progress
        self._finder = StepFinder(self._step_ends, on_start=self._training_starts)
        self._has_started = False
        self._num_steps = 0
        self._own_error: Exception | None = None
        self._captured: Capture | None = None

    def run(self) -> Capture:
        with self._finder.watching():
            try:
                outcome = run_script(self._script)
            finally:
                self._capture.abandon()
        if self._own_error is not None:
            raise self._own_error
        if self._captured is None and self._capture.is_enough:
            self._captured = self._capture.finish()  # it ended before the step with the reserve
        if self._captured is None:
            raise self._explain(outcome)
        return self._captured

    def _training_starts(self) -> None:
        self._has_started = True
        if self._on_progress is not None:
            self._on_progress(_NOTHING_COMPUTED, 0, 0)
        with self._guarded():
            self._finder.observer = self._capture
            self._capture.start()

    def _step_ends(self) -> None:
        with self._guarded():
            if not self._has_started:
                self._training_starts()  # no optimizer: the first backward has just ended
                return
            self._num_steps += 1
            if not self._capture.step_ends():
                return
            self._captured = self._capture.finish()
            self._finder.retire()
        if self._captured is not None:
            raise StopScript

    def _guarded(self) -> contextlib.AbstractContextManager[None]:
        return kept_out_of_the_script(self._finder, self._fail)

    def _fail(self, error: Exception) -> None:
        self._own_error = error
        self._capture.abandon()

    def _explain(self, outcome: ScriptOutcome) -> LegroomError:
        name, seen = self._script.target, self._num_steps
        if outcome.error is not None:
            moment = self._finder.steps.moment_of(outcome.error)
            moment = moment if self._has_started else "before training began"
            failure = failure_of(outcome, name=name, moment=moment, memory_hint="a smaller batch")
            if self._has_started and isinstance(outcome.error, Exception):
                failure = ScriptError(
                    f"{failure}\n  while its step was being captured, without computing it: values "
                    "that the script reads (`.item()`) are made up.\n"
                    "  try: legroom.plan(step) from Python, where you say what a step is"
                )
            if isinstance(failure, ScriptError) and isinstance(outcome.error, Exception):
                failure.traceback = outcome.traceback
            return failure
        if not self._finder.num_backwards:
            elsewhere = self._finder.children.explanation(name, "plan", without="is not planned")
            if elsewhere is not None:
                return NoTrainingError(elsewhere)
            return NoTrainingError(
                f"{name} ended without training: no backward pass was seen.\n"
                "  try: the script that trains, with arguments that make it train; "
                "`--help` of the script, after its name, shows them"
            )
        return NoTrainingError(
            f"{name} ended after {seen} training steps, but capturing takes {_NUM_STEPS}.\n"
            "  try: arguments that make the script train longer: it is ended as soon as its step "
            "is captured"
        )
