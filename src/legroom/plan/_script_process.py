"""The process that a script runs in while its step is captured: the script, and copies of it.

In comes a script through a pipe; out go messages: the captured step, or what was measured of a real
one, or how the script ended before it trained. See Note [Script process].
"""

# Note [Script process]
# 1. The script runs for real until its border (see `capture/_border.py`). There the process waits
#    while copies of it go on, see Note [Fork]: in each, one or two steps run on tensors without
#    memory, and nothing is written, sent or moved.
# 2. The first copy records the plain step, the second learns about TorchDynamo's graphs and records
#    the step in pieces. Each goes on to the third step, which is the one that `legroom profile`
#    records: optimizer state, and what the loop keeps between steps, is there by then. A program
#    that ends before, or fails between two steps, has an earlier step captured; what is missing
#    then, further copies record.
# 3. Where the step cannot be captured, three real ones are measured, in this process and without
#    effects as well.
#    Nor is a step captured in which an optimizer evaluates its closure as often as values tell it
#    (L-BFGS): on tensors without values it would be another step.
# 4. From the border on the process ends by `os._exit`: nothing of the script's that stands after it
#    runs. A script that ends before its border ends as it would without legroom.

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import torch

from legroom.capture import (
    Border,
    Capture,
    CapturedForm,
    CaptureStep,
    FormedStep,
    NotCaptured,
    PlainStep,
    Script,
    ScriptOutcome,
    Sender,
    StepCapture,
    StepFinder,
    can_fork,
    capture_of,
    end_with_parent,
    failure_of,
    leave_no_effects,
    read_message,
    run_script,
    samples_remembered,
    split,
)
from legroom.errors import CaptureFailedError, LegroomError, NothingCapturedError
from legroom.meter import PeakGauge
from legroom.plan._measured import MeasuredStep
from legroom.plan._options import PlanOptions

_MOST_S = 600.0
"""How long the first step of a copy may take."""
_PATIENCE_S, _PATIENCE = 10.0, 3.0
"""How long what comes after a recorded step may take: so long, or so many times as long as it."""
_MEASURED_STEPS = 3

_PLAIN = (CaptureStep.PLAIN, CaptureStep.PLAIN_AGAIN, CaptureStep.PLAIN_AGAIN)
MEASURING = "measuring a real step, which could not be captured"
_LED_BY_VALUES = "the optimizer evaluates the loss as often as values tell it"
_WARM, _LEARN, _PIECES = CaptureStep.WARM, CaptureStep.LEARN, CaptureStep.PIECES


@final
@dataclass(frozen=True)
class ScriptEnd:
    """How a script ended before a step could be captured.

    Attributes:
        failure: What went wrong, in words for the user; None if nothing did.
        traceback: The script's own.
        elsewhere: What to say of processes that it started, where it trains in those.
    """

    failure: LegroomError | None
    traceback: str
    num_backwards: int
    num_steps: int
    elsewhere: str | None


def main(requests: int, answers: int) -> None:
    """Run the script that is asked for; where it ends by itself, return."""
    end_with_parent()
    script, options = read_message(requests).value
    _ScriptProcess(script, options, Sender(answers)).run()


