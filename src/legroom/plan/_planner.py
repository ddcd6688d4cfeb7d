"""The planner: presets, solvers and orders compete under a budget, and the simulator decides.

In go the plain step and the captured one, both with times; out come plans, the floor, and the
frontier between. See Note [Candidates].
"""

# Note [Candidates]
# 1. Every preset is simulated first; so is the plain step itself, as it was recorded.
# 2. For a budget, the relaxation gives a bound and a choice to round, and every preset is a start
#    for mending and filling. All of them share one archive, whose best entry is the plan.
# 3. The archive keeps what was found for other budgets, so a larger budget never costs more.
# 4. Backward in another order is a second problem with the same candidates. It is looked at where
#    some preset's peak is lower in it; the bound is the lower one of both.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from legroom.capture import STATE, Graph, Kind, Phase
from legroom.errors import InfeasibleBudgetError, UsageError
from legroom.plan import presets, solvers
from legroom.plan._allocate import Adjustable, adjustables, with_least_error
from legroom.plan._budget import Budget
from legroom.plan._explain import alive_at_peak, decisions_of, timeline_of, variants_of
from legroom.plan._order import reordered
from legroom.plan._plan import FrontierPoint, LiveTensor, Plan, PresetPoint
from legroom.plan._problem import Choice, Place, Problem, build_problem, kinds_at
from legroom.plan._program import PieceProgram, programs_of
from legroom.plan._search import Archive, Effort, Entry, Search
from legroom.plan.solvers import CLOSE_ENOUGH, BruteForce, Greedy, Milp, approach
from legroom.units import format_bytes
from legroom.variants import AbstractRewrite, AbstractVariant
from legroom.variants import names as variant_names
from legroom.ways import AbstractWay, RunCost
from legroom.ways import names as way_names

OnProgress = Callable[[str, int, int], None]

_CAPTURED, _MEMORY = "captured", "memory"
_WORTH_REORDERING = 0.995
_CHANGED = ", changed"
_PLAIN = "plain"
_FLOOR_STEPS = 5
_FREE_SHARE = 0.02
_SURE_GAIN = 0.5
_FREE_STRIDES, _FREE_RESOLUTION = 8, 50
_FEW = 2000
"""Up to so many choices, all are tried."""
_WORK = 2_500_000
"""Simulations per budget, times the size of the problem: about five seconds."""


@final
@dataclass(frozen=True, slots=True)
class PlainStep:
    """What the simulator predicts for the step as eager PyTorch runs it.

    Attributes:
        state_bytes: Weights, gradients and optimizer state, the largest that they are together.
        phase_peaks: The peak of each phase.
        kinds: What is alive at the peak.
    """

    peak_bytes: int
    state_bytes: int
    phase_peaks: dict[str, int]
    kinds: dict[Kind, int]


def simulate_plain(graph: Graph) -> PlainStep:
    """Go through the lives that were recorded."""
    during = build_problem(graph, ()).base_during
    if not during:
        return PlainStep(0, 0, {}, {})
    position = max(range(len(during)), key=lambda p: (during[p], -p))
    peaks: dict[str, int] = {}
    for op in graph.operations:
        phase = "forward" if op.is_forward else op.phase.value
        peaks[phase] = max(peaks.get(phase, 0), during[op.index])
    return PlainStep(during[position], _state_bytes(graph), peaks, kinds_at(graph, position))


def _state_bytes(graph: Graph) -> int:
    """What stays when activations are gone: given from before, and every weight's gradient."""
    return sum(
        tensor.num_bytes
        for tensor in graph.tensors
        if tensor.kind in STATE and (tensor.producer < 0 or tensor.kind is Kind.GRADIENTS)
    )


@final
class _Order:
    """The problem in one order of operations."""

    def __init__(self, name: str, problem: Problem, archive: Archive) -> None:
        self.name = name
        self.search = Search(problem, archive)


