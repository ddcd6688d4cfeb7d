"""Everything that is trained together: all calls of a step are planned under one budget.

In come measured steps, and the kinds of call that ran in them; out go plans of the whole step, each
kind's part to that kind. See Note [Training].
"""

# Note [Training]
# 1. A new kind of call is planned in a step that is made up, and its first real step is observed.
#    From that the whole step is planned, before the next: see Note [Whole step]. Where the budget
#    is in bytes, the observed step runs under the lowest plan, unless it would fit twice as it is.
# 2. Kinds that were seen in one step are planned together, and so are all steps that have a kind in
#    common. Kinds that have nothing to do with one another do not wait for each other: they never
#    are in memory together.
# 3. A share becomes bytes when the whole step is first planned, and stays that, unless a larger
#    step comes: it is of the largest. If no plan keeps it, the lowest plan is used, and it is said;
#    if that adds a larger share of the time than it saves of the peak, the step runs as it is.
#    A budget in bytes is refused, by what was seen in a step that was not the first: only then it
#    is known what one step leaves for the next.
# 4. A later step that takes other than was predicted is observed anew. One that already holds more
#    when it begins (a copy of the weights that was made after the first) is planned before it runs.
#    What the simulator cannot explain is set aside. The step is planned again where it would be
#    above the budget, or could be a good deal faster; a few times, then it is an error.
# 5. A step that runs as it is cannot be taken apart. What it takes is its plain peak; if that is
#    above the budget, the next one is observed under a plan.
# 6. Not planned so: calls of which tensors may be held in an accelerator's host memory, which was
#    not observed yet; calls whose graph was rewritten, of which it is not known what they take as
#    they are; targets that were planned with `step=`, which were seen whole already; lossy
#    plans, whose bits are put where gradients depend on them; kinds that follow the plan of a
#    larger one; and steps in which something ran that was not captured, or ran backward twice.
# 7. A share is not worth any time: what a step takes to be read, planned and compiled again grows
#    with its operations. Where that is more than the allowance has left, and more than a moment,
#    the calls keep the plans that they have. That is said, and the step is not judged. A second
#    plan has half of that moment, a third one a third.

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from legroom.capture import Holding, Kind, ObservedRun, ObservedStep
from legroom.engine._planned_kind import COMPILING_BYTES, MOST_REPLANS, PlannedKind
from legroom.engine._planning_time import ALLOWED_IN_WORDS, MOMENT_S, PlanningTime
from legroom.engine._step_plan import plan_within, room_above
from legroom.engine._watch import StepWatch
from legroom.errors import (
    BudgetExceededError,
    InfeasibleBudgetError,
    UsageError,
)
from legroom.meter import PeakReading
from legroom.plan import (
    CapturedKind,
    PieceProgram,
    Plan,
    Planner,
    PlanOptions,
    UnknownRunError,
    WholeStep,
    compose,
    count_operations,
    simulate_choice,
)
from legroom.units import format_bytes, format_ms, format_share
from legroom.ways import Exactness

if TYPE_CHECKING:
    from legroom.engine._fit import Fitted

_EXACT_BYTES, _EXACT_SHARE = 16 * 1024, 0.002
"""A prediction that is off by less is right."""
_FASTER_SHARE = 0.02
"""So much less than predicted is worth another plan."""
_MOST_PLANS = 5
_MOST_STEPS = 6
_READING_S, _PLANNING_S = 0.00015, 0.0005
"""For each operation: to read what was recorded of it, and to plan it."""

Outline = tuple[tuple[int, int, bool], ...]


@dataclass
class _Member:
    """A kind of call that is planned with others."""

    owner: weakref.ref[Fitted]
    kind: weakref.ref[PlannedKind]


