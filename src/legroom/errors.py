"""Every exception the library raises on purpose.

LegroomError                    exit code 1: something failed
├── UsageError                  exit code 2: the call itself is wrong
│   ├── UnknownNameError        a way, variant, preset or solver that is not registered
│   ├── NotRepeatableError      plain training differs from itself, so nothing can be verified
│   ├── OutputError             an output file cannot be written
│   ├── PlanFormatError         a saved plan cannot be read
│   ├── ProfileFormatError      a saved profile cannot be read
│   └── RunFormatError          a saved run or verification cannot be read
├── ScriptError                 the user's script failed or cannot be measured
│   ├── NoTrainingError         it ended without a training step that could be measured
│   ├── PlainRunTooLargeError   the plain step does not fit, so there is nothing to compare with
│   └── ScriptInterruptedError  exit code 130: Ctrl-C
├── InfeasibleError             no plan keeps to the bounds; says how near one comes
│   ├── InfeasibleBudgetError   to that on the peak; carries the lowest budget that one fits
│   └── InfeasibleStashError    to that on what forward leaves for backward
├── BudgetExceededError         a real step needs more than the budget, after planning again
├── GradientErrorBoundError     no plan fits whose gradients are as near as was asked for
├── CaptureFailedError          the step failed while it was captured on tensors without memory
│   ├── CopyFailedError         so did the copy of the process that it was captured in
│   └── CaptureTimeError        it takes longer than planning may take
├── DoubleBackwardError         gradients of gradients through a planned call
├── UnplannedGradientError      gradients of an output that was planned to receive none
├── UnplannableError            a call cannot be planned, and the user wants an error then
├── NothingCapturedError        no module call of the step could be captured
├── SavedTensorModifiedError    a saved tensor was changed in place; also a RuntimeError
├── TierError                   bytes could not be put on a tier, or do not come back
│   └── TierSpaceError          the tier is full; carries what is wanted and what is free
└── TorchInterfaceError         a private PyTorch interface that legroom relies on has gone
"""

from __future__ import annotations

from typing import ClassVar

_NOTHING_TO_GAIN = 0.97
"""Of the plain step's peak: plans that reach no lower gain nothing."""