@final
class Planner:
    """Plans one captured step for any number of budgets.

    Args:
        plain: The step as eager PyTorch runs it.
        planned: The captured step, with times.
        rewrites: What was done to the graph where it applied; named, not decided.
        costs: Of what ways run themselves, by signature.
        rewrite_ms: What rewrites in reserve add to the step, whatever is chosen.
        preset: The one recipe to follow; None: all compete, and so do solvers.
        time_limit_s: Longest time to solve for one budget.
        on_progress: Called with a stage, how much of it is done, and how much there is.
    """

    def __init__(  # noqa: PLR0913 - what a plan depends on
        self,
        plain: Graph,
        planned: Graph,
        *,
        ways: tuple[type[AbstractWay], ...],
        variants: tuple[type[AbstractVariant], ...],
        rewrites: tuple[type[AbstractRewrite], ...] = (),
        costs: Mapping[str, RunCost] | None = None,
        rewrite_ms: float = 0.0,
        exactness: str = "bitwise",
        preset: str | None = None,
        time_limit_s: float = 30.0,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.plain = simulate_plain(plain)
        self.graph = planned
        self._gained_ms = plain.step_ms - planned.step_ms
        self._exactness = exactness
        self._time_limit_s = time_limit_s
        self._on_progress = on_progress or (lambda stage, done, total: None)
        self._ways, self._variants, self._rewrites = ways, variants, rewrites
        self._costs, self.rewrite_ms = costs, rewrite_ms
        problem = build_problem(planned, ways, variants, costs)
        self._orders = [_Order(_CAPTURED, problem, Archive())]
        self._bounds: dict[int, tuple[float, bool]] = {}
        self._presets = self._try_presets()
        self._preset = preset
        self._sensitivity: dict[Place, float] = {}
        self._allocated: dict[tuple[Choice, int], Entry] = {}
        if preset is not None:
            self._orders = [self._follow(preset, problem)]
        self._floor_bytes: int | None = None

    @property
    def problem(self) -> Problem:
        """The problem in the captured order."""
        return self._orders[0].search.problem

    @property
    def technique_names(self) -> tuple[str, ...]:
        """Names of the ways, variants and rewrites that may be used."""
        return tuple(each.name for each in (*self._ways, *self._variants, *self._rewrites))

    # -- presets -------------------------------------------------------------------------------

    def _try_presets(self) -> tuple[PresetPoint, ...]:
        """Simulate every preset, and see whether another order of backward helps any."""
        search = self._orders[0].search
        points, choices = [], []
        for preset in presets.all_presets():
            outcomes = []
            for choice in preset.choices(search):
                choices.append((preset.name, choice))
                outcomes.append(search.evaluate(choice, preset.name))
            if outcomes:
                usual = outcomes[0]
                points.append(
                    PresetPoint(preset.name, preset.summary, usual.peak_bytes, usual.added_ms)
                )
        other = reordered(self.graph)
        if other is not None:
            problem = build_problem(other, self._ways, self._variants, self._costs)
            order = _Order(_MEMORY, problem, Archive())
            helps = False
            for name, choice in choices:
                before = search.evaluate(choice, name).peak_bytes
                same = replace(choice, variants=())  # variants go by position, which is another
                helps |= order.search.evaluate(same, name).peak_bytes < _WORTH_REORDERING * before
            if helps:
                self._orders.append(order)
        return (
            PresetPoint(_PLAIN, "PyTorch as it is", self.plain.peak_bytes, 0.0),
            *points,
        )

    def _follow(self, name: str, problem: Problem) -> _Order:
        """Only the forms of one recipe.

        Raises:
            UsageError: It does not apply to this step, with these ways.
        """
        order = _Order(_CAPTURED, problem, Archive())
        for choice in presets.get(name).choices(order.search):
            order.search.evaluate(choice, name)
        if not order.search.archive.entries:
            raise UsageError(
                f"preset {name!r} changes nothing about this step with the ways that are enabled; "
                "`legroom ways` says what it needs, and at which exactness"
            )
        return order

    @property
    def presets(self) -> tuple[PresetPoint, ...]:
        """What each recipe reaches on this graph, in its usual form."""
        return self._presets

    def bytes_of(self, budget: Budget) -> int:
        """What a budget means for this step."""
        if budget.is_floor:
            return self.floor_bytes
        if budget.is_free:
            return self.free_bytes
        return budget.resolve(self.plain.peak_bytes, self.plain.state_bytes)

    # -- one budget ----------------------------------------------------------------------------

    def _best(self, budget_bytes: int) -> tuple[Entry, _Order] | None:
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

    def _chosen(self, budget_bytes: int) -> tuple[Entry, _Order] | None:
        """The best, with its bits where they matter."""
        best = self._best(budget_bytes)
        if best is None or not self._sensitivity:
            return best
        entry, order = best
        key = (entry.choice, budget_bytes)
        if key not in self._allocated:
            self._allocated[key] = with_least_error(
                order.search,
                entry,
                budget_bytes,
                self._sensitivity,
                holds_no_more=self._preset is not None,
            )
        return self._allocated[key], order

    def adjustables(self, budget_bytes: int) -> list[Adjustable]:
        """What the plan for a budget holds with an error, and in which other forms it could be."""
        best = self._chosen(budget_bytes)
        return [] if best is None else adjustables(best[1].search, best[0].choice)

    def allocate(self, sensitivity: Mapping[Place, float]) -> None:
        """From now on, plans hold what gradients depend on with more bits; see Note [Allocation].

        Args:
            sensitivity: By tensor: the square of the gradients' relative error, over that of the
                tensor's own. Nothing: plans are as before.
        """
        self._sensitivity = dict(sensitivity)
        self._allocated = {}

    def _solve(self, budget_bytes: int) -> tuple[float, bool]:
        """Look for plans within the budget; the bound, and whether time ran out."""
        if self._preset is not None:
            return 0.0, False
        if budget_bytes in self._bounds:
            return self._bounds[budget_bytes]
        started = time.monotonic()
        bounds, timed_out = [], False
        for number, order in enumerate(self._orders, start=1):
            share = self._time_limit_s * number / len(self._orders)
            effort = self._effort(order, started + share)
            solver = BruteForce if BruteForce.num_choices(order.search) <= _FEW else Milp
            verdict = solver.solve(order.search, budget_bytes, effort)
            bounds.append(verdict.bound_ms)
            timed_out |= verdict.timed_out
            if self._is_open(verdict.bound_ms, budget_bytes):
                self._start_from_presets(order, budget_bytes, verdict.bound_ms, started + share)
        self._bounds[budget_bytes] = min(bounds), timed_out
        return self._bounds[budget_bytes]

    def _is_open(self, bound_ms: float, budget_bytes: int) -> bool:
        """Whether there may be a plan that is worth looking for."""
        best = self._best(budget_bytes)
        if bound_ms == float("inf") or best is None:
            return bound_ms != float("inf")
        return _gap(best[0].outcome.added_ms, bound_ms, self.problem.step_ms) > CLOSE_ENOUGH

    def _effort(self, order: _Order, deadline: float, share: float = 1.0) -> Effort:
        problem = order.search.problem
        size = len(problem.candidates) + len(problem.needs) + 1
        work = int(share * _WORK) // size // len(self._orders)
        return Effort(order.search, max(200, work), deadline)

    def _start_from_presets(
        self, order: _Order, budget_bytes: int, bound_ms: float, deadline: float
    ) -> None:
        """Mend and fill what presets and other budgets have found; see Note [Candidates], 2."""
        search, effort = order.search, self._effort(order, deadline)
        Greedy.solve(search, budget_bytes, effort)
        above = [e for e in search.archive.entries if e.outcome.peak_bytes > budget_bytes]
        below = [e for e in search.archive.entries if e.outcome.peak_bytes <= budget_bytes]
        above.sort(key=lambda e: (e.outcome.peak_bytes, e.outcome.added_ms))
        below.sort(key=lambda e: (e.outcome.added_ms, e.outcome.peak_bytes))
        for entry in above[:4]:
            search.mend(entry.choice, budget_bytes, _mended(entry), effort)
        for entry in below[:4]:
            search.fill(entry.choice, budget_bytes, _mended(entry), effort)
        best = search.archive.best(budget_bytes)
        if best is not None and best.outcome.added_ms > bound_ms + 1e-9:
            choice = search.decode(best.choice, budget_bytes, _mended(best), effort)
            search.fill(choice, budget_bytes, _mended(best), effort)
            best = search.archive.best(budget_bytes) or best
            search.exchange(best.choice, budget_bytes, _mended(best), effort)

    def plan(self, budget_bytes: int) -> Plan:
        """The best plan for a budget.

        Raises:
            InfeasibleBudgetError: No plan fits; says what the lowest budget is.
        """
        started = time.monotonic()
        if budget_bytes >= self.plain.peak_bytes and self._best(budget_bytes) is None:
            return self._plain_plan(budget_bytes)
        bound_ms, timed_out = self._solve(budget_bytes)
        best = self._chosen(budget_bytes)
        if best is None:
            if budget_bytes >= self.plain.peak_bytes:
                return self._plain_plan(budget_bytes)
            if self.floor_bytes > budget_bytes:
                raise self._infeasible(budget_bytes)
            best = self._chosen(budget_bytes)  # found while looking for the floor
            assert best is not None, "bug in legroom: the archive forgot its leanest"
        entry, order = best
        added_ms = entry.outcome.added_ms
        saves = entry.outcome.peak_bytes < self.plain.peak_bytes
        if budget_bytes >= self.plain.peak_bytes and (added_ms > 0 or not saves):
            return self._plain_plan(budget_bytes)
        problem = order.search.problem
        bound_ms = min(bound_ms, added_ms)
        return Plan(
            budget_bytes=budget_bytes,
            predicted_peak_bytes=entry.outcome.peak_bytes,
            added_ms=added_ms + self.rewrite_ms,
            bound_ms=bound_ms + self.rewrite_ms,
            gap=_gap(added_ms, bound_ms, problem.step_ms),
            preset=entry.origin,
            exactness=self._exactness,
            order=order.name,
            solve_s=time.monotonic() - started,
            timed_out=timed_out,
            peak_phase=problem.graph.operations[entry.outcome.peak_position].phase.value,
            decisions=decisions_of(order.search, entry.choice),
            variants=variants_of(problem, entry.choice),
            alive_at_peak=alive_at_peak(order.search, entry.choice),
            timeline=timeline_of(order.search, entry.choice),
            phases=_phases(problem.graph),
        )

    def programs(self, budget_bytes: int) -> dict[int, PieceProgram]:
        """What each piece does under the plan for this budget; nothing where the plan is plain."""
        if self.plan(budget_bytes).preset == _PLAIN:
            return {}
        best = self._chosen(budget_bytes)
        assert best is not None, "bug in legroom: a plan without a choice"
        return programs_of(best[1].search, best[0].choice)

    def _plain_plan(self, budget_bytes: int) -> Plan:
        return Plan(
            budget_bytes=budget_bytes,
            predicted_peak_bytes=self.plain.peak_bytes,
            added_ms=0.0,
            bound_ms=0.0,
            gap=0.0,
            preset=_PLAIN,
            exactness=self._exactness,
        )

    def _infeasible(self, budget_bytes: int) -> InfeasibleBudgetError:
        floor_bytes = self.floor_bytes
        best = self._best(floor_bytes)
        alive: tuple[LiveTensor, ...] = ()
        if best is not None:
            alive = alive_at_peak(best[1].search, best[0].choice)
        return InfeasibleBudgetError(
            budget_bytes=budget_bytes,
            floor_bytes=floor_bytes,
            largest=tuple(f"{format_bytes(each.num_bytes)} {each.name}" for each in alive[:5]),
            remedies=self._remedies(),
        )

    def _remedies(self) -> tuple[str, ...]:
        """Ways that are not enabled; none where all are."""
        enabled = {each.name for each in (*self._ways, *self._variants, *self._rewrites)}
        left = [name for name in (*way_names(), *variant_names()) if name not in enabled]
        return (f"enabling {', '.join(left)}",) if left else ()

    # -- floor and frontier --------------------------------------------------------------------

    @property
    def floor_bytes(self) -> int:
        """The lowest peak that a plan reaches, as far as the search can tell."""
        if self._floor_bytes is None:
            is_searched = self._preset is None
            self._floor_bytes = self._find_floor() if is_searched else self.plain.peak_bytes
        leanest = min(order.search.archive.leanest().outcome.peak_bytes for order in self._orders)
        return min(self._floor_bytes, leanest, self.plain.peak_bytes)

    @property
    def free_bytes(self) -> int:
        """The lowest peak for which a plan adds next to no time, as far as the search can tell.

        Next to none is 2 % of the step: steps differ by more from one to the next. Where fused
        operations take less time than plain PyTorch's, half of that may be spent as well: what is
        gained operation by operation is not all gained in a step.
        """
        top, floor = self.plain.peak_bytes, min(self.plain.state_bytes, self.plain.peak_bytes)
        self._solve(top)
        stride = (top - floor) // _FREE_STRIDES
        while stride > (top - floor) // _FREE_RESOLUTION:
            lowest = self._lowest_free_bytes()
            self._solve(lowest - stride)
            if self._lowest_free_bytes() > lowest - stride:
                stride //= 2
        return self._lowest_free_bytes()

    def _lowest_free_bytes(self) -> int:
        most_ms = _FREE_SHARE * self.problem.step_ms + max(0.0, _SURE_GAIN * self._gained_ms)
        free = [
            entry.outcome.peak_bytes
            for order in self._orders
            for entry in order.search.archive.entries
            if entry.outcome.added_ms <= most_ms
        ]
        return min([*free, self.plain.peak_bytes])

    def _find_floor(self) -> int:
        """Close in on the lowest budget that can be solved, from the relaxation's below."""
        deadline = time.monotonic() + self._time_limit_s / 2
        below = self.plain.peak_bytes
        for order in self._orders:
            effort = self._effort(order, deadline, share=0.5)
            for entry in sorted(order.search.archive.entries, key=lambda e: e.outcome.peak_bytes)[
                :6
            ]:
                order.search.mend(entry.choice, 0, _mended(entry), effort)
            below = min(below, self._round_leanest(order, effort))
        order = min(self._orders, key=lambda o: o.search.archive.leanest().outcome.peak_bytes)
        leanest = order.search.archive.leanest().outcome.peak_bytes
        below = min(below, leanest)
        for step in range(_FLOOR_STEPS):
            self._on_progress("looking for the floor", step, _FLOOR_STEPS)
            if leanest - below <= 0.005 * leanest or time.monotonic() >= deadline:
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
        self._on_progress("looking for the floor", _FLOOR_STEPS, _FLOOR_STEPS)
        return order.search.archive.leanest().outcome.peak_bytes

    def _round_leanest(self, order: _Order, effort: Effort) -> int:
        """Try what the relaxation would keep for the lowest peak; returns its bound on that."""
        search = order.search
        relaxed = search.relaxation.solve(None, time_limit_s=self._time_limit_s / 2)
        if relaxed is None:
            return search.archive.leanest().outcome.peak_bytes
        search.mend(Choice(relaxed.options, relaxed.variants), 0, Milp.name, effort)
        return int(relaxed.bound_ms)

    def frontier(self, num_points: int) -> tuple[FrontierPoint, ...]:
        """Plans from the plain peak down to the floor, evenly spread, each as good as can be."""
        if num_points <= 0:
            return ()
        top, floor = self.plain.peak_bytes, self.floor_bytes
        last = max(1, num_points - 1)
        budgets = [top - (top - floor) * number // last for number in range(num_points)]
        for number, budget_bytes in enumerate(budgets):
            self._on_progress("planning", number, len(budgets))
            if budget_bytes < top:
                self._solve(budget_bytes)
        self._on_progress("planning", len(budgets), len(budgets))
        return tuple(self._point(budget_bytes) for budget_bytes in budgets)

    def _point(self, budget_bytes: int) -> FrontierPoint:
        """The archive knows more by now than when the budget was solved: ask it again."""
        best = self._best(budget_bytes)
        bound_ms, _ = self._bounds.get(budget_bytes, (0.0, False))
        if best is None or (budget_bytes >= self.plain.peak_bytes and best[0].outcome.added_ms > 0):
            return FrontierPoint(budget_bytes, self.plain.peak_bytes, 0.0, 0.0, 0.0, _PLAIN)
        outcome = best[0].outcome
        bound_ms = min(bound_ms, outcome.added_ms)
        return FrontierPoint(
            budget_bytes,
            outcome.peak_bytes,
            outcome.added_ms + self.rewrite_ms,
            bound_ms + self.rewrite_ms,
            _gap(outcome.added_ms, bound_ms, self.problem.step_ms),
            best[0].origin,
        )


def _mended(entry: Entry) -> str:
    """Where a choice came from, once it has been changed."""
    origin = entry.origin.removesuffix(_CHANGED)
    return origin if origin in solvers.names() else origin + _CHANGED


def _gap(added_ms: float, bound_ms: float, step_ms: float) -> float:
    whole = step_ms + bound_ms
    return (added_ms - bound_ms) / whole if whole > 0 else 0.0


def _phases(graph: Graph) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for op in graph.operations:
        phase = Phase.FORWARD.value if op.is_forward else op.phase.value
        if not found or found[-1][0] != phase:
            found.append((phase, op.index))
    return tuple(found)
