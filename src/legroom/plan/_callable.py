"""`legroom.plan(step)`: what a training step would fit into, and what that would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from legroom.errors import UsageError
from legroom.plan._options import PlanOptions, choose_ways
from legroom.plan._plan import PlanReport
from legroom.plan._report import OnProgress, build_report


def plan(  # noqa: PLR0913 - one keyword for each thing a user may say
    step: Callable[[], object],
    *,
    budget: str | int | None = None,
    activations: str | None = None,
    stash: str | int | None = None,
    disk: str | bool = False,
    host: bool = False,
    exactness: str = "bitwise",
    ways: Iterable[str] = (),
    without: Iterable[str] = (),
    device: str | None = None,
    preset: str | None = None,
    effort: str = "proportional",
    time_limit_s: float = 30.0,
    points: int = 10,
    on_progress: OnProgress | None = None,
) -> PlanReport:
    """Say into which budgets a training step would fit, and at what cost, before it runs.

    The step is called four to six times on tensors that have no memory, and nothing is trained;
    only single operations are run, to be timed. Parameters, optimizer state and random numbers stay
    as they are.

    Args:
        step: Does one whole training step: forward, loss, backward, optimizer step.
        budget: Upper bound on the peak: `"4GiB"`, `"50%"` of the plain peak, or bytes.
        activations: The same as state plus a share of the rest: `"50%"`.
        stash: Upper bound on what forward leaves for backward: `"80MiB"`, `"25%"` of what it leaves
            in the plain step, or bytes; beside the bound on the peak, or alone.
        disk: Let plans hold tensors on the disk: True, or the folder to do so in.
        host: Let plans hold tensors of an accelerator in pinned host memory.
        exactness: `"bitwise"`, `"rounding"` or `"lossy"`: what plans may use at most.
        ways: If any, use nothing but these ways and variants (and `hold`).
        without: Do not use these.
        device: Plan for another device: `"RTX4090"`, `"24GiB, 100 GB/s to host"`.
        preset: Follow this recipe of the literature instead of searching, as `"gist"`; the budget
            picks among its forms. `legroom ways` lists them.
        effort: `"proportional"`: as long as there is something to gain, within the time limit;
            `"fixed"`: so much work, whatever the time, so that plans are repeatable.
        time_limit_s: Longest time for all that planning for one budget does.
        points: Budgets on the frontier; 0 for none.
        on_progress: Called with a stage, how much of it is done, and how much there is.

    Raises:
        UsageError: An argument is wrong.
        CaptureFailedError: The step raised an exception while it was captured.
        NothingCapturedError: No part of the step could be captured.
        InfeasibleBudgetError: No plan fits; names the lowest budget that one does.
        InfeasibleStashError: No plan within the budget keeps so little for backward.
    """
    from legroom.capture import capture_step

    ways = tuple(ways)
    if not callable(step):
        raise UsageError(f"step must be callable without arguments, got {type(step).__name__}")
    options = PlanOptions(
        budget=budget,
        activations=activations,
        stash=stash,
        disk=disk,
        host=host,
        ways=choose_ways(only=ways, without=without, exactness=exactness),
        asked=tuple(ways),
        exactness=exactness,
        device=device,
        preset=preset,
        effort=effort,
        time_limit_s=time_limit_s,
        num_points=points,
    )
    options.check()
    capture = capture_step(
        step,
        exactness=exactness,
        rewrites=options.rewrites,
        as_written=options.plans_as_written,
        reserve=options.reserve,
        on_progress=stage_of(on_progress),
    )
    name = getattr(step, "__name__", "step")
    return build_report(capture, options, target=name, on_progress=on_progress)


def stage_of(on_progress: OnProgress | None) -> Callable[[str], None] | None:
    """Progress of capturing, which knows what comes next but not how much there is."""
    if on_progress is None:
        return None
    report = on_progress
    return lambda text: report(text, 0, 0)
