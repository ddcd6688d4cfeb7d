"""The contest under one budget after the other: presets, solvers and orders; the simulator decides.

In go the captured step with its ways and times; out come the fastest choice for a budget, a bound
on any, and the leanest choice. See Note [Candidates].
"""

# Note [Candidates]
# 1. Every preset is simulated first; so is the plain step itself, as it was recorded.
# 2. For a budget, the relaxation gives a bound and a choice to round, and every preset is a start
#    for mending and filling. All of them share one archive, whose best entry is the plan.
# 3. The archive keeps what was found for other budgets, so a larger budget never costs more.
# 4. Backward in another order is a second problem with the same candidates. It is looked at where
#    some preset's peak is lower in it; the bound is the lower one of both.
# 5. Where tensors may be moved, the problem is also solved as if none could, and with several tiers
#    as if there were only the first of them, so that no plan is slower for it: the relaxation knows
#    little of when what is moved is in memory. What these find is where moving starts from.
# 6. A bound on the stash is a peak like any other: where forward ends, as much counts as taken as
#    leaves room for nothing but the stash within the budget (`reserve`). So a contest with a bound
#    on the stash is for one budget.
# 7. Presets have half of the time that is left; the first, to hold everything, is always tried.
#    So a step of very many operations has few recipes, or one, and no other order.

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import final

from legroom.capture import Graph
from legroom.errors import UsageError
from legroom.meter import TierSpeed
from legroom.plan import presets, solvers
from legroom.plan._effort import CLOSE_ENOUGH, Allowance, Effort
from legroom.plan._order import reordered
from legroom.plan._plan import PresetPoint
from legroom.plan._problem import Choice, Problem, build_problem
from legroom.plan._search import Entry, Search
from legroom.plan.solvers import BruteForce, Greedy, Milp, approach
from legroom.variants import AbstractVariant
from legroom.ways import AbstractWay, RunCost

OnProgress = Callable[[str, int, int], None]

_CAPTURED, _MEMORY = "captured", "memory"
_WORTH_REORDERING = 0.995
_CHANGED = ", changed"
_FLOOR_STEPS = 5
_FEW = 2000
"""Up to so many choices, all are tried."""
_WORK = 2_500_000
"""Simulations per budget, times the size of the problem: about five seconds."""
_SOLVING_SHARE, _FLOOR_SHARE = 0.75, 0.5
"""Of the time that is left, what solving for one budget or looking for the lowest may take."""
_PRESETS_SHARE = 0.5
"""And trying presets: those that come after that are not tried."""


@final
@dataclass(frozen=True)
class Setting:
    """What a contest is about.

    Attributes:
        graph: The captured step, with times.
        costs: Of what ways run themselves, by signature.
        speeds: Of tiers, by name.
        preset: The one recipe to follow; None: all compete, and so do solvers.
        allowance: Of time, for everything that is planned.
    """

    graph: Graph
    ways: tuple[type[AbstractWay], ...]
    variants: tuple[type[AbstractVariant], ...]
    costs: Mapping[str, RunCost] | None
    speeds: Mapping[str, TierSpeed] | None
    preset: str | None
    allowance: Allowance
    on_progress: OnProgress

    def problem_of(self, graph: Graph) -> Problem:
        """The problem of a graph: that of the setting, or in another order."""
        return build_problem(graph, self.ways, self.variants, self.costs, self.speeds)


@final
@dataclass(frozen=True)
class Reserve:
    """Room for the stash, and for nothing else, where forward ends; see Note [Candidates], rule 6.

    Attributes:
        budget_bytes: The one budget that it is for.
        stash_bytes: Most that forward may leave for backward.
    """

    budget_bytes: int
    stash_bytes: int

    def applied(self, problem: Problem) -> Problem:
        """The problem with as much taken at its turning points."""
        free_bytes = self.budget_bytes - self.stash_bytes
        fixed = problem.left_by_forward
        return replace(problem, reserved={each: free_bytes + fixed[each] for each in fixed})