class LegroomError(Exception):
    """The base of everything that legroom raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(LegroomError):
    """The call itself is wrong: a bad value, a file that is not there."""

    exit_code: ClassVar[int] = 2


class UnknownNameError(UsageError):
    """A way, variant, preset or solver of that name is not registered."""


class NotRepeatableError(UsageError):
    """Plain training, run twice from the same state, differs: a fitted run cannot be judged."""


class OutputError(UsageError):
    """An output file cannot be written."""


class PlanFormatError(UsageError):
    """A saved plan is not what it should be: unreadable, truncated, or of another schema."""


class ProfileFormatError(UsageError):
    """A saved file is not what it should be: unreadable, truncated, or of another schema."""


class RunFormatError(UsageError):
    """A saved run or verification is not what it should be: truncated, or a field is wrong."""


class ScriptError(LegroomError):
    """The user's script failed or could not be measured.

    Attributes:
        traceback: The script's own traceback, where it is the script that failed.
    """

    def __init__(self, message: str, *, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)


class NoTrainingError(ScriptError):
    """The script ended without a training step that could be measured."""


class PlainRunTooLargeError(ScriptError):
    """The plain run of a script ran out of memory, so there is nothing to compare with."""


class ScriptInterruptedError(ScriptError):
    """The user pressed Ctrl-C."""

    exit_code: ClassVar[int] = 130


class InfeasibleError(LegroomError):
    """No combination of the enabled ways keeps to the bounds.

    Attributes:
        nearest_bytes: The lowest bound, of the one that is not kept, that a plan keeps.
    """

    nearest_bytes: int


class InfeasibleBudgetError(InfeasibleError):
    """No combination of the enabled ways fits the budget.

    Attributes:
        budget_bytes: What was asked for.
        floor_bytes: The lowest peak that a plan with the enabled ways reaches.
        enough_bytes: A budget that works: the floor, and some room if a step is to run in it.
        plain_bytes: The plain step's peak; 0 where it is not known.
        largest: What is alive at the lowest peak, the largest first: `"3.00 MiB lm_head.addmm"`.
        state_bytes: What of that is weights, gradients and optimizer state.
        is_in_update: Whether that peak is in the optimizer's step, which no plan changes.
        remedies: What else would lower it, as it is written: `--disk FOLDER`, another exactness.
    """

    def __init__(  # noqa: PLR0913 - what is known of a refusal
        self,
        *,
        budget_bytes: int,
        floor_bytes: int,
        plain_bytes: int = 0,
        largest: tuple[str, ...] = (),
        state_bytes: int = 0,
        is_in_update: bool = False,
        remedies: tuple[str, ...] = (),
        room_bytes: int = 0,
    ) -> None:
        self.budget_bytes, self.floor_bytes = budget_bytes, floor_bytes
        self.nearest_bytes = floor_bytes
        self.enough_bytes = floor_bytes + room_bytes
        self.plain_bytes, self.state_bytes = plain_bytes, state_bytes
        self.largest, self.remedies, self.is_in_update = largest, remedies, is_in_update
        alive = f"  largest live tensors at that peak: {', '.join(largest)}\n" if largest else ""
        # What lowers activations does not lower the update's peak.
        others = () if is_in_update else ("a smaller batch", *remedies)
        tries = (f"a budget of at least {_enough(self.enough_bytes)}", *others)
        super().__init__(
            f"no plan fits {_readable(budget_bytes)}: {self.lowest_in_words}.\n"
            f"{alive}  try: {', or '.join(tries)}"
        )

    @property
    def has_nothing_to_gain(self) -> bool:
        """Whether the lowest peak is next to the plain step's."""
        return self.floor_bytes >= _NOTHING_TO_GAIN * self.plain_bytes > 0

    @property
    def lowest_in_words(self) -> str:
        """The lowest peak beside the plain step's, and what sets it: `"the lowest is …"`."""
        lowest = f"the lowest is {_readable(self.floor_bytes)} ({self.floor_bytes} bytes)"
        if self.plain_bytes:
            share = 100 * self.floor_bytes / self.plain_bytes
            lowest += f", {share:.0f} % of plain's peak of {_readable(self.plain_bytes)}"
        cause = ""
        if self.is_in_update:
            cause = "the peak is the update's (optimizer temporaries)"
        elif 2 * self.state_bytes >= self.floor_bytes:
            cause = f"{_readable(self.state_bytes)} of it is weights, gradients and optimizer state"
        if not self.has_nothing_to_gain:
            return f"{lowest}; {cause}" if cause else lowest
        return f"{lowest}; nothing to gain" + (f": {cause}" if cause else "")

    def with_room(
        self, room_bytes: int, *, budget_bytes: int | None = None
    ) -> InfeasibleBudgetError:
        """The same error, naming a budget with so much room above the floor.

        Args:
            budget_bytes: What was asked for, where that was more than had to be planned for.
        """
        return InfeasibleBudgetError(
            budget_bytes=self.budget_bytes if budget_bytes is None else budget_bytes,
            floor_bytes=self.floor_bytes,
            plain_bytes=self.plain_bytes,
            largest=self.largest,
            state_bytes=self.state_bytes,
            is_in_update=self.is_in_update,
            remedies=self.remedies,
            room_bytes=room_bytes,
        )


class InfeasibleStashError(InfeasibleError):
    """No plan within the budget keeps as little for backward as was asked for.

    Attributes:
        stash_bytes: What was asked for.
        least_bytes: The least that was found.
    """

    def __init__(
        self,
        *,
        stash_bytes: int,
        least_bytes: int,
        budget_bytes: int,
        remedies: tuple[str, ...] = (),
    ) -> None:
        self.stash_bytes, self.least_bytes = stash_bytes, least_bytes
        self.nearest_bytes = least_bytes
        self.budget_bytes = budget_bytes
        tries = (f"a stash of at least {_enough(least_bytes)}", "a smaller batch", *remedies)
        super().__init__(
            f"no plan within {_readable(budget_bytes)} keeps only {_readable(stash_bytes)} for "
            f"backward: the least that was found is {_readable(least_bytes)}.\n"
            f"  try: {', or '.join(tries)}"
        )


