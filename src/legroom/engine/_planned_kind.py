"""One kind of call of a fitted target: its plan, what runs it, and what was measured under it.

In come readings of measured steps; above the budget the plan is tightened, and after two attempts
that is an error.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from legroom import variants
from legroom.engine._allocator import close_holes
from legroom.engine._call_key import CallKey
from legroom.engine._density import DensityWatch, density_watch
from legroom.engine._run_report import RunReport
from legroom.engine._step_plan import StepPlan
from legroom.engine.graph import PlannedCall, new_kind_number
from legroom.errors import BudgetExceededError, InfeasibleError
from legroom.meter import PeakReading
from legroom.units import format_bytes
from legroom.ways import Exactness

if TYPE_CHECKING:
    from legroom.engine._fit import Fitted

MOST_REPLANS = 2
COMPILING_BYTES = 4 * 2**20
"""What the first step may take above the budget: compiling leaves things behind for a moment."""


@final
class PlannedKind:
    """One kind of call, its plan, and what was measured under it.

    Attributes:
        key: What calls it was planned for; None where the plan is that of a larger kind.
        is_stale: Whether the plan has changed and could not be compiled: there was no room for it.
        is_checked: Whether it is known how far its gradients are off, or they are exact.
        density_watch: What watches its first call; see Note [Density].
        num_calls: How often it was called.
        has_run: Whether what is called now, under the plan of now, has run to its end once.
        last_call: When it was called last, by a clock that only goes on.
        number: Different from all others of this process.
        generation: How many plans it has followed before this one.
        is_forgotten: Whether it was let go.
        compiling_s: What its first call took, which compiles.
    """

    def __init__(self, owner: Fitted, step_plan: StepPlan, key: CallKey | None) -> None:
        self.step_plan = step_plan
        self.key = key
        self.is_stale = self.is_checked = False
        self.density_watch: DensityWatch | None = None
        self.num_calls = 0
        self.has_run = False
        self.last_call = time.monotonic()
        self._owner = weakref.proxy(owner)
        self.generation = 0
        self.compiling_s = 0.0
        self.is_forgotten = False
        self.number = new_kind_number()
        self.call = owner.compile(step_plan, kind=self.number)
        self.measured_peak_bytes: int | None = None
        self._num_readings = 0
        self.resident_peak_bytes: int | None = None

    @property
    def unplanned(self) -> list[str]:
        """Graphs that the plan did not know."""
        return self.call.unplanned if isinstance(self.call, PlannedCall) else []

    def is_due(self, check_every: int | None) -> bool:
        """Whether it is time to measure again how far gradients are off."""
        is_time = check_every is not None and self.num_calls % check_every == 0
        return is_time and self.num_calls > 0 and self.step_plan.gradient_error is not None

    @property
    def accuracy(self) -> str:
        """How far gradients are off, as a sentence."""
        return (
            f"after {self.num_calls} calls gradients are off by {self.step_plan.gradient_error:.2g}"
        )

    def measure_anew(self) -> None:
        """The plan has changed: what was measured is of another one."""
        self.measured_peak_bytes = None
        self._num_readings = 0
        self.generation += 1
        self.is_checked = self.step_plan.options.exactness != Exactness.LOSSY.value

    def follow_plan(self, owner: Fitted) -> None:
        """The plan has changed: compile it, for every kind of call under it."""
        self.compile(owner)
        owner.compile_again(self.step_plan)

    def compile(self, owner: Fitted) -> None:
        """Call what the plan says from now on; what fails is tried again by the next call.

        Raises:
            TierSpaceError: There is no room for what the plan holds elsewhere.
        """
        self.is_stale = True
        self._replace_call(owner.compile(self.step_plan, kind=self.number))
        self.is_stale = False

    def _replace_call(self, call: Callable[..., Any]) -> None:
        self._forget_call()
        self.call, self.has_run = call, False

    def watch_density(self, owner: Fitted) -> None:
        """Have the first call watched, where that can pay."""
        self.density_watch = density_watch(self, self.step_plan.options)
        if self.density_watch is not None:
            witness = self.density_watch.witness
            self._replace_call(owner.compile(self.step_plan, witness=witness, kind=self.number))

    def end_density_watch(self) -> bool:
        """Look no more; whether the first call was watched, and showed tensors with many zeros."""
        if self.density_watch is not None and not self.density_watch.end():
            self.density_watch = None
        return self.density_watch is not None

    def use_density(self, owner: Fitted) -> bool:
        """Plan again with what the first call has shown; whether that pays."""
        watch, self.density_watch = self.density_watch, None
        if watch is None or not watch.plan_again(self.step_plan, self.step_plan.options):
            return False
        self.follow_plan(owner)
        return True

    def take_densities(self) -> None:
        """Let the planner know of zeros that the first call has shown, if it was watched."""
        watch, self.density_watch = self.density_watch, None
        if watch is not None and watch.end():
            self.step_plan.note_densities(watch.found)

    def forget(self) -> None:
        """Let go of it: another kind takes its place, or the target is plain again."""
        self.is_forgotten = True
        self._forget_call()

    def _forget_call(self) -> None:
        if isinstance(self.call, PlannedCall):
            self.call.forget()

    def on_reading(self, reading: PeakReading) -> None:
        """Compare a measured step with its prediction; see Note [Fitted calls], rule 4."""
        plan = self.step_plan
        if self._owner.training.manages(self):
            self._note_reading(reading)
            return
        self._num_readings += 1
        if reading.resident_bytes is not None:
            self.resident_peak_bytes = max(self.resident_peak_bytes or 0, reading.resident_bytes)
        predicted = plan.plan.predicted_peak_bytes
        allowed = plan.budget_bytes + plan.slack_bytes
        close_holes()  # which planning and compiling have left, some of them late
        if self._num_readings == 1:
            allowed += max(COMPILING_BYTES, allowed // 50)
        else:
            self.measured_peak_bytes = max(self.measured_peak_bytes or 0, reading.peak_bytes)
        if reading.peak_bytes <= allowed:
            return
        before_bytes = plan.budget_bytes
        plan.note_outside(reading.peak_bytes - predicted)
        if plan.budget_bytes != before_bytes:
            self._owner.say(
                f"the budget of {plan.budget} means {format_bytes(plan.budget_bytes)} from now on "
                f"(it meant {format_bytes(before_bytes)}): {format_bytes(plan.outside_bytes)} were "
                "measured outside of the planned calls, and plain PyTorch's step holds them too"
            )
        if reading.peak_bytes <= plan.budget_bytes + plan.slack_bytes:
            return
        too_much = BudgetExceededError(
            budget_bytes=plan.budget_bytes,
            measured_bytes=reading.peak_bytes,
            predicted_bytes=predicted,
            enough_bytes=plan.enough_bytes,
        )
        if plan.replans >= MOST_REPLANS:
            self._compile_plainer(too_much)
            return
        share = "" if plan.budget.num_bytes is not None else f", {plan.budget}"
        self._owner.say(
            f"measured peak {format_bytes(reading.peak_bytes)} is above the budget of "
            f"{format_bytes(plan.budget_bytes)}{share} (predicted {format_bytes(predicted)}): "
            "planning again with the difference set aside"
        )
        try:
            plan.tighten(reading.peak_bytes - predicted)
        except InfeasibleError as error:
            too_much.__cause__ = error
            self._compile_plainer(too_much)
            return
        self._owner.compile_again(plan)

    def _note_reading(self, reading: PeakReading) -> None:
        """What was measured is judged with all other calls of the step; see Note [Training]."""
        generation = self.generation
        close_holes()
        if reading.resident_bytes is not None:
            self.resident_peak_bytes = max(self.resident_peak_bytes or 0, reading.resident_bytes)
        if self.is_plain and self._num_readings:
            self._owner.training.on_plain_step(self, reading)
        self._num_readings += 1
        if self._num_readings > 1 and generation == self.generation:
            self.measured_peak_bytes = max(self.measured_peak_bytes or 0, reading.peak_bytes)

    @property
    def is_plain(self) -> bool:
        """Whether it runs as it is."""
        return not isinstance(self.call, PlannedCall)

    def _compile_plainer(self, too_much: BudgetExceededError) -> None:
        """No other plan is left: only what the compiler itself takes can still be less."""
        if self._owner.compile_plainer(self.step_plan):
            self._owner.say("no other plan fits: compiling so that it takes less beside the plan")
        else:
            self._owner.refuse(self, too_much)

    def report(self, owner: Fitted) -> RunReport:
        """What was planned and measured."""
        step_plan = self.step_plan
        rewritten_by = step_plan.capture.rewritten_by if step_plan.programs else ()
        return RunReport.of(
            step_plan.plan,
            budget_bytes=step_plan.budget_bytes,
            budget=step_plan.budget_in_words,
            plain_peak_bytes=step_plan.plain_peak_bytes,
            measured_peak_bytes=self.measured_peak_bytes,
            resident_peak_bytes=self.resident_peak_bytes,
            step_ms=owner.step_ms,
            planning_s=step_plan.planning_s,
            replans=step_plan.replans,
            gradient_error=step_plan.gradient_error,
            rewrites=variants.names_of(rewritten_by),
            not_planned=(
                *step_plan.not_planned,
                *(("a graph", why) for why in self.unplanned),
                *owner.left_plain,
            ),
        )
