"""The profile of a whole script: run it, find its steps, record some, stop.

In goes a `Script`; out comes a `ScriptProfile` with whatever was measured and how the script
ended. A failure of the script is a result here, not an exception: what was measured is not lost.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from legroom.capture import (
    Script,
    ScriptOutcome,
    StepFinder,
    StopScript,
    failure_of,
    kept_out_of_the_script,
    run_script,
)
from legroom.errors import LegroomError, NoTrainingError
from legroom.meter._profile import Profile
from legroom.meter._session import ProfilingSession, SessionOptions


@dataclass(frozen=True)
class ScriptProfile:
    """What came of profiling a script.

    Attributes:
        profile: What was measured; None if nothing was.
        error: What went wrong, in words for the user; None if nothing did.
        traceback: The script's own traceback, where it is the script that failed.
    """

    profile: Profile | None
    error: LegroomError | None
    traceback: str = ""


def profile_script(
    script: Script,
    options: SessionOptions,
    *,
    runs_to_end: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> ScriptProfile:
    """Run the script and profile its training steps.

    Args:
        script: What to run.
        options: How many steps to leave alone and to record.
        runs_to_end: Let the script finish after the last recorded step instead of ending it.
        on_progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        UsageError: There is nothing to run.
    """
    return _Run(script, options, runs_to_end, on_progress).run()


class _Run:
    def __init__(
        self,
        script: Script,
        options: SessionOptions,
        runs_to_end: bool,
        on_progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self._script = script
        self._options = options
        self._runs_to_end = runs_to_end
        self._finder = StepFinder(self._step_ends, on_start=self._training_starts)
        self._session = ProfilingSession(
            options,
            lambda observer: setattr(self._finder, "observer", observer),
            on_progress=on_progress,
        )
        self._has_started = False
        self._own_error: Exception | None = None
        self._profile: Profile | None = None

    def run(self) -> ScriptProfile:
        with self._finder.watching():
            outcome = run_script(self._script)
            self._session.halt(within_step=outcome.error is not None)
        text = outcome.traceback
        if outcome.error is not None and outcome.error.__traceback__ is not None:
            # Its frames hold the tensors of the step that failed; we need room to work.
            traceback.clear_frames(outcome.error.__traceback__)
        if self._own_error is not None:
            raise self._own_error
        if self._profile is None and (outcome.error is not None or self._session.num_recorded):
            self._profile = self._session.finish(
                self._script.command,
                is_complete=outcome.error is None,
                notes=self._notes(outcome),
            )
        error = self._explain(outcome)
        return ScriptProfile(self._profile, error, "" if _is_interrupt(outcome) else text)

    def _training_starts(self) -> None:
        self._has_started = True
        with self._guarded():
            self._session.training_starts()

    def _step_ends(self) -> None:
        with self._guarded():
            self._move_on()

    def _guarded(self) -> contextlib.AbstractContextManager[None]:
        return kept_out_of_the_script(self._finder, self._fail)

    def _fail(self, error: Exception) -> None:
        self._own_error = error
        self._session.halt()

    def _move_on(self) -> None:
        if not self._has_started:
            self._training_starts()  # no optimizer: the first backward has just ended
        if self._session.is_finished:
            return
        self._session.step_ends()
        if not self._session.is_finished:
            return
        self._profile = self._session.finish(self._script.command, notes=self._notes(None))
        self._finder.retire()
        if not self._runs_to_end:
            raise StopScript

    def _notes(self, outcome: ScriptOutcome | None) -> tuple[str, ...]:
        notes = []
        if self._finder.num_optimizer_steps == 0 and self._finder.num_backwards:
            notes.append(
                "no torch optimizer stepped: a step was taken to end with its backward pass, and "
                "how the weights are updated is not in the books"
            )
        if outcome is not None and outcome.error is not None:
            notes.append(
                f"the step did not end ({type(outcome.error).__name__}): the books stop there"
            )
        return tuple(notes)

    def _explain(self, outcome: ScriptOutcome) -> LegroomError | None:
        name = self._script.target
        if outcome.error is not None:
            return self._explain_failure(outcome)
        if self._finder.num_optimizer_steps == 0 and self._finder.num_backwards:
            return NoTrainingError(
                f"{name} ran {self._finder.num_backwards} backward passes, but no "
                "torch.optim.Optimizer ever stepped, so the end of a step is a guess.\n"
                "  try: use an optimizer that derives from torch.optim.Optimizer, or call "
                "legroom.profile(step) from Python, where you say what a step is"
            )
        if self._profile is not None and self._profile.is_complete:
            return None
        return self._explain_nothing_measured()

    def _explain_nothing_measured(self) -> LegroomError:
        name, seen = self._script.target, self._session.num_steps_seen
        if self._finder.num_backwards == 0 and self._finder.num_optimizer_steps == 0:
            elsewhere = self._finder.children.explanation(name, "profile", without="is not seen")
            if elsewhere is not None:
                return NoTrainingError(elsewhere)
            return NoTrainingError(
                f"{name} ended without training: no backward pass and no optimizer step was seen.\n"
                "  try: the script that trains, with arguments that make it train; "
                "`--help` of the script, after its name, shows them"
            )
        if self._finder.num_backwards == 0:
            return NoTrainingError(
                f"{name} stepped an optimizer {self._finder.num_optimizer_steps} times but ran no "
                "backward pass that legroom could see.\n"
                "  try: train in this process and not in a child process"
            )
        if self._session.is_blocked:
            return NoTrainingError(
                f"{name} runs a torch profiler of its own in every one of its {seen} steps, and "
                "PyTorch allows one at a time.\n  try: switch the script's own profiler off"
            )
        wanted = self._options.num_warmup + self._options.num_steps
        return NoTrainingError(
            f"{name} ended after {seen} training steps, but {self._options.num_warmup} steps of "
            f"warm-up and {self._options.num_steps} to record make {wanted}.\n"
            f"  try: more steps in the script, or `legroom profile --warmup "
            f"{max(0, seen - self._options.num_steps)}`"
        )

    def _explain_failure(self, outcome: ScriptOutcome) -> LegroomError:
        moment = self._finder.steps.moment_of(outcome.error)
        if not self._has_started:
            moment = "before training began"
        hint = (
            "the report shows what was alive; the largest lines are where to save"
            if self._profile is not None
            else "`legroom profile --warmup 0` records from the first step on and shows what was "
            "alive when it happened; or use a smaller batch"
        )
        return failure_of(outcome, name=self._script.target, moment=moment, memory_hint=hint)


def _is_interrupt(outcome: ScriptOutcome) -> bool:
    return isinstance(outcome.error, KeyboardInterrupt | SystemExit)
