"""The kinds of call of a fitted target: which plan each has, and how much it may take.

In comes a call of a kind that was not seen before; out comes the plan that it follows: one of its
own, that of a larger kind, or that of a whole step. What it means that one cannot be kept within
the budget is decided here too. See Note [Kinds of call].
"""

# Note [Kinds of call]
# 1. Each kind of call (see `CallKey`) has its own plan. Up to a few kinds are captured and planned;
#    further ones that are in no dimension larger than a planned one take its decisions over.
# 2. A model that runs other operations than were planned (a hook was added, an attribute changed)
#    runs them as they are once, and is planned again at its next call; so is one whose tensors have
#    more elements that are not zero than they had. A few times, then it is left so.
# 3. Kinds of call that come later have as much as those before them: a share is of the largest step
#    so far, not of a last batch that is smaller. By then there is training to lose. So where no
#    plan fits a share, or more is measured, that is said, and the lowest plan is used. A budget in
#    bytes is a limit: the call is refused, and the next one goes on.
# 4. Planning has an allowance of time. What is new once that is spent runs as it is, and so does a
#    call of so many operations that capturing it would take more than what is left. Not where the
#    budget is in bytes, and no such call is known to fit.

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, final

from legroom.engine._call_key import CallKey
from legroom.engine._density import uses_sparse
from legroom.engine._plain_calls import NEW_SHAPES
from legroom.engine._planned_kind import MOST_REPLANS, PlannedKind
from legroom.engine._step_plan import StepPlan
from legroom.errors import InfeasibleBudgetError, InfeasibleError, LegroomError
from legroom.plan import PlanOptions
from legroom.ways import take_overflows

if TYPE_CHECKING:
    from legroom.engine._fit import Fitted

_MOST_PLANNED = 4
_MOST_COMPILED = 16
_MOST_OVERFLOWS = 3
_AMPLE = 2
"""A budget in bytes of so many times the call's plain peak is taken to have room for the loop."""

Step = Callable[[], object]


