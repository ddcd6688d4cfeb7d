"""The plan of a whole script: run it up to its training, capture a step without memory, end it.

In goes a `Script`; out comes a `PlanReport`. The script runs in a process of its own, see Note
[Script process]; what it hands over is planned here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import legroom
from legroom.capture import Capture, Receiver, Script, Sender
from legroom.errors import (
    CopyFailedError,
    LegroomError,
    NoTrainingError,
    ScriptError,
    ScriptInterruptedError,
)
from legroom.plan._measured import MeasuredStep
from legroom.plan._options import PlanOptions
from legroom.plan._plan import PlanReport
from legroom.plan._report import OnProgress, build_report, report_of_measured
from legroom.plan._script_process import MEASURING, ScriptEnd

_BORDER = (
    "the script has come to its first trained call: from here on nothing is computed, written or "
    "sent"
)


def plan_script(
    script: Script, options: PlanOptions, *, on_progress: OnProgress | None = None
) -> PlanReport:
    """Run the script until it trains, capture its training step, and plan that.

    Raises:
        UsageError: There is nothing to run, or an option is wrong.
        ScriptError: The script failed, or ended before it trained.
        ScriptInterruptedError: Somebody pressed Ctrl-C.
        InfeasibleBudgetError: No plan fits; names the lowest budget that one does.
    """
    options.check()
    script.check()
    moment = "before its step was captured"
    try:
        progress = on_progress or (lambda stage, done, total: None)
        try:
            found = _captured(script, options, progress)
        except CopyFailedError:  # see `_captured`
            progress("measuring crashed: once more", 0, 0)
            found = _captured(script, options, progress, is_last=True)
        if isinstance(found, MeasuredStep):
            return report_of_measured(found, options, target=script.command)
        moment = "after its step was captured"
        return build_report(found, options, target=script.command, on_progress=on_progress)
    except KeyboardInterrupt:
        raise ScriptInterruptedError(
            f"interrupted while planning {script.target}, {moment}"
        ) from None


def _captured(
    script: Script, options: PlanOptions, on_progress: OnProgress, *, is_last: bool = False
) -> Capture | MeasuredStep:
    """What the script's process hands over.

    Raises:
        CopyFailedError: It was ended by a signal while it measured a step, and this is not the last
            try. That was seen twice in some hundred runs, and could not be repeated.
    """
    process, answers = _start(script, options)
    is_measuring = False
    try:
        for message in answers.messages():
            if message.what == "progress":
                is_measuring |= message.value == MEASURING
                on_progress(message.value, 0, 0)
            elif message.what == "border":
                on_progress(_BORDER, 0, 0)
            elif message.what == "captured":
                capture, num_threads = message.value
                torch.set_num_threads(num_threads)  # operations are timed as the script runs them
                return capture  # type: ignore[no-any-return]
            elif message.what == "measured":
                return message.value  # type: ignore[no-any-return]
            else:
                answers.wait()
                raise _explain(script, message.value)
    except CopyFailedError as error:
        if is_measuring and error.was_killed and not is_last:
            raise
        raise ScriptError(f"the process of {script.target} failed: {error.why}") from None
    finally:
        answers.close()
        process.wait()  # it has ended: Python is told
    raise ScriptError(f"{script.target} ended its process before it trained, by os._exit()")


def _start(script: Script, options: PlanOptions) -> tuple[subprocess.Popen[bytes], Receiver]:
    """Start the process that the script runs in, before anything of PyTorch is loaded there."""
    requests, request = os.pipe()
    answers, answer = os.pipe()
    root = str(Path(legroom.__file__).parent.parent)
    program = (
        f"import sys; sys.path[:] = [each for each in sys.path if each] + [{root!r}]; "
        f"from legroom.plan._script_process import main; main({requests}, {answer})"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    process = subprocess.Popen([sys.executable, *flags, "-c", program], pass_fds=(requests, answer))
    os.close(requests)
    os.close(answer)
    Sender(request).send("script", (script, options))
    os.close(request)
    return process, Receiver(process.pid, answers, idle_s=None)


def _explain(script: Script, end: ScriptEnd) -> LegroomError:
    """Why a script that has ended cannot be planned."""
    name = script.target
    if end.failure is not None:
        if isinstance(end.failure, ScriptError):
            end.failure.traceback = end.traceback
        return end.failure
    if not end.num_backwards and end.elsewhere is not None:
        return NoTrainingError(end.elsewhere)
    if not end.num_backwards:
        return NoTrainingError(
            f"{name} ended without training: no backward pass was seen.\n"
            "  try: the script that trains, with arguments that make it train; "
            "`--help` of the script, after its name, shows them"
        )
    return NoTrainingError(
        f"{name} ended after {end.num_steps} training steps, before it was known what it trains: "
        "none of PyTorch's optimizers was made.\n"
        "  try: arguments that make the script train for two steps at least"
    )