class _ScriptProcess:
    def __init__(self, script: Script, options: PlanOptions, answer: Sender) -> None:
        self._script, self._options, self._answer = script, options, answer
        self._finder = StepFinder(self._step_ends)
        self._border = Border(self._finder, self._at_border)
        self._copy: _Copy | None = None
        self._real: _RealSteps | None = None

    def run(self) -> None:
        with self._finder.watching(), self._border.watching(), samples_remembered():
            outcome = run_script(self._script)
            if self._copy is not None:
                self._copy.script_ends(outcome)
            if self._real is not None and (outcome.error is None or self._real.has_measured):
                self._real.script_ends()
        self._answer.send("ended", self._end_of(outcome))
        if self._real is not None:
            self._real.leave()
        if isinstance(outcome.error, SystemExit):
            sys.exit(outcome.error.code)

    def _end_of(self, outcome: ScriptOutcome) -> ScriptEnd:
        failure = None
        if outcome.error is not None:
            name, hint = self._script.target, "a smaller batch"
            moment = "in its first step" if self._real else "before training began"
            failure = failure_of(outcome, name=name, moment=moment, memory_hint=hint)
        has_traceback = isinstance(outcome.error, Exception)
        return ScriptEnd(
            failure=failure,
            traceback=outcome.traceback if has_traceback else "",
            num_backwards=self._finder.num_backwards,
            num_steps=self._finder.steps.num_steps,
            elsewhere=self._finder.children.explanation(
                self._script.target, "plan", without="is not planned"
            ),
        )

    def _step_ends(self) -> None:
        if self._copy is not None:
            self._copy.step_ends()
        elif self._real is not None:
            self._real.step_ends()
        else:  # see Note [Border], rule 3
            self._border.passes()

    def _at_border(self) -> None:
        """The program is where it meets data: capture from here on, and end.

        Returns in copies alone, which go on with the program, and where a real step is to be
        measured.
        """
        try:
            self._answer.send("border", None)
            why = "this process cannot be copied (CUDA is in use, or the system has no fork)"
            if can_fork():
                why = self._capture()
                if self._copy is not None:
                    return
            self._measure(why)
        except BaseException as error:
            self._answer.fail(error)
            self._answer.end()

    # Capturing -----------------------------------------------------------------------------------

    def _capture(self) -> str:
        """Capture the step, answer and end; returns why it could not be, or `""` in a copy."""
        began = time.perf_counter()
        try:
            plain = self._plain_steps()
        except (LegroomError, OSError) as error:
            return str(error)
        if plain is None or isinstance(plain, str):
            return plain or ""
        try:
            found = self._forms(plain)
            if found is None:
                return ""
            forms, number = found
            step = plain[number - 1]
            capture = capture_of(step.graph, forms, seconds=time.perf_counter() - began)
        except LegroomError as error:
            capture = _without_pieces(plain[-1], error, time.perf_counter() - began)
        self._answer.send("captured", (capture, torch.get_num_threads()))
        return self._answer.end()

    def _plain_steps(self) -> list[PlainStep] | str | None:
        """The plain step, up to three times; why there is none. None in the copy."""
        steps: list[PlainStep] = []
        why = "the script ended in its first step"
        for message in self._copied(steps=_PLAIN):
            if message is None:
                return None
            if message.what == "plain":
                if message.value.is_led_by_values:
                    return _LED_BY_VALUES
                steps.append(message.value)
            elif message.what == "script" and message.value:
                why = message.value
        return steps or why

    def _forms(self, plain: list[PlainStep]) -> tuple[dict[CapturedForm, FormedStep], int] | None:
        """The step in pieces, in all forms, and which step it is; None in a copy.

        Raises:
            LegroomError: It could not be captured in pieces.
        """
        calls = plain[0].calls
        forms: dict[CapturedForm, FormedStep] = {}
        learned: dict[str, Any] = {}
        missing: tuple[Any, ...] = ()
        why = "the step could not be run in pieces"
        number = len(plain)
        # Of a program of a single step, one copy learns and another one records.
        orders = [(*(_WARM,) * (number - 2), _LEARN, _PIECES)[: max(1, number)], (_PIECES,)]
        for order in orders:
            if forms:
                break
            number = len(order)
            for message in self._copied(steps=order, calls=calls, learned=learned):
                if message is None:
                    return None
                if message.what == "learned":
                    learned.update(message.value)
                elif message.what == "forms":
                    new, missing = message.value
                    forms.update(new)
                elif message.what == "script" and message.value:
                    why = message.value
        if not forms:
            raise CaptureFailedError(why)
        for form, rewrites in missing:
            order = (*(_WARM,) * (number - 1), _PIECES)
            for message in self._copied(
                steps=order, calls=calls, learned=learned, rewrites=rewrites, further=False
            ):
                if message is None:
                    return None
                if message.what == "forms":
                    forms[form] = message.value[0][CapturedForm.FIRST]
        return forms, number

    def _copied(
        self, *, rewrites: Any = None, further: bool = True, **capture: Any
    ) -> Iterator[Any]:
        """What a copy of this process sends that goes on capturing; None in the copy itself."""
        options = self._options
        end = split()
        if isinstance(end, Sender):
            self._copy = _Copy(
                end,
                self._finder,
                StepCapture(
                    exactness=options.exactness,
                    rewrites=options.rewrites if rewrites is None else rewrites,
                    as_written=further and options.plans_as_written,
                    reserve=options.reserve if further else (),
                    on_progress=lambda text: end.send("progress", text),
                    **capture,
                ),
            )
            self._copy.start()
            yield None
            return
        began_s, recorded_s = time.monotonic(), 0.0

        def patience_s() -> float:
            return max(_PATIENCE_S, _PATIENCE * recorded_s) if recorded_s else _MOST_S

        for message in end.messages(patience_s=patience_s):
            if message.what == "progress":
                self._answer.send("progress", message.value)
                continue
            recorded_s = time.monotonic() - began_s
            yield message

    # Measuring -----------------------------------------------------------------------------------

    def _measure(self, why: str) -> None:
        self._answer.send("progress", MEASURING)
        self._real = _RealSteps(self._answer, self._finder, why)
        self._real.start()