def _readable(count: int) -> str:
    """Bytes for people; `units.format_bytes` stands above this module."""
    if abs(count) >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    if abs(count) >= 2**20:
        return f"{count / 2**20:.2f} MiB"
    return f"{count / 2**10:.1f} KiB" if abs(count) >= 2**10 else f"{count} B"


def _enough(count: int) -> str:
    """Bytes as they are typed, rounded up: what `units.parse_bytes` reads is never less."""
    unit, factor, digits = "KiB", 2**10, 1
    if count >= 2**30:
        unit, factor, digits = "GiB", 2**30, 2
    elif count >= 2**20:
        unit, factor = "MiB", 2**20
    parts = -(-count * 10**digits // factor)
    return f"{parts / 10**digits:.{digits}f}{unit} ({count} bytes)"


class BudgetExceededError(LegroomError):
    """A real step needs more than the budget, although it was planned again.

    Attributes:
        measured_bytes: The peak of the last measured step.
        predicted_bytes: What the plan at work predicts.
        enough_bytes: A budget that the lowest plan would keep, with the difference added.
    """

    def __init__(
        self, *, budget_bytes: int, measured_bytes: int, predicted_bytes: int, enough_bytes: int
    ) -> None:
        self.budget_bytes, self.enough_bytes = budget_bytes, enough_bytes
        self.measured_bytes, self.predicted_bytes = measured_bytes, predicted_bytes
        super().__init__(
            f"a step peaks at {_readable(measured_bytes)}, above the budget of "
            f"{_readable(budget_bytes)}, with a plan that predicts {_readable(predicted_bytes)}.\n"
            "  what lies outside the planned calls (a loss in the loop, kept outputs, code that is "
            "not captured) takes the difference; it was set aside for the whole of the step.\n"
            "  `legroom plan` sees the whole step: where it finds a plan for this budget, "
            "legroom.fit with step= carries that out.\n"
            f"  try: a budget of at least {_enough(enough_bytes)}; legroom.fit with step=, a "
            "function that does one step of the loop, or on a function that returns the loss; the "
            "loss inside the model's forward; a smaller batch"
        )


class GradientErrorBoundError(LegroomError):
    """No plan fits the budget whose gradients are as near to exact ones as was asked for.

    Attributes:
        bound: The relative error that was allowed.
        nearest: The smallest that was measured for a plan within the budget.
    """

    def __init__(self, *, bound: float, nearest: float, budget_bytes: int) -> None:
        self.bound, self.nearest, self.budget_bytes = bound, nearest, budget_bytes
        super().__init__(
            f"no plan within {_readable(budget_bytes)} has gradients within {bound:.3g} of exact "
            f"ones, relatively: the nearest is off by {nearest:.3g}.\n"
            f"  try: max_gradient_error={nearest * 1.1:.2g}, a larger budget, or a smaller batch"
        )


class CaptureFailedError(LegroomError):
    """The step raised an exception, its cause, while it was captured on tensors without memory."""


class CopyFailedError(CaptureFailedError):
    """The copy of the process in which a step was captured failed, or was ended.

    Attributes:
        why: In words.
        traceback: Of what failed in it; empty where the copy itself did.
        was_killed: Whether a signal ended it.
    """

    def __init__(self, why: str, traceback: str = "", *, was_killed: bool = False) -> None:
        self.why, self.traceback, self.was_killed = why, traceback, was_killed
        super().__init__(f"the copy of this process in which the step was captured failed: {why}")


class CaptureTimeError(CaptureFailedError):
    """Capturing a step takes longer than planning may take."""

    def __init__(self) -> None:
        super().__init__(
            "capturing all of its operations takes longer than planning may take (30 s, and 5 % of "
            "the time since)"
        )


class DoubleBackwardError(LegroomError):
    """Gradients of gradients are taken through a planned call."""

    def __init__(self) -> None:
        super().__init__(
            "create_graph=True was asked of a backward pass through a fitted call, but what a plan "
            "drops cannot be differentiated twice.\n"
            "  try: leave that model as it is (legroom run --leave NAME), or fit the others only"
        )


class UnplannedGradientError(LegroomError):
    """Gradients are taken of an output that was planned to receive none."""

    def __init__(self) -> None:
        super().__init__(
            "gradients are taken of an output of a fitted call besides its loss; the plan was made "
            "for the loss alone, since the budget has no room for a step as it is.\n"
            "  try: legroom.fit on a function that returns the whole loss, and call that instead"
        )


class NothingCapturedError(LegroomError):
    """No call of a module in the training step could be captured.

    Args:
        reasons: Why not, one for each call or graph break.
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        listed = "".join(f"\n  {reason}" for reason in reasons)
        super().__init__(
            "no module call of the training step could be captured"
            + (f":{listed}" if reasons else ": the step calls no module with gradients enabled")
            + "\n  try: call the model itself, `model(batch)`, with gradients enabled and outside "
            "checkpointing; or, where a model breaks in between, legroom.fit on those of its parts "
            "that do not"
        )


class UnplannableError(LegroomError):
    """A call cannot be planned, and `on_unplannable="error"` was asked for."""

    def __init__(self, shapes: str, why: str) -> None:
        super().__init__(
            f"calls with {shapes} cannot be planned: {why}.\n"
            '  try: on_unplannable="plain" (--on-unplannable plain), which runs them as they are'
        )


class SavedTensorModifiedError(LegroomError, RuntimeError):
    """A tensor that backward needs was changed in place after it was saved.

    PyTorch raises a `RuntimeError` for that; with hooks on saved tensors it would not notice.

    Attributes:
        saved_version, version: How often it had been changed when it was saved, and by now.
    """

    def __init__(self, *, description: str, saved_version: int, version: int) -> None:
        self.saved_version, self.version = saved_version, version
        super().__init__(
            f"a tensor that backward needs ({description}) has been modified by an inplace "
            f"operation: it is at version {version}, and was saved at version {saved_version}.\n"
            "  try: the same operation not in place, or a clone before it"
        )


class TierError(LegroomError):
    """Bytes could not be put on a tier, or do not come back from it."""


class TierSpaceError(TierError):
    """A tier has not enough room.

    Attributes:
        folder: Where it is.
        wanted_bytes: What was to be set aside, beside what is already.
        free_bytes: What there is.
        label: The tensor that there is no room for; empty where it is for several.
    """

    def __init__(
        self,
        *,
        folder: str,
        wanted_bytes: int,
        free_bytes: int,
        reason: str = "",
        tier: str = "disk",
        label: str = "",
    ) -> None:
        self.folder, self.wanted_bytes, self.free_bytes = folder, wanted_bytes, free_bytes
        self.label, self._reason, self._tier = label, reason, tier
        super().__init__(
            f"the {tier} tier needs {_readable(wanted_bytes)} more ({wanted_bytes} bytes) in "
            f"{folder!r}"
            + (f" for {label!r}" if label else "")
            + f", where {_readable(free_bytes)} are free"
            + (f": {reason}" if reason else "")
            + ".\n  try: make room there, "
            + ("another folder (folder=, or LEGROOM_DISK), " if tier == "disk" else "")
            + "a smaller batch, or a larger budget"
        )

    def for_tensor(self, label: str) -> TierSpaceError:
        """The same, of one tensor."""
        return TierSpaceError(
            folder=self.folder,
            wanted_bytes=self.wanted_bytes,
            free_bytes=self.free_bytes,
            reason=self._reason,
            tier=self._tier,
            label=label,
        )


class TorchInterfaceError(LegroomError):
    """A private PyTorch interface that legroom relies on is missing or has changed.

    Args:
        name: The interface, as it is spelled in PyTorch.
        tested: The torch version it was last seen in.
    """

    def __init__(self, name: str, *, tested: str) -> None:
        import torch

        self.name, self.tested = name, tested
        super().__init__(
            f"torch {torch.__version__} has no usable {name!r}, which legroom needs "
            f"(it was tested on torch {tested}).\n"
            f"  try: pip install 'torch=={tested}', or a newer legroom"
        )
