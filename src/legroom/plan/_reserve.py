"""What is done only where no plan fits without it: rewrites that make a step longer.

In go a captured step, with what it is under those rewrites, and what plans one; out comes the plan
of one of the two. See Note [Reserve].
"""

# Note [Reserve]
# 1. A rewrite that costs time changes every graph in which it finds something, whatever the budget
#    is: the planner does not choose tensor by tensor. So the step is planned without it first, and
#    with it where no plan fits. If none fits then either, the error tells of the lower floor. The
#    same once a step is measured above its budget, and no plan without fits what is left.
# 2. As little as possible is the lower one of both floors.
# 3. A rewrite that is asked for by name is no reserve: it is done at once. One that is left out, or
#    not exact enough, is never done. A recipe of the literature is followed as it is.

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from legroom.capture import Capture
from legroom.errors import InfeasibleError
from legroom.plan._options import PlanOptions

PlannedT = TypeVar("PlannedT")


def plan_with_reserve(
    capture: Capture,
    options: PlanOptions,
    plan: Callable[[Capture, PlanOptions], PlannedT],
    *,
    floor_bytes: Callable[[PlannedT], int],
) -> PlannedT:
    """The plan of a step, with the rewrites that cost time where they are needed.

    Args:
        plan: Plans one capture under the options that it was made with.
        floor_bytes: The lowest peak that was found while planning.

    Raises:
        InfeasibleError: No plan fits, with or without.
    """
    budget = options.chosen_budget
    is_floor = budget is not None and budget.is_floor
    error: InfeasibleError | None = None
    planned: PlannedT | None = None
    try:
        planned = plan(capture, options)
    except InfeasibleError as failure:
        if capture.reserve is None:
            raise
        error = failure.with_traceback(None)
    if planned is not None and (capture.reserve is None or not is_floor):
        return planned
    assert capture.reserve is not None, "bug in legroom: a reserve that is none"
    try:
        other = plan(capture.reserve, options.with_reserve())
    except InfeasibleError as failure:
        nearest = failure if error is None else min(error, failure, key=lambda e: e.nearest_bytes)
        raise nearest from None
    if planned is not None and floor_bytes(planned) <= floor_bytes(other):
        return planned
    return other