@final
class KindsOfCall:
    """The kinds of call that were seen so far, in the order in which they came.

    Args:
        owner: Captures and plans, and tells the user.
        options: The budget among them.
    """

    def __init__(self, owner: Fitted, options: PlanOptions) -> None:
        self._owner = weakref.proxy(owner)
        self._options = options
        self._kinds: dict[CallKey, PlannedKind] = {}
        self._plan_of_step: StepPlan | None = None
        self._keys_of_step: set[CallKey] | None = None
        self._num_strays: Counter[CallKey] = Counter()
        self._num_overflows: Counter[CallKey | None] = Counter()

    def __iter__(self) -> Iterator[PlannedKind]:
        return iter(self._kinds.values())

    def __len__(self) -> int:
        return len(self._kinds)

    def find(self, key: CallKey) -> PlannedKind | None:
        """The kind that calls with this key are of; None if it is new, or to be planned anew."""
        return self._kinds.get(key)

    def keep(self, key: CallKey, kind: PlannedKind) -> None:
        """Calls with this key are of this kind from now on."""
        self._kinds.pop(key, None)
        self._kinds[key] = kind
        if len(self._kinds) > _MOST_COMPILED:
            self.drop(min(self._kinds, key=lambda each: self._kinds[each].last_call))

    def drop(self, key: CallKey) -> None:
        """Forget a kind: calls with this key follow no plan."""
        kind = self._kinds.pop(key, None)
        if kind is not None:
            kind.forget()

    def under(self, step_plan: StepPlan) -> list[PlannedKind]:
        """The kinds that follow a plan."""
        return [kind for kind in self if kind.step_plan is step_plan]

    # A whole step --------------------------------------------------------------------------------

    def plan_step(self, step: Step) -> None:
        """Plan a whole step; kinds that are called in it follow that plan.

        Raises:
            InfeasibleError: No plan fits.
        """
        self._keys_of_step = set()
        self._plan_of_step = self._plan(step)
        self._keys_of_step |= self._plan_of_step.called

    def keys_of_step(self) -> frozenset[CallKey]:
        """The calls that a whole step has made so far, while it is planned."""
        return frozenset(self._keys_of_step or ())

    @property
    def asks_for_calls(self) -> bool:
        """Whether calls that are made while planning are of interest."""
        return self._keys_of_step is not None

    def called_in_step(self, key: CallKey) -> None:
        """A call was made while planning."""
        if self._keys_of_step is not None:
            self._keys_of_step.add(key)

    # What a new kind gets ------------------------------------------------------------------------

    def why_left(self, key: CallKey) -> str | None:
        """Why a new kind gets no plan; see Note [Kinds of call], rule 4. None: it gets one."""
        if not self._owner.planning_time.is_spent:
            return None
        if not self.is_limit:
            return NEW_SHAPES
        fits = any(
            kind.key is not None
            and key.is_within(kind.key)
            and kind.step_plan.plain_peak_bytes <= kind.step_plan.budget_bytes
            for kind in self
        )
        return NEW_SHAPES if fits else None

    def plan(self, owner: Fitted, key: CallKey, make_step: Callable[[], Step]) -> PlannedKind:
        """A new kind, with its plan; see Note [Kinds of call], rule 1.

        Args:
            make_step: Makes up a training step around the call, if one is needed.

        Raises:
            InfeasibleError: No plan fits, and that ends the training.
        """
        if self._plan_of_step is not None and key in (self._keys_of_step or ()):
            return PlannedKind(owner, self._plan_of_step, key)
        own = [kind for kind in self if kind.key is not None]
        if len(own) >= _MOST_PLANNED:
            larger = [kind for kind in own if kind.key is not None and key.is_within(kind.key)]
            if larger:
                return PlannedKind(owner, larger[0].step_plan, None)
        return PlannedKind(owner, self._plan(make_step()), key)

    def _plan(self, step: Step) -> StepPlan:
        """See Note [Kinds of call], rule 3."""
        known = [kind.step_plan for kind in self]
        known += [self._plan_of_step] if self._plan_of_step is not None else []
        least_bytes = max((each.budget_bytes for each in known), default=0)
        is_whole = self._keys_of_step is not None
        try:
            step_plan = self._plan_within(step, self._options, least_bytes)
        except InfeasibleError as error:
            waits = not is_whole and (self._owner.training.defers or not self.is_limit)
            waits &= isinstance(error, InfeasibleBudgetError)
            if not waits and (self.is_limit or not known):
                raise
            if not waits:
                why = _first_line(error)
                self._owner.say(f"{why} For this kind of call the lowest plan is used")
            return self._lowest(step, least_bytes)
        if self.is_limit and not is_whole:
            plain_bytes = step_plan.plain_peak_bytes
            if step_plan.programs or _AMPLE * plain_bytes > step_plan.budget_bytes:
                step_plan.use_lowest()  # until it is known what the loop takes
        return step_plan

    def _lowest(self, step: Step, least_bytes: int) -> StepPlan:
        """The lowest plan, for a budget that the call alone does not keep."""
        options = replace(self._options, budget="lowest", activations=None, stash=None)
        step_plan = self._plan_within(step, options, least_bytes)
        budget = self._options.chosen_budget
        if budget is not None and budget.num_bytes is not None:
            step_plan.budget, step_plan.budget_bytes = budget, budget.num_bytes
        return step_plan

    def is_of_step(self, kind: PlannedKind) -> bool:
        """Whether it follows the plan of a step that was seen whole."""
        return kind.step_plan is self._plan_of_step

    def _plan_within(self, step: Step, options: PlanOptions, least_bytes: int) -> StepPlan:
        planned: StepPlan = self._owner.plan_within(step, options, least_bytes)
        return planned

    @property
    def is_limit(self) -> bool:
        """Whether the budget was given in bytes."""
        budget = self._options.chosen_budget
        return budget is not None and budget.num_bytes is not None

    # What a kind is refused or planned anew for --------------------------------------------------

    def refuse(self, kind: PlannedKind, error: LegroomError) -> None:
        """A kind cannot be kept within the budget; see Note [Kinds of call], rule 3.

        Raises:
            LegroomError: The budget is a limit, or training has just begun.
        """
        if self.is_limit or next(iter(self), kind) is kind:
            raise error
        self._owner.say(f"{_first_line(error)} Training goes on")

    def drop_if_other(self, key: CallKey, kind: PlannedKind) -> str | None:
        """Forget a kind whose call was not as planned: the next is planned anew; says why.

        See Note [Kinds of call], rule 2. None where it stays.
        """
        if kind.unplanned and self._num_strays[key] < MOST_REPLANS:
            self._num_strays[key] += 1
            why = "the model runs other operations than were planned"
        elif take_overflows() and uses_sparse(kind):
            self._num_overflows[key] += 1
            why = "tensors have fewer zeros than when it was planned"
        else:
            return None
        self._kinds.pop(key).forget()
        return why

    def may_hold_sparse(self, kind: PlannedKind) -> bool:
        """Whether its zeros have not let us down too often."""
        return self._num_overflows[kind.key] < _MOST_OVERFLOWS


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