class _Copy:
    """A copy of the script's process, which goes on with the script while it is captured."""

    def __init__(self, original: Sender, finder: StepFinder, capture: StepCapture) -> None:
        self._original, self._finder, self._capture = original, finder, capture
        self._num_forms, self._num_backwards = 0, finder.num_backwards

    def start(self) -> None:
        with self._ending_on_failure(), self._finder.paused():
            self._finder.observer = self._capture
            self._capture.start()

    def step_ends(self) -> None:
        with self._ending_on_failure():
            before, num_learned = self._capture.plain, len(self._capture.learned)
            is_enough = self._capture.step_ends()
            self._num_backwards = self._finder.num_backwards
            self._tell(before, num_learned)
            if is_enough:
                self._original.end()

    def script_ends(self, outcome: ScriptOutcome) -> NoReturn:
        """The script has ended in the copy: what it did of a step is the step."""
        with self._ending_on_failure():
            if outcome.error is None and self._finder.num_backwards > self._num_backwards:
                before, num_learned = self._capture.plain, len(self._capture.learned)
                self._capture.step_ends()
                self._tell(before, num_learned)
            self._original.send("script", _words_of(outcome))
        self._original.end()

    def _tell(self, before: PlainStep | None, num_learned: int) -> None:
        capture = self._capture
        if capture.plain is not None and capture.plain is not before:
            self._original.send("plain", capture.plain)
        if len(capture.learned) != num_learned:
            self._original.send("learned", dict(capture.learned))
        if len(capture.forms) != self._num_forms:
            self._num_forms = len(capture.forms)
            self._original.send("forms", (dict(capture.forms), capture.missing_forms))

    def _ending_on_failure(self) -> _EndingOnFailure:
        return _EndingOnFailure(self._original)


class _EndingOnFailure:
    """Ends a copy where legroom fails in it: nothing of the script's may go on then."""

    def __init__(self, original: Sender) -> None:
        self._original = original

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._original.fail(error)
            self._original.end()


class _RealSteps:
    """Measures real steps in a process that has no effects; see Note [Script process], rule 3."""

    def __init__(self, answer: Sender, finder: StepFinder, why: str) -> None:
        self._answer, self._finder, self._why = answer, finder, why
        self._gauge: PeakGauge | None = None
        self._num_steps = 0
        self._best: MeasuredStep | None = None
        self._began_s = 0.0

    @property
    def has_measured(self) -> bool:
        """Whether a step has ended."""
        return self._best is not None

    def start(self) -> None:
        scratch = tempfile.mkdtemp(prefix="legroom-")
        self._scratch = scratch
        leave_no_effects(scratch, keep=(self._answer.file,))
        self._begin()

    def _begin(self) -> None:
        params = self._finder.owned_tensors()
        self._device = params[0].device if params else torch.device("cpu")
        self._gauge = PeakGauge(self._device)
        self._gauge.start()
        self._began_s = time.perf_counter()

    def step_ends(self) -> None:
        self._num_steps += 1
        step_ms = 1000 * (time.perf_counter() - self._began_s)
        reading = self._gauge.stop() if self._gauge is not None else None
        if reading is not None:
            self._best = MeasuredStep(
                reading.peak_bytes, reading.opening_bytes, step_ms, self._why, str(self._device)
            )
        if self._num_steps >= _MEASURED_STEPS:
            self._end()
        self._begin()

    def script_ends(self) -> NoReturn:
        """It has ended: what was measured is all there is."""
        if self._best is None:
            self.step_ends()
        self._end()

    def _end(self) -> NoReturn:
        if self._best is None:
            self._answer.fail(CaptureFailedError(self._why))
        else:
            self._answer.send("measured", self._best)
        self.leave()

    def leave(self) -> NoReturn:
        """End the process; see Note [Script process], rule 4."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._answer.end()


def _words_of(outcome: ScriptOutcome) -> str:
    """How a script failed in a copy, in one line; empty where it did not."""
    if outcome.error is None:
        return ""
    lines = str(outcome.error).strip().splitlines()
    where = f" at {outcome.where}" if outcome.where else ""
    return f"on tensors without memory it raised {type(outcome.error).__name__}{where}" + (
        f": {lines[0]}" if lines else ""
    )


def _without_pieces(plain: PlainStep, error: LegroomError, seconds: float) -> Capture:
    """The plain step alone, and why no part of it can be planned."""
    reasons = error.reasons if isinstance(error, NothingCapturedError) else (str(error),)
    notes = tuple(NotCaptured("the step", reason.splitlines()[0]) for reason in reasons)
    if not notes:
        notes = (NotCaptured("the step", "it calls no module with gradients enabled"),)
    graph = replace(plain.graph, not_captured=(*plain.graph.not_captured, *notes))
    return Capture(plain.graph, graph, seconds)
