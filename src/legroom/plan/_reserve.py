"""Which rewrites of a step pay: as it is written, with those that cost no time, or with all.

In go a captured step, with what it is under other rewrites, and what plans one; out comes the plan
of one of them. See Note [Reserve].
"""

# Note [Reserve]
# 1. A rewrite that costs time changes every graph in which it finds something, whatever the budget
#    is: the planner does not choose tensor by tensor. So the step is planned without it first, and
#    with it where no plan fits. If none fits then either, the error tells of the lower floor. The
#    same once a step is measured above its budget, and no plan without fits what is left.
# 2. As little as possible is the lowest of all floors. Those within half a percent of it are the
#    same, as far as the search can tell: of them, the fastest plan is taken.
# 3. A rewrite that is asked for by name is no reserve: it is done at once. One that is left out, or
#    not exact enough, is never done. A recipe of the literature is followed as it is.
# 4. The other rewrites change every graph too, whether or not the budget asks for it: some take a
#    little longer than what they replace, and leave plans less to choose from. So the step is also
#    planned as it is written, and the better plan is taken: the faster one within a budget, the
#    lower peak where that is looked for. Not where the rewritten step with its plan takes no longer
#    than the step as it is written without any: then no other plan can be faster.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from legroom.capture import Capture
from legroom.errors import InfeasibleError
from legroom.plan._budget import Budget
from legroom.plan._effort import CLOSE_ENOUGH
from legroom.plan._options import PlanOptions
from legroom.plan._plan import Plan

_SAME_PEAK = 1.005
PlannedT = TypeVar("PlannedT")


@dataclass(frozen=True)
class Judge(Generic[PlannedT]):
    """What plans of one step under different rewrites are compared by.

    Attributes:
        floor_bytes: The lowest peak that was found while planning.
        plan: The plan itself; None where none was asked for.
        step_ms: What the step takes under the rewrites, before anything is planned.
        as_written_ms: The same without rewrites; None where there are none.
    """

    floor_bytes: Callable[[PlannedT], int]
    plan: Callable[[PlannedT], Plan | None]
    step_ms: Callable[[PlannedT], float]
    as_written_ms: Callable[[PlannedT], float | None]

    def is_unbeatable(self, planned: PlannedT, budget: Budget | None) -> bool:
        """Whether a plan of the step as it is written cannot be better; see rule 4."""
        plan, other_ms = self.plan(planned), self.as_written_ms(planned)
        if plan is None or other_ms is None:
            return True
        if budget is not None and (budget.is_lowest or budget.is_free):
            return False
        return self.step_ms(planned) + plan.added_ms <= (1 + CLOSE_ENOUGH) * other_ms

    def best(self, found: list[PlannedT], budget: Budget | None) -> PlannedT:
        """The best of several plans for one budget; the first of those that are as good."""
        if budget is not None and (budget.is_lowest or budget.is_free):
            peaks = [self._lowest_bytes(each, budget) for each in found]
            most_bytes = _SAME_PEAK * min(peaks)
            found = [each for each, peak in zip(found, peaks, strict=True) if peak <= most_bytes]
        return found[0] if len(found) == 1 else min(found, key=self._total_ms)

    def _lowest_bytes(self, planned: PlannedT, budget: Budget) -> int:
        plan = self.plan(planned)
        if plan is None or budget.is_lowest:
            return self.floor_bytes(planned)
        return plan.predicted_peak_bytes

    def _total_ms(self, planned: PlannedT) -> float:
        plan = self.plan(planned)
        return self.step_ms(planned) + (0.0 if plan is None else plan.added_ms)


Form = tuple[Capture, PlanOptions]
"""A step under certain rewrites, and the options that it is planned with."""


def forms_of(capture: Capture, options: PlanOptions) -> tuple[Form, ...]:
    """All forms that a step was captured in: rewritten, as it is written, with the reserve."""
    forms = [(capture, options)]
    if capture.as_written is not None:
        forms.append((capture.as_written, options.as_written()))
    if capture.reserve is not None:
        forms.append((capture.reserve, options.with_reserve()))
    return tuple(forms)


def plan_with_reserve(
    capture: Capture,
    options: PlanOptions,
    plan: Callable[[Capture, PlanOptions], PlannedT],
    *,
    judge: Judge[PlannedT],
) -> PlannedT:
    """The best plan of a step: rewritten, as it is written, or with rewrites that cost time.

    Args:
        plan: Plans one capture under the options that it was made with.
        judge: Says which plan is better.

    Raises:
        InfeasibleError: No plan fits, whatever is rewritten.
    """
    budget = options.chosen_budget
    is_lowest = budget is not None and budget.is_lowest
    found: list[PlannedT] = []
    errors: list[InfeasibleError] = []

    def attempt(capture: Capture, options: PlanOptions) -> None:
        try:
            found.append(plan(capture, options))
        except InfeasibleError as failure:
            errors.append(failure.with_traceback(None))

    first, *others = forms_of(capture, options)
    attempt(*first)
    is_open = not found or not judge.is_unbeatable(found[0], budget)
    for other, its_options in others:
        if is_open if its_options.is_as_written else is_lowest or not found:
            attempt(other, its_options)
    if not found:
        raise min(errors, key=lambda error: error.nearest_bytes)
    return judge.best(found, budget)
