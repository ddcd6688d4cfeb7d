"""`legroom.profile(step)`: the profile of a callable that does one training step."""

from __future__ import annotations

from collections.abc import Callable

from legroom.capture import StepFinder
from legroom.errors import NoTrainingError, UsageError
from legroom.meter._profile import Profile
from legroom.meter._profiler import profiler_is_running
from legroom.meter._session import ProfilingSession, SessionOptions


def profile(
    step: Callable[[], object],
    *,
    steps: int = 1,
    warmup: int = 2,
    device: str | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Profile:
    """Run a training step a few times and show where its memory and time go.

    The step runs `warmup + steps` times and really trains: forward, backward and update happen.

    Args:
        step: Does one whole training step: forward, loss, backward, optimizer step.
        steps: How many steps to record; the profile is that of the highest peak.
        warmup: How many steps to leave alone first. The first creates the optimizer's state.
        device: `"cpu"` or `"cuda:0"`; by default the accelerator if tensors are on it.
        on_progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        UsageError: `step` is not callable, a count is out of range, or a profiler is running.
        NoTrainingError: The step computed nothing that could be measured.
    """
    if not callable(step):
        raise UsageError(f"step must be callable without arguments, got {type(step).__name__}")
    options = SessionOptions(num_steps=steps, num_warmup=warmup, device=device)
    if profiler_is_running():
        raise UsageError("a torch profiler is already running, and PyTorch allows one at a time")
    finder = StepFinder(lambda: None)
    session = ProfilingSession(
        options, lambda observer: setattr(finder, "observer", observer), on_progress=on_progress
    )
    with finder.watching():
        session.training_starts()
        try:
            while not session.is_finished:
                step()
                session.step_ends()
        except BaseException:
            session.halt()
            raise
        result = session.finish(getattr(step, "__name__", "step"))
    if result is None:
        raise NoTrainingError("the step computed nothing that could be measured")
    return result