@dataclass
class _Group:
    """Kinds that are planned together; see Note [Training], rule 2.

    Attributes:
        plan: Of the whole step; None before it was observed.
        planner: What made it.
        budget_bytes: What the budget means for it.
        beside_bytes: What was measured and the simulator does not explain.
        num_plans: How often it was planned.
        is_left: Whether it cannot be put together.
        is_too_large: Whether there was no time to plan it, or to plan it again.
        is_lowest: Whether no plan keeps the share that was asked for.
        runs_as_it_is: Whether the lowest plan does not pay then.
        is_fresh: Whether the next step compiles, which leaves things behind for a moment.
    """

    numbers: frozenset[int]
    steps: dict[Outline, ObservedStep] = field(default_factory=dict)
    plan: Plan | None = None
    planner: Planner | None = None
    budget_bytes: int = 0
    beside_bytes: int = 0
    num_plans: int = 0
    is_left: bool = False
    is_too_large: bool = False
    is_lowest: bool = False
    runs_as_it_is: bool = False
    is_fresh: bool = False

    @property
    def predicted_bytes(self) -> int:
        """Of the plan at work, with what is beside it."""
        assert self.plan is not None, "bug in legroom: a prediction without a plan"
        return self.plan.predicted_peak_bytes + self.beside_bytes