@final
class Order:
    """The problem in one order of operations.

    Attributes:
        search: Looks for choices, with what is reserved.
        real: Knows of nothing that is reserved: what a choice does in truth.
    """

    def __init__(
        self, name: str, problem: Problem, reserve: Reserve | None, allowance: Allowance
    ) -> None:
        self.name = name
        self.search = self.real = Search(problem, allowance=allowance)
        if reserve is not None:
            self.search = Search(reserve.applied(problem), allowance=allowance)


@final
class Contest:
    """Finds choices for budgets; for one budget where the stash is bounded as well.

    Raises:
        UsageError: The preset does not apply to this step, with these ways.
    """

    def __init__(self, setting: Setting, reserve: Reserve | None = None) -> None:
        self._setting = setting
        self._reserve = reserve
        self._bounds: dict[int, tuple[float, bool]] = {}
        problem = setting.problem_of(setting.graph)
        self._least_s = (1 - _PRESETS_SHARE) * setting.allowance.seconds_left
        self._orders = [self._order(_CAPTURED, problem)]
        self.presets = self._try_presets()
        if setting.preset is not None:
            self._orders = [self._follow(setting.preset, problem)]
        else:
            for count in reversed(range(len(problem.moves))):
                if self._has_time:
                    fewer = problem.moving_by(problem.moves[:count])
                    self._orders.append(self._order_of_presets(fewer))

    @property
    def problem(self) -> Problem:
        """The problem in the captured order."""
        return self._orders[0].real.problem

    def problem_in(self, name: str) -> Problem:
        """The problem in the order of that name; in the captured one if there is none."""
        found = (order.real.problem for order in self._orders if order.name == name)
        return next(found, self.problem)

    def _order(self, name: str, problem: Problem) -> Order:
        return Order(name, problem, self._reserve, self._setting.allowance)

    # -- presets -------------------------------------------------------------------------------

    @property
    def _has_time(self) -> bool:
        """Whether presets may take more; see Note [Candidates], rule 7."""
        return self._setting.allowance.seconds_left >= self._least_s

    def _try_presets(self) -> tuple[PresetPoint, ...]:
        """Simulate every preset, and see whether another order of backward helps any."""
        search = self._orders[0].search
        points: list[PresetPoint] = []
        choices: list[tuple[str, Choice]] = []
        for preset in presets.all_presets():
            if points and not self._has_time:
                return tuple(points)
            outcomes = []
            for choice in preset.choices(search):
                choices.append((preset.name, choice))
                outcomes.append(search.evaluate(choice, preset.name))
            if outcomes:
                usual = outcomes[0]
                points.append(
                    PresetPoint(preset.name, preset.summary, usual.peak_bytes, usual.added_ms)
                )
        other = reordered(self._setting.graph)
        if other is not None:
            order = self._order(_MEMORY, self._setting.problem_of(other))
            helps = False
            for name, choice in choices:
                before = search.evaluate(choice, name).peak_bytes
                same = replace(choice, variants=())  # variants go by position, which is another
                helps |= order.search.evaluate(same, name).peak_bytes < _WORTH_REORDERING * before
            if helps:
                self._orders.append(order)
        return tuple(points)

    def _order_of_presets(self, problem: Problem) -> Order:
        """The problem, with every preset simulated."""
        order = self._order(_CAPTURED, problem)
        for preset in presets.all_presets():
            if order.search.archive.entries and not self._has_time:
                break
            for choice in preset.choices(order.search):
                order.search.evaluate(choice, preset.name)
        return order

    def _follow(self, name: str, problem: Problem) -> Order:
        """Only the forms of one recipe."""
        order = self._order(_CAPTURED, problem)
        for choice in presets.get(name).choices(order.search):
            order.search.evaluate(choice, name)
        if not order.search.archive.entries:
            raise UsageError(
                f"preset {name!r} changes nothing about this step with the ways that are enabled; "
                "`legroom ways` says what it needs, and at which exactness"
            )
        return order

    # -- one budget ----------------------------------------------------------------------------

    def best(self, budget_bytes: int) -> tuple[Entry, Order] | None:
        """The fastest choice for a budget that was found so far."""
        found = [
            (entry.outcome.added_ms, entry.outcome.peak_bytes, number)
            for number, order in enumerate(self._orders)
            if (entry := order.search.archive.best(budget_bytes)) is not None
        ]
        if not found:
            return None
        order = self._orders[min(found)[2]]
        entry = order.search.archive.best(budget_bytes)
        assert entry is not None, "bug in legroom: the archive forgot its best"
        return entry, order

    def entries(self) -> list[Entry]:
        """Everything worth remembering, of all orders."""
        return [entry for order in self._orders for entry in order.search.archive.entries]

    def leanest(self) -> tuple[Entry, Order]:
        """The choice with the lowest peak that was found so far."""
        order = min(self._orders, key=lambda o: o.search.archive.leanest().outcome.peak_bytes)
        return order.search.archive.leanest(), order

    def bound(self, budget_bytes: int) -> float:
        """What `solve` found no plan to be faster than; nothing where it was not asked."""
        return self._bounds.get(budget_bytes, (0.0, False))[0]

    def solve(self, budget_bytes: int, share: float = _SOLVING_SHARE) -> tuple[float, bool]:
        """Look for plans within the budget; the bound, and whether time ran out.

        Args:
            share: Of the time that is left, what this may take.
        """
        if self._setting.preset is not None:
            return 0.0, False
        if budget_bytes in self._bounds:
            return self._bounds[budget_bytes]
        known_ms = self._bound_of_larger(budget_bytes)
        if not self._is_open(known_ms, budget_bytes):
            self._bounds[budget_bytes] = known_ms, False
            return self._bounds[budget_bytes]
        allowance = self._setting.allowance
        bounds, timed_out = [], False
        for number, order in enumerate(self._orders, start=1):
            deadline = allowance.deadline(share / (len(self._orders) - number + 1))
            effort = self._effort(order, deadline, budget_bytes=budget_bytes)
            is_small = BruteForce.num_choices(order.search) <= _FEW
            verdict = (BruteForce if is_small else Milp).solve(order.search, budget_bytes, effort)
            bounds.append(verdict.bound_ms)
            timed_out |= verdict.timed_out
            if self._is_open(verdict.bound_ms, budget_bytes) and not is_small:
                self._start_from_presets(order, budget_bytes, verdict.bound_ms, deadline)
        self._move_instead(budget_bytes, allowance.deadline(share))
        self._bounds[budget_bytes] = max(known_ms, min(bounds)), timed_out
        return self._bounds[budget_bytes]

    def _bound_of_larger(self, budget_bytes: int) -> float:
        """What holds for a larger budget holds for this one: see Note [Effort], rule 2."""
        larger = (ms for size, (ms, _) in self._bounds.items() if size > budget_bytes)
        return max(larger, default=0.0)

    def _move_instead(self, budget_bytes: int, deadline: float) -> None:
        """Move what the best plan so far runs again; see Note [Candidates], rule 5."""
        first, best = self._orders[0], self.best(budget_bytes)
        if best is None or not self.problem.moves or best[1].name != first.name:
            return
        search, origin = first.search, _mended(best[0])
        effort = self._effort(first, deadline)
        choice = search.move(best[0].choice, budget_bytes, origin, effort)
        search.fill(choice, budget_bytes, origin, effort)

    def _is_open(self, bound_ms: float, budget_bytes: int) -> bool:
        """Whether there may be a plan that is worth looking for."""
        best = self.best(budget_bytes)
        if bound_ms == float("inf") or best is None:
            return bound_ms != float("inf")
        return best[0].outcome.added_ms - bound_ms > max(self._worth_ms, 1e-9)

    @property
    def _worth_ms(self) -> float:
        return CLOSE_ENOUGH * self.problem.step_ms

    def _effort(
        self, order: Order, deadline: float, share: float = 1.0, budget_bytes: int | None = None
    ) -> Effort:
        problem = order.search.problem
        size = len(problem.candidates) + len(problem.needs) + 1
        work = int(share * _WORK) // size // len(self._orders)
        rival = None if budget_bytes is None else self.best(budget_bytes)
        return Effort(
            order.search,
            max(200, work),
            deadline,
            worth_ms=self._worth_ms,
            rival_ms=float("inf") if rival is None else rival[0].outcome.added_ms,
        )

    def _start_from_presets(
        self, order: Order, budget_bytes: int, bound_ms: float, deadline: float
    ) -> None:
        """Mend and fill what presets and other budgets have found; see Note [Candidates], 2."""
        search, effort = order.search, self._effort(order, deadline, budget_bytes=budget_bytes)
        effort.bound_ms = bound_ms
        tries = effort.tries(budget_bytes)
        for start in self._starts(order, budget_bytes, effort):
            start()
            if tries.are_over():
                break
        best = search.archive.best(budget_bytes)
        if best is not None and effort.is_worth(effort.left_ms(budget_bytes)):
            choice = search.decode(best.choice, budget_bytes, _mended(best), effort)
            search.fill(choice, budget_bytes, _mended(best), effort)
            best = search.archive.best(budget_bytes) or best
            search.exchange(best.choice, budget_bytes, _mended(best), effort)

    def _starts(
        self, order: Order, budget_bytes: int, effort: Effort
    ) -> Iterator[Callable[[], object]]:
        """What to begin with: everything held, what is just above the budget, what is below it."""
        search = order.search
        yield functools.partial(Greedy.solve, search, budget_bytes, effort)
        above = [e for e in search.archive.entries if e.outcome.peak_bytes > budget_bytes]
        below = [e for e in search.archive.entries if e.outcome.peak_bytes <= budget_bytes]
        above.sort(key=lambda e: (e.outcome.peak_bytes, e.outcome.added_ms))
        below.sort(key=lambda e: (e.outcome.added_ms, e.outcome.peak_bytes))
        for change, entries in ((search.mend, above[:4]), (search.fill, below[:4])):
            for entry in entries:
                yield functools.partial(change, entry.choice, budget_bytes, _mended(entry), effort)

    # -- floor ---------------------------------------------------------------------------------

    def look_for_floor(self, top_bytes: int) -> None:
        """Close in on the lowest budget that can be solved, from the relaxation's below."""
        if self._setting.preset is not None:
            return
        deadline = self._setting.allowance.deadline(_FLOOR_SHARE)
        on_progress = self._setting.on_progress
        below = top_bytes
        for order in self._orders:
            effort = self._effort(order, deadline, share=0.5)
            for entry in sorted(order.search.archive.entries, key=lambda e: e.outcome.peak_bytes)[
                :6
            ]:
                order.search.mend(entry.choice, 0, _mended(entry), effort)
            below = min(below, self._round_leanest(order, effort))
        entry, order = self.leanest()
        leanest = entry.outcome.peak_bytes
        below = min(below, leanest)
        for step in range(_FLOOR_STEPS):
            on_progress("looking for the floor", step, _FLOOR_STEPS)
            if leanest - below <= 0.005 * leanest or effort.timed_out:
                break
            aim = (leanest + below) // 2
            effort = self._effort(order, deadline, share=0.2)
            approach(order.search, aim, effort)
            order.search.mend(order.search.archive.leanest().choice, aim, Milp.name, effort)
            reached = order.search.archive.leanest().outcome.peak_bytes
            if reached <= aim:
                leanest = reached
            else:
                leanest, below = reached, aim
        on_progress("looking for the floor", _FLOOR_STEPS, _FLOOR_STEPS)

    def _round_leanest(self, order: Order, effort: Effort) -> int:
        """Try what the relaxation would keep for the lowest peak; returns its bound on that."""
        search, relaxed = order.search, None
        if search.may_relax(effort.seconds_left):
            relaxed = search.relaxation.solve(None, time_limit_s=effort.seconds_left)
        if relaxed is None:
            return search.archive.leanest().outcome.peak_bytes
        search.mend(Choice(relaxed.options, relaxed.variants), 0, Milp.name, effort)
        return int(relaxed.bound_ms)


def _mended(entry: Entry) -> str:
    """Where a choice came from, once it has been changed."""
    origin = entry.origin.removesuffix(_CHANGED)
    return origin if origin in solvers.names() else origin + _CHANGED


def gap_of(added_ms: float, bound_ms: float, step_ms: float) -> float:
    """How much slower than the best possible plan a step can be."""
    whole = step_ms + bound_ms
    return (added_ms - bound_ms) / whole if whole > 0 else 0.0