@final
class Training:
    """What is trained together, under one budget; see Note [Training].

    Args:
        options: The budget among them.
        defers: Whether a budget in bytes that a single call does not fit is refused only when the
            whole step was seen, so that the number named is the whole step's.
        planning_time: What planning may take; see Note [Training], rule 7.
        on_planned: Is told whose whole step was planned for the first time.

    Attributes:
        said: Why calls run as they are, as far as the user was told.
    """

    def __init__(
        self,
        options: PlanOptions,
        *,
        defers: bool = False,
        planning_time: PlanningTime | None = None,
        on_planned: Callable[[Fitted], None] | None = None,
    ) -> None:
        budget = options.chosen_budget
        assert budget is not None, "bug in legroom: training without a budget"
        self._budget = budget
        self._is_lossy = Exactness(options.exactness) is Exactness.LOSSY
        self._moves_to_host = "host" in options.moves
        self._members: dict[int, _Member] = {}
        self._groups: list[_Group] = []
        self._has_said = False
        self.said: set[str] = set()
        self._time = planning_time or PlanningTime()
        self._is_repeatable = options.is_repeatable
        self._on_planned = on_planned or (lambda fitted: None)
        self.defers = defers and budget.num_bytes is not None

    @property
    def has_limit(self) -> bool:
        """Whether the budget is in bytes."""
        return self._budget.num_bytes is not None

    @property
    def takes_its_time(self) -> bool:
        """Whether plans are made however long that takes: to keep a limit, or to be repeatable."""
        return self.has_limit or self._is_repeatable

    def add(self, owner: Fitted, kind: PlannedKind) -> None:
        """A new kind of call was planned; see Note [Training], rules 1 and 6."""
        is_apart = kind.key is None or self._is_lossy or self._moves_to_host
        is_apart |= kind.step_plan.is_rewritten
        if not is_apart and kind.number not in self._members:
            self._members[kind.number] = _Member(weakref.ref(owner), weakref.ref(kind))

    def watch(self, watch: StepWatch) -> None:
        """Listen to what this one measures."""
        watch.on_step, watch.on_opening = self.on_step, self.on_opening
        watch.is_worth_reading = self.is_worth_reading
        watch.reading = self._time.spending

    def manages(self, kind: PlannedKind) -> bool:
        """Whether measured steps of a kind are judged here."""
        if kind.number not in self._members:
            return False
        group = self._group_with(kind.number)
        return group is None or not group.is_left

    def waits_for(self, kind: PlannedKind) -> bool:
        """Whether the whole step of a kind is still to be planned."""
        group = self._group_with(kind.number)
        is_open = group is None or (group.plan is None and not group.is_too_large)
        return self.manages(kind) and is_open

    # Time ----------------------------------------------------------------------------------------

    def is_worth_reading(self, runs: Sequence[ObservedRun]) -> bool:
        """Whether there is time to read what was recorded of a step; see rule 7.

        If not, it is never planned as a whole.
        """
        self._forget_dead()
        numbers = frozenset(run.kind for run in runs)
        if self.takes_its_time or not numbers or not numbers <= self._members.keys():
            return True
        group = self._merged([g for g in self._groups if g.numbers & numbers], numbers)
        num_operations = sum(
            len(self._kind(number).step_plan.planner.graph.operations)
            for number, _ in {(run.kind, run.call) for run in runs}
        )
        if self._has_time_for(num_operations * _READING_S, group):
            return True
        self._leave_too_large(group, num_operations)
        return False

    def _has_time_for(self, seconds: float, group: _Group) -> bool:
        moment_s = MOMENT_S / (1 + group.num_plans)
        return self.takes_its_time or seconds <= self._time.left_s + moment_s

    def _leave_too_large(self, group: _Group, num_operations: int) -> None:
        """See Note [Training], rule 7."""
        group = self._group_with(min(group.numbers)) or group  # it may be a part of it
        if group.is_too_large or group.is_left:
            return
        group.is_too_large = True
        owners = {id(owner): owner for owner, _ in self._kinds(group).values()}.values()
        next(iter(owners)).say(
            f"the whole step has {num_operations:,} operations, and planning has no time left for "
            f"so many ({ALLOWED_IN_WORDS}): calls keep the plans they have, which were made "
            "without what the loop holds beside them"
        )
        if group.plan is None:
            for owner in owners:
                self._on_planned(owner)

    # Measured steps ------------------------------------------------------------------------------

    def on_step(self, reading: PeakReading) -> None:
        """A step was measured; see Note [Training], rules 1 to 4.

        Raises:
            InfeasibleError: No plan keeps the budget, which is in bytes.
            BudgetExceededError: The step needs more, after planning again.
        """
        with self._time.spending():
            self._on_step(reading)

    def _on_step(self, reading: PeakReading) -> None:
        step = reading.observed
        if step is None or not step.runs:
            return
        self._forget_dead()
        numbers = frozenset(run.kind for run in step.runs)
        if not numbers <= self._members.keys():
            return
        before = [group for group in self._groups if group.numbers & numbers]
        group = self._merged(before, numbers)
        if group.is_left or group.is_too_large:
            return
        if group.plan is None:
            group.steps[step.outline] = step
            self._plan(group, step, reading)
        elif self._is_off(group, reading, _takes_fresh(group)) and (
            step.outline in group.steps or reading.peak_bytes > group.predicted_bytes
        ):
            group.steps[step.outline] = step
            self._look_again(group, step, reading)

    def on_opening(self, identity: Hashable, sizes: Sequence[int]) -> None:
        """A step begins with a call of this kind; see Note [Training], rule 4.

        Raises:
            InfeasibleError: No plan keeps the budget, which is in bytes.
        """
        number = identity[0] if isinstance(identity, tuple) else -1
        group = self._group_with(number)
        if group is None or group.plan is None or group.is_too_large:
            return
        more_bytes = min(
            (
                _more_than(step, sizes)
                for outline, step in group.steps.items()
                if outline[0][0] == number
            ),
            default=0,
        )
        if group.predicted_bytes + more_bytes <= group.budget_bytes or more_bytes <= 0:
            return
        for outline, step in group.steps.items():
            if outline[0][0] == number:
                kept = Holding(more_bytes, Kind.INPUTS, -1, None)
                group.steps[outline] = replace(step, holdings=(*step.holdings, kept))
        with self._time.spending():
            self._plan_again(group)

    def on_plain_step(self, kind: PlannedKind, reading: PeakReading) -> None:
        """A step in which this kind ran as it is; see Note [Training], rule 5.

        Raises:
            InfeasibleError: No plan keeps the budget.
        """
        step_plan, group = kind.step_plan, self._group_with(kind.number)
        measured = reading.peak_bytes
        if self._budget.share is not None and group is None:
            plain = step_plan.planner.plain
            step_plan.budget_bytes = max(
                step_plan.budget_bytes, self._budget.resolve(measured, plain.staying_bytes)
            )
        is_left = group is not None and group.is_too_large
        if is_left or measured <= step_plan.budget_bytes + step_plan.slack_bytes:
            highest = max(measured, step_plan.whole_plain_bytes or 0)
            step_plan.whole_plain_bytes = highest
            step_plan.plan = replace(step_plan.plan, predicted_peak_bytes=highest)
            return
        if group is not None and group.plan is not None and group.runs_as_it_is:
            group.beside_bytes += measured - group.predicted_bytes
            group.budget_bytes = step_plan.budget_bytes = step_plan.whole_plain_bytes = measured
            step_plan.plan = replace(step_plan.plan, predicted_peak_bytes=measured)
            return
        owner = self._members[kind.number].owner()
        assert owner is not None, "bug in legroom: a reading of a target that is gone"
        if group is not None and group.plan is not None:
            group.beside_bytes += measured - group.predicted_bytes
            self._replan(group, reading)
            return
        step_plan.use_lowest()
        if step_plan.programs:
            owner.compile_again(step_plan)
        elif all(each.plan is None for each in self._groups):
            self._cannot_help(owner, kind, measured)

    def _cannot_help(self, owner: Fitted, kind: PlannedKind, measured_bytes: int) -> None:
        """Nothing that is planned takes less than it does as it is."""
        step_plan = kind.step_plan
        if self._budget.num_bytes is not None:
            owner.refuse(
                kind,
                InfeasibleBudgetError(
                    budget_bytes=step_plan.budget_bytes,
                    floor_bytes=measured_bytes,
                    room_bytes=room_above(measured_bytes),
                ),
            )
        if not self._has_said:
            self._has_said = True
            owner.say(
                f"no plan keeps {self._budget} ({format_bytes(step_plan.budget_bytes)}): the step "
                f"takes {format_bytes(measured_bytes)}, and no plan of its calls takes less"
            )
        step_plan.budget_bytes = measured_bytes
        step_plan.whole_plain_bytes = measured_bytes
        step_plan.plan = replace(step_plan.plan, predicted_peak_bytes=measured_bytes)

    def _is_off(self, group: _Group, reading: PeakReading, compiling_bytes: int) -> bool:
        """Whether a step took other than predicted; of one that compiled, far more."""
        most = max(_EXACT_BYTES, _EXACT_SHARE * group.predicted_bytes)
        if compiling_bytes:
            return reading.peak_bytes > group.budget_bytes + compiling_bytes
        is_above = reading.peak_bytes > group.budget_bytes
        return is_above or abs(reading.peak_bytes - group.predicted_bytes) > most

    # Groups --------------------------------------------------------------------------------------

    def _group_with(self, number: int) -> _Group | None:
        return next((group for group in self._groups if number in group.numbers), None)

    def _merged(self, before: list[_Group], numbers: frozenset[int]) -> _Group:
        """The one group of all these kinds; planned anew where it is more than there was."""
        if len(before) == 1 and numbers <= before[0].numbers:
            return before[0]
        group = _Group(numbers.union(*(each.numbers for each in before)))
        for each in before:
            group.steps |= each.steps
            group.budget_bytes = max(group.budget_bytes, each.budget_bytes)
            group.beside_bytes = max(group.beside_bytes, each.beside_bytes)
            group.is_left |= each.is_left
            group.is_too_large |= each.is_too_large
        self._groups = [each for each in self._groups if each not in before] + [group]
        return group

    def _forget_dead(self) -> None:
        """Kinds that were planned anew, and targets that are gone or undone."""
        dead = {
            number
            for number, member in self._members.items()
            if (kind := member.kind()) is None or kind.is_forgotten or member.owner() is None
        }
        for number in dead:
            del self._members[number]
        if not dead:
            return
        kept = []
        for group in self._groups:
            group.numbers -= dead
            group.steps = {
                outline: step
                for outline, step in group.steps.items()
                if not any(run.kind in dead for run in step.runs)
            }
            if group.numbers and group.steps:
                kept.append(group)
        self._groups = kept

    def _kinds(self, group: _Group) -> dict[int, tuple[Fitted, PlannedKind]]:
        found = {}
        for number in sorted(group.numbers):
            owner = self._members[number].owner()
            assert owner is not None, "bug in legroom: a target that is gone"
            found[number] = owner, self._kind(number)
        return found

    def _kind(self, number: int) -> PlannedKind:
        kind = self._members[number].kind()
        assert kind is not None, "bug in legroom: a kind that is gone"
        return kind

    # Plans ---------------------------------------------------------------------------------------

    def _put_together(self, group: _Group) -> tuple[WholeStep, Planner] | None:
        """The whole step, and what plans it; None where that cannot be, or there is no time."""
        kinds = self._kinds(group)
        for _, kind in kinds.values():
            kind.take_densities()
        has_several = len({id(owner) for owner, _ in kinds.values()}) > 1
        captured = {
            number: CapturedKind(kind.step_plan.planner.graph, owner.label if has_several else "")
            for number, (owner, kind) in kinds.items()
        }
        if any(kind.step_plan.is_rewritten for _, kind in kinds.values()):
            group.is_left = True
            return None
        while len(group.steps) > _MOST_STEPS:
            lowest = min(group.steps, key=lambda outline: group.steps[outline].peak_bytes)
            del group.steps[lowest]
        first, *others = (kind.step_plan.planner for _, kind in kinds.values())
        steps = list(group.steps.values())
        num_operations = count_operations(steps, captured)
        compiling_s = sum(kind.compiling_s for _, kind in kinds.values())
        if not self._has_time_for(num_operations * _PLANNING_S + compiling_s, group):
            self._leave_too_large(group, num_operations)
            return None
        most_s = math.inf if self.takes_its_time else max(MOMENT_S, self._time.left_s)
        try:
            whole = compose(steps, captured)
            planner = first.over(whole.plain, whole.graph, others, most_s=most_s, load=whole.load)
            return whole, planner
        except (UnknownRunError, UsageError):
            group.is_left = True
            return None

    def _at_work(self, group: _Group, whole: WholeStep, planner: Planner) -> int | None:
        """What the plans at work take in the whole step; None where the simulator cannot tell."""
        kinds = self._kinds(group)
        programs = {number: kind.step_plan.programs for number, (_, kind) in kinds.items()}
        orders = {kind.step_plan.plan.order for _, kind in kinds.values()}
        problem = planner.problem_in(orders.pop() if len(orders) == 1 else "")
        return simulate_choice(problem, whole.choice_of(problem, programs))

    def _unexplained(self, group: _Group, step: ObservedStep, reading: PeakReading) -> int:
        """Bytes of a measured step that the simulator does not explain."""
        if step.is_first:
            return 0  # compiling left some of them, and the next step is looked at as well
        alone = _with_only(group, step)
        made = self._put_together(alone)
        if made is None:
            return 0
        explained = self._at_work(alone, *made)
        return 0 if explained is None else max(0, reading.peak_bytes - explained)

    def _plan(self, group: _Group, step: ObservedStep, reading: PeakReading) -> None:
        group.beside_bytes = max(group.beside_bytes, self._unexplained(group, step, reading))
        started = time.perf_counter()
        made = self._put_together(group)
        if made is None:
            return
        whole, planner = made
        is_new = not group.num_plans
        if group.plan is None:
            group.budget_bytes = max(group.budget_bytes, self._bytes_of(planner, group))
        plan, programs = self._within(group, planner, is_sure=not step.is_first)
        group.plan, group.planner = plan, planner
        group.num_plans += 1
        self._hand_out(group, whole, programs, time.perf_counter() - started)
        if is_new:
            for owner in {id(o): o for o, _ in self._kinds(group).values()}.values():
                self._on_planned(owner)

    def _bytes_of(self, planner: Planner, group: _Group) -> int:
        budget = self._budget
        if budget.num_bytes is not None:
            return budget.num_bytes
        inside = planner.bytes_of(budget)
        if budget.is_lowest or budget.is_free:
            inside += room_above(inside) + group.beside_bytes
        known = [each.budget_bytes for each in self._groups if each is not group]
        return max([inside, *known])

    def _within(
        self, group: _Group, planner: Planner, *, is_sure: bool
    ) -> tuple[Plan, dict[int, PieceProgram]]:
        """The plan for the group's budget; see Note [Training], rule 3."""
        kinds = self._kinds(group)
        reserved = max(kind.step_plan.reserved_bytes for _, kind in kinds.values())
        set_aside = group.beside_bytes + reserved
        try:
            return plan_within(planner, group.budget_bytes - set_aside)
        except InfeasibleBudgetError as error:
            if self._budget.num_bytes is not None and is_sure:
                raise self._refusal(group, error, planner, set_aside) from None
            lowest = planner.floor_bytes + room_above(planner.floor_bytes)
            if self._budget.share is not None and self._does_not_pay(group, planner, lowest):
                return planner.as_it_is(group.budget_bytes), {}
            if self._budget.num_bytes is None and not group.is_lowest:
                owner = next(iter(kinds.values()))[0]
                plain_bytes = planner.plain.peak_bytes + group.beside_bytes
                share = 100 * (lowest + set_aside) / max(1, plain_bytes)
                owner.say(
                    f"no plan keeps {self._budget} ({format_bytes(group.budget_bytes)}): the "
                    f"lowest is {format_bytes(lowest + set_aside)}, {share:.0f} % of the plain "
                    "step's peak. That is used"
                )
            if self._budget.num_bytes is None:
                group.is_lowest, group.budget_bytes = True, lowest + set_aside
            return plan_within(planner, lowest)

    def _does_not_pay(self, group: _Group, planner: Planner, lowest: int) -> bool:
        """Whether the lowest plan costs more than it saves; see Note [Training], rule 3."""
        kinds = self._kinds(group)
        plan, programs = plan_within(planner, lowest)
        outside_ms = max(kind.step_plan.planner.outside_ms for _, kind in kinds.values())
        beside_ms = outside_ms * len(group.steps)
        if not programs or planner.pays(plan, beside_bytes=group.beside_bytes, beside_ms=beside_ms):
            return False
        plain_bytes = planner.plain.peak_bytes + group.beside_bytes
        if not group.runs_as_it_is:
            saved_bytes = planner.plain.peak_bytes - plan.predicted_peak_bytes
            more_ms = plan.added_ms + plan.executor_ms
            saved = format_share(saved_bytes, plain_bytes)
            more = format_share(more_ms, planner.graph.step_ms + beside_ms)
            owner = next(iter(kinds.values()))[0]
            owner.say(
                f"no plan keeps {self._budget} ({format_bytes(group.budget_bytes)}): the lowest "
                f"would save {format_bytes(saved_bytes)} ({saved}) and make a step "
                f"{format_ms(more_ms)} ({more}) longer. The step runs as it is"
            )
        group.runs_as_it_is, group.budget_bytes = True, plain_bytes
        return True

    def _refusal(
        self, group: _Group, error: InfeasibleBudgetError, planner: Planner, set_aside: int
    ) -> InfeasibleBudgetError:
        floor_bytes = planner.floor_bytes
        return InfeasibleBudgetError(
            budget_bytes=group.budget_bytes,
            floor_bytes=floor_bytes + set_aside,
            largest=error.largest,
            remedies=error.remedies,
            room_bytes=room_above(floor_bytes),
        )

    def _hand_out(
        self,
        group: _Group,
        whole: WholeStep,
        programs: dict[int, PieceProgram],
        seconds: float,
    ) -> None:
        """Give each kind its part; those whose part is another than before are compiled again."""
        assert group.plan is not None, "bug in legroom: no plan"
        assert group.planner is not None, "bug in legroom: a plan without its planner"
        plan = replace(group.plan, predicted_peak_bytes=group.predicted_bytes)
        plain_bytes = group.planner.plain.peak_bytes + group.beside_bytes
        kinds = self._kinds(group)
        for number, (owner, kind) in kinds.items():
            names = whole.tensors_of.get(number, frozenset())
            own = tuple(each for each in plan.decisions if each.tensor in names)
            is_other = kind.step_plan.follow_whole(
                replace(plan, decisions=own),
                whole.programs_of(number, programs),
                budget_bytes=group.budget_bytes,
                plain_bytes=plain_bytes,
                seconds=seconds / len(kinds),
            )
            if is_other:
                group.is_fresh = True
                owner.compile_again(kind.step_plan)

    # Later steps ---------------------------------------------------------------------------------

    def _look_again(self, group: _Group, step: ObservedStep, reading: PeakReading) -> None:
        """See Note [Training], rule 4."""
        assert group.plan is not None, "bug in legroom: looking again at what was not planned"
        group.beside_bytes = self._unexplained(group, step, reading)
        made = self._put_together(group)
        if made is None:
            return
        before = group.predicted_bytes
        at_work = self._at_work(group, *made)
        now = reading.peak_bytes if at_work is None else at_work + group.beside_bytes
        is_less = now < (1 - _FASTER_SHARE) * before and group.plan.added_ms > 0
        is_sought = self._budget.is_lowest or self._budget.is_free
        if now > group.budget_bytes and not is_sought:
            self._replan(group, reading)
        elif (is_less or is_sought) and group.num_plans < _MOST_PLANS:
            if is_sought:
                group.plan, group.budget_bytes = None, 0
            self._plan(group, step, reading)
        else:
            group.plan = replace(group.plan, predicted_peak_bytes=now - group.beside_bytes)
            group.budget_bytes = max(group.budget_bytes, now if is_sought else 0)
            group.planner = made[1]
            for _, kind in self._kinds(group).values():
                plan = replace(kind.step_plan.plan, predicted_peak_bytes=now)
                kind.step_plan.plan = plan
                kind.step_plan.budget_bytes = group.budget_bytes
                kind.step_plan.whole_plain_bytes = (
                    group.planner.plain.peak_bytes + group.beside_bytes
                )

    def _replan(self, group: _Group, reading: PeakReading) -> None:
        """A step was above the budget, or its successors will be."""
        assert group.plan is not None, "bug in legroom: no plan"
        assert group.planner is not None, "bug in legroom: a plan without its planner"
        kinds = self._kinds(group)
        owner, first = next(iter(kinds.values()))
        predicted = first.step_plan.plan.predicted_peak_bytes
        is_above = reading.peak_bytes > group.budget_bytes
        too_much = BudgetExceededError(
            budget_bytes=group.budget_bytes,
            measured_bytes=reading.peak_bytes,
            predicted_bytes=predicted,
            enough_bytes=group.planner.floor_bytes
            + group.beside_bytes * 5 // 4
            + room_above(group.planner.floor_bytes),
        )
        if is_above:
            if group.num_plans > MOST_REPLANS + 1:
                owner.refuse(first, too_much)
                return
            owner.say(
                f"measured peak {format_bytes(reading.peak_bytes)} is above the budget of "
                f"{format_bytes(group.budget_bytes)} (predicted {format_bytes(predicted)}): "
                "planning again from what was seen"
            )
            for _, kind in kinds.values():
                kind.step_plan.replans += 1
        self._plan_again(group)

    def _plan_again(self, group: _Group) -> None:
        started = time.perf_counter()
        made = self._put_together(group)
        if made is None:
            return
        whole, planner = made
        group.plan, programs = self._within(group, planner, is_sure=True)
        group.planner = planner
        group.num_plans += 1
        self._hand_out(group, whole, programs, time.perf_counter() - started)


def _takes_fresh(group: _Group) -> int:
    """What the next step may take beside its plan because it compiles; once."""
    was_fresh, group.is_fresh = group.is_fresh, False
    return max(COMPILING_BYTES, group.budget_bytes // 50) if was_fresh else 0


def _more_than(step: ObservedStep, sizes: Sequence[int]) -> int:
    """What a step that begins holds beyond what is known to be there then."""
    opening = [each for each in step.as_it_repeats().holdings if each.born < 0]
    known_bytes = sum(each.num_bytes for each in opening)
    if step.is_first:  # what is let go in it may have gone already
        let_go = Counter(each.num_bytes for each in opening if each.died is not None)
        gone = let_go - Counter(sizes)
        known_bytes -= sum(num_bytes * count for num_bytes, count in gone.items())
    return sum(sizes) - known_bytes


def _with_only(group: _Group, step: ObservedStep) -> _Group:
    """The same kinds, with one step alone."""
    numbers = frozenset(run.kind for run in step.runs)
    return _Group(numbers, steps={step.outline: step}, num_plans=group.num_plans)
