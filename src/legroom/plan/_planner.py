"""The planner: what a step fits into, at what cost, for any number of budgets.

In go the plain step and the captured one, both with times; out come plans, the floor, and the
frontier between. Who competes for a plan, and how, is in `_contest`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from legroom.capture import STATE, Graph, Kind, Phase
from legroom.errors import InfeasibleBudgetError, InfeasibleStashError
from legroom.meter import TierSpeed
from legroom.plan._allocate import Adjustable, adjustables, with_least_error
from legroom.plan._budget import Budget
from legroom.plan._contest import Contest, OnProgress, Order, Reserve, Setting, gap_of
from legroom.plan._effort import Allowance
from legroom.plan._executor_time import ExecutorLoad, ExecutorTime
from legroom.plan._explain import alive_at_peak, decisions_of, timeline_of, variants_of
from legroom.plan._options import allowed_ways
from legroom.plan._plan import FrontierPoint, LiveTensor, Plan, PresetPoint
from legroom.plan._problem import Choice, Place, Problem, build_problem, kinds_at
from legroom.plan._program import PieceProgram, programs_of
from legroom.plan._search import Entry
from legroom.units import format_bytes
from legroom.variants import AbstractRewrite, AbstractVariant
from legroom.ways import AbstractWay, Disk, Exactness, Host, RunCost

_PLAIN = "plain"
_FREE_SHARE = 0.02
_SURE_GAIN = 0.5
_FREE_STRIDES, _FREE_RESOLUTION = 8, 50
_FREE_TIME_SHARE = 0.2
"""Of the time that is left, what each of those budgets may take."""
_MOST_NAMED = 3
_USUAL_SECONDS = 30.0


@final
@dataclass(frozen=True, slots=True)
class PlainStep:
    """What the simulator predicts for the step as eager PyTorch runs it.

    Attributes:
        state_bytes: Weights, gradients and optimizer state, the largest that they are together.
        beside_bytes: Alive all along and touched by no operation: a data set, another model.
        stash_bytes: The most that forward leaves for backward.
        phase_peaks: The peak of each phase.
        kinds: What is alive at the peak.
        peak_phase: The phase in which the peak is.
    """

    peak_bytes: int
    state_bytes: int
    beside_bytes: int
    stash_bytes: int
    phase_peaks: dict[str, int]
    kinds: dict[Kind, int]
    peak_phase: Phase = Phase.OTHER

    @property
    def staying_bytes(self) -> int:
        """What is there with or without activations, so that a share of them leaves it whole."""
        return self.state_bytes + self.beside_bytes


def simulate_plain(graph: Graph) -> PlainStep:
    """Go through the lives that were recorded."""
    problem = build_problem(graph, ())
    during = problem.base_during
    if not during:
        return PlainStep(0, 0, 0, 0, {}, {})
    position = max(range(len(during)), key=lambda p: (during[p], -p))
    peaks: dict[str, int] = {}
    for op in graph.operations:
        phase = "forward" if op.is_forward else op.phase.value
        peaks[phase] = max(peaks.get(phase, 0), during[op.index])
    stashes = [kinds_at(graph, turn).get(Kind.STASH, 0) for turn in problem.left_by_forward]
    return PlainStep(
        peak_bytes=during[position],
        state_bytes=_state_bytes(graph),
        beside_bytes=_beside_bytes(graph),
        stash_bytes=max(stashes, default=0),
        phase_peaks=peaks,
        kinds=kinds_at(graph, position),
        peak_phase=graph.operations[position].phase,
    )


def _state_bytes(graph: Graph) -> int:
    """What stays when activations are gone: given from before, and every weight's gradient."""
    return sum(
        tensor.num_bytes
        for tensor in graph.tensors
        if tensor.kind in STATE and (tensor.producer < 0 or tensor.kind is Kind.GRADIENTS)
    )


def _beside_bytes(graph: Graph) -> int:
    touched = {index for op in graph.operations for index in (*op.reads, *op.updates)}
    return sum(
        tensor.num_bytes
        for tensor in graph.tensors
        if tensor.producer < 0 and tensor.kind not in STATE and tensor.released_after is None
        if tensor.index not in touched
    )


@final
class Planner:
    """Plans one captured step for any number of budgets.

    Args:
        plain: The step as eager PyTorch runs it.
        planned: The captured step, with times.
        rewrites: What was done to the graph where it applied; named, not decided.
        costs: Of what ways run themselves, by signature.
        speeds: Of tiers, by name; nothing is moved to one that is missing.
        rewrite_ms: What rewrites in reserve add to the step, whatever is chosen.
        as_written_ms: What the step takes without rewrites; None where there are none.
        preset: The one recipe to follow; None: all compete, and so do solvers.
        stash: Bound on what forward leaves for backward, in bytes or as a share of what it leaves
            in the plain step; None: only the peak is bounded. Holds for `plan` and `programs`;
            floor and frontier are those of the peak alone.
        is_described: Whether the device is another machine's, whose disk is not known.
        is_compiled: Whether planned steps run with compiled kernels: a plan that adds no time is
            then better than the step as it is, though it may save nothing.
        executor: What legroom's own executor takes; see Note [Executor time].
        load: How much of the step goes through it; None: what the graph shows.
        lost: Milliseconds for each operation that the captured step takes longer than plain
            PyTorch's own operations; 0: what the graphs show.
        allowance: Of time, for everything that is planned; None: 30 s.
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
        speeds: Mapping[str, TierSpeed] | None = None,
        rewrite_ms: float = 0.0,
        as_written_ms: float | None = None,
        exactness: str = "bitwise",
        preset: str | None = None,
        stash: Budget | None = None,
        is_described: bool = False,
        is_compiled: bool = False,
        executor: ExecutorTime | None = None,
        load: ExecutorLoad | None = None,
        lost: float = 0.0,
        allowance: Allowance | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.plain = simulate_plain(plain)
        self.graph = planned
        self._gained_ms = plain.step_ms - planned.step_ms
        self._exactness, self._is_described = exactness, is_described
        self._is_compiled = is_compiled
        self._on_progress = on_progress or (lambda stage, done, total: None)
        self._techniques = (*ways, *variants, *rewrites)
        self._rewrites, self._stash = rewrites, stash
        self.rewrite_ms, self.as_written_ms = rewrite_ms, as_written_ms
        self._executor = executor or ExecutorTime()
        own_load = load or ExecutorLoad.of(planned)
        lost_ms = 0.0 if is_compiled else max(0.0, -self._gained_ms)
        self._lost = lost or lost_ms / max(1, own_load.num_operations)
        self.executor_ms = self._executor.of(own_load) + self._lost * own_load.num_operations
        self.allowance = allowance or Allowance(_USUAL_SECONDS)
        self._setting = Setting(
            graph=planned,
            ways=ways,
            variants=variants,
            costs=costs,
            speeds=speeds,
            preset=preset,
            allowance=self.allowance,
            on_progress=self._on_progress,
        )
        with self.allowance.running():
            self._contest = Contest(self._setting)
        self.stash_bytes = None if stash is None else stash.resolve(self.plain.stash_bytes, 0)
        self._within_stash: dict[int, Contest] = {}
        self._sensitivity: dict[Place, float] = {}
        self._allocated: dict[tuple[Choice, int], Entry] = {}
        self._has_floor = False

    def over(
        self,
        plain: Graph,
        planned: Graph,
        beside: Sequence[Planner] = (),
        *,
        most_s: float = math.inf,
        load: ExecutorLoad | None = None,
    ) -> Planner:
        """A planner of another graph, with all that is known of ways here.

        Args:
            plain: The step as eager PyTorch runs it.
            planned: What is to be planned.
            beside: Planners of further parts of it, of which the same is known.
            most_s: How long planning it may take, where that is less than here.
            load: How much of it goes through the executor; None: what `planned` shows.
        """
        setting, parts = self._setting, (self, *beside)
        return Planner(
            plain,
            planned,
            ways=setting.ways,
            variants=setting.variants,
            rewrites=self._rewrites,
            costs={k: v for each in parts for k, v in (each._setting.costs or {}).items()},
            speeds=setting.speeds,
            rewrite_ms=sum(each.rewrite_ms for each in parts),
            exactness=self._exactness,
            preset=setting.preset,
            stash=self._stash,
            is_described=self._is_described,
            is_compiled=self._is_compiled,
            allowance=setting.allowance.at_most(most_s),
            executor=self._executor,
            load=load,
            lost=sum(each._lost for each in parts) / len(parts),
            on_progress=self._on_progress,
        )

    def problem_in(self, order: str) -> Problem:
        """The problem in the order of a plan; in the captured one if there is no such order."""
        return self._contest.problem_in(order)

    @property
    def problem(self) -> Problem:
        """The problem in the captured order."""
        return self._contest.problem

    @property
    def technique_names(self) -> tuple[str, ...]:
        """Names of the ways, variants and rewrites that may be used."""
        return tuple(each.name for each in self._techniques)

    @property
    def presets(self) -> tuple[PresetPoint, ...]:
        """What each recipe reaches on this graph, in its usual form."""
        plain = PresetPoint(_PLAIN, "PyTorch as it is", self.plain.peak_bytes, 0.0)
        return (
            plain,
            *(
                replace(point, added_ms=point.added_ms + self.rewrite_ms)
                for point in self._contest.presets
            ),
        )

    def bytes_of(self, budget: Budget) -> int:
        """What a budget means for this step."""
        if budget.is_lowest:
            return self.floor_bytes
        if budget.is_free:
            return self.free_bytes
        return budget.resolve(self.plain.peak_bytes, self.plain.staying_bytes)

    # -- one budget ----------------------------------------------------------------------------

    def _contest_for(self, budget_bytes: int) -> Contest:
        """Where plans for a budget are looked for; see Note [Candidates], rule 6."""
        if self.stash_bytes is None:
            return self._contest
        if budget_bytes not in self._within_stash:
            reserve = Reserve(budget_bytes, self.stash_bytes)
            self._within_stash[budget_bytes] = Contest(self._setting, reserve)
        return self._within_stash[budget_bytes]

    def _chosen(self, budget_bytes: int) -> tuple[Entry, Order] | None:
        """The best, with its bits where they matter."""
        best = self._contest_for(budget_bytes).best(budget_bytes)
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
                holds_no_more=self._setting.preset is not None,
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

    def fits_as_it_is(self, budget_bytes: int) -> bool:
        """Whether the plain step keeps to the bounds."""
        stash_fits = self.stash_bytes is None or self.plain.stash_bytes <= self.stash_bytes
        return budget_bytes >= self.plain.peak_bytes and stash_fits

    def as_it_is(self, budget_bytes: int) -> Plan:
        """The plan that leaves the step as PyTorch runs it; it has no programs."""
        return Plan(
            budget_bytes=budget_bytes,
            predicted_peak_bytes=self.plain.peak_bytes,
            stash_bytes=self.plain.stash_bytes,
            added_ms=0.0,
            bound_ms=0.0,
            gap=0.0,
            preset=_PLAIN,
            exactness=self._exactness,
        )

    def plan(self, budget_bytes: int) -> Plan:
        """The best plan for a budget.

        Raises:
            InfeasibleBudgetError: No plan fits; says what the lowest budget is.
            InfeasibleStashError: No plan within the budget keeps so little for backward.
        """
        with self.allowance.running():
            return self._plan(budget_bytes)

    def _plan(self, budget_bytes: int) -> Plan:
        started = time.monotonic()
        contest = self._contest_for(budget_bytes)
        fits_as_it_is = self.fits_as_it_is(budget_bytes)
        if fits_as_it_is and contest.best(budget_bytes) is None:
            return self.as_it_is(budget_bytes)
        bound_ms, timed_out = contest.solve(budget_bytes)
        best = self._chosen(budget_bytes)
        if best is None:
            if fits_as_it_is:
                return self.as_it_is(budget_bytes)
            self._look_for_floor_of(contest, budget_bytes)
            best = self._chosen(budget_bytes)
            assert best is not None, "bug in legroom: the archive forgot its leanest"
        entry, order = best
        outcome = order.real.simulator.run(entry.choice)
        gains = outcome.peak_bytes < self.plain.peak_bytes or self._is_compiled
        is_free = outcome.added_ms <= 0 and self.executor_ms <= self._sure_gain_ms
        is_better = self._setting.preset is not None or (is_free and gains)
        if fits_as_it_is and not is_better:
            return self.as_it_is(budget_bytes)
        problem = order.real.problem
        bound_ms = min(bound_ms, outcome.added_ms)
        return Plan(
            budget_bytes=budget_bytes,
            predicted_peak_bytes=outcome.peak_bytes,
            added_ms=outcome.added_ms + self.rewrite_ms,
            bound_ms=bound_ms + self.rewrite_ms,
            gap=gap_of(outcome.added_ms, bound_ms, problem.step_ms),
            preset=entry.origin,
            exactness=self._exactness,
            order=order.name,
            solve_s=time.monotonic() - started,
            timed_out=timed_out,
            peak_phase=problem.graph.operations[outcome.peak_position].phase.value,
            stash_bytes=order.real.simulator.stash_bytes(entry.choice),
            executor_ms=self.executor_ms,
            decisions=decisions_of(order.real, entry.choice),
            variants=variants_of(problem, entry.choice),
            alive_at_peak=alive_at_peak(order.real, entry.choice),
            timeline=timeline_of(order.real, entry.choice),
            phases=_phases(problem.graph),
        )

    @property
    def outside_ms(self) -> float:
        """What the step takes outside of what is planned: the update, above all."""
        return sum(op.time_ms for op in self.graph.operations if op.piece < 0)

    def pays(self, plan: Plan, *, beside_bytes: int = 0, beside_ms: float = 0.0) -> bool:
        """Whether a plan saves a larger share of the peak than it adds to the time of the step.

        A recipe that was asked for, and compiled kernels, are wanted for themselves.

        Args:
            beside_bytes: What the peak is higher than the graph shows, with and without a plan.
            beside_ms: What the step takes longer.
        """
        if self._is_compiled or self._setting.preset is not None or self.stash_bytes is not None:
            return True
        saved_bytes = self.plain.peak_bytes - plan.predicted_peak_bytes
        saved = saved_bytes / max(1, self.plain.peak_bytes + beside_bytes)
        more_ms = plan.added_ms + plan.executor_ms
        step_ms = self.graph.step_ms - self.rewrite_ms + beside_ms
        return more_ms <= max(0.0, saved) * step_ms

    def programs(self, budget_bytes: int) -> dict[int, PieceProgram]:
        """What each piece does under the plan for this budget; nothing where the plan is plain."""
        if self.plan(budget_bytes).preset == _PLAIN:
            return {}
        best = self._chosen(budget_bytes)
        assert best is not None, "bug in legroom: a plan without a choice"
        return programs_of(best[1].real, best[0].choice)

    def _look_for_floor_of(self, contest: Contest, budget_bytes: int) -> None:
        """See whether looking for the lowest peak finds what fits.

        Raises:
            InfeasibleBudgetError: It does not, with the peak alone.
            InfeasibleStashError: It does not, with the bound on the stash.
        """
        if self.floor_bytes > budget_bytes:
            raise self._infeasible(budget_bytes)
        if contest is self._contest:
            return
        contest.look_for_floor(self.plain.peak_bytes)
        entry, order = contest.leanest()
        if entry.outcome.peak_bytes > budget_bytes:
            assert self.stash_bytes is not None, "bug in legroom: a contest for no bound"
            raise InfeasibleStashError(
                stash_bytes=self.stash_bytes,
                least_bytes=order.real.simulator.stash_bytes(entry.choice),
                budget_bytes=budget_bytes,
                remedies=self._remedies(),
            )

    def _infeasible(self, budget_bytes: int) -> InfeasibleBudgetError:
        floor_bytes = self.floor_bytes
        best = self._contest.best(floor_bytes)
        alive: tuple[LiveTensor, ...] = ()
        phase = self.plain.peak_phase
        kinds = {kind.value: num_bytes for kind, num_bytes in self.plain.kinds.items()}
        if best is not None:
            entry, order = best
            alive = alive_at_peak(order.real, entry.choice)
            position = order.real.simulator.run(entry.choice).peak_position
            phase = order.real.problem.graph.operations[position].phase
            kinds = _bytes_by_kind(alive)
        return InfeasibleBudgetError(
            budget_bytes=budget_bytes,
            floor_bytes=floor_bytes,
            plain_bytes=self.plain.peak_bytes,
            largest=tuple(f"{format_bytes(each.num_bytes)} {each.name}" for each in alive[:5]),
            state_bytes=sum(kinds.get(kind.value, 0) for kind in STATE),
            is_in_update=phase is Phase.OPTIMIZER,
            remedies=self._remedies(),
        )

    def _remedies(self) -> tuple[str, ...]:
        """What would let plans use more, as it is written; nothing that is in use already."""
        enabled, exactness = set(self.technique_names), Exactness(self._exactness)
        left_out = [name for name in allowed_ways(self._exactness) if name not in enabled]
        coarser = [each.value for each in Exactness if not exactness.allows(each)]
        return (
            *([_back_in(left_out)] if left_out else ()),
            *(["no --preset (preset=)"] if self._setting.preset is not None else ()),
            *(["--host (host=True)"] if self._has_use_for_host else ()),
            *(["--disk FOLDER (disk=FOLDER)"] if self._has_use_for_disk else ()),
            *(f"--exactness {name} (exactness={name!r})" for name in coarser),
        )

    @property
    def _has_use_for_host(self) -> bool:
        is_accelerator = self._is_described or self.graph.device != "cpu"
        return is_accelerator and Host.name not in self.technique_names

    @property
    def _has_use_for_disk(self) -> bool:
        return not self._is_described and Disk.name not in self.technique_names

    # -- floor and frontier --------------------------------------------------------------------

    @property
    def floor_bytes(self) -> int:
        """The lowest peak that a plan reaches, as far as the search can tell."""
        if not self._has_floor:
            with self.allowance.running():
                self._contest.look_for_floor(self.plain.peak_bytes)
            self._has_floor = True
        return min(self._contest.leanest()[0].outcome.peak_bytes, self.plain.peak_bytes)

    @property
    def free_bytes(self) -> int:
        """The lowest peak for which a plan adds next to no time, as far as the search can tell.

        Next to none is 2 % of the step: steps differ by more from one to the next. What the
        executor itself takes is part of that: where it takes more, no plan is free. Where fused
        operations take less time than plain PyTorch's, half of that may be spent as well: what is
        gained operation by operation is not all gained in a step.
        """
        top, floor = self.plain.peak_bytes, min(self.plain.state_bytes, self.plain.peak_bytes)
        with self.allowance.running():
            self._contest.solve(top, _FREE_TIME_SHARE)
            stride = (top - floor) // _FREE_STRIDES
            while stride > (top - floor) // _FREE_RESOLUTION:
                lowest = self._lowest_free_bytes()
                self._contest.solve(lowest - stride, _FREE_TIME_SHARE)
                if self._lowest_free_bytes() > lowest - stride:
                    stride //= 2
        return self._lowest_free_bytes()

    def _lowest_free_bytes(self) -> int:
        most_ms = _FREE_SHARE * self.problem.step_ms + self._sure_gain_ms - self.executor_ms
        free = [
            entry.outcome.peak_bytes
            for entry in self._contest.entries()
            if entry.outcome.added_ms <= most_ms
        ]
        return min([*free, self.plain.peak_bytes])

    @property
    def _sure_gain_ms(self) -> float:
        return max(0.0, _SURE_GAIN * self._gained_ms)

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
                with self.allowance.running():
                    self._contest.solve(budget_bytes, 1 / (num_points - number))
        self._on_progress("planning", len(budgets), len(budgets))
        return tuple(self._point(budget_bytes) for budget_bytes in budgets)

    def _point(self, budget_bytes: int) -> FrontierPoint:
        """The archive knows more by now than when the budget was solved: ask it again."""
        best = self._contest.best(budget_bytes)
        if best is None or (budget_bytes >= self.plain.peak_bytes and best[0].outcome.added_ms > 0):
            return FrontierPoint(budget_bytes, self.plain.peak_bytes, 0.0, 0.0, 0.0, _PLAIN)
        outcome = best[0].outcome
        bound_ms = min(self._contest.bound(budget_bytes), outcome.added_ms)
        return FrontierPoint(
            budget_bytes,
            outcome.peak_bytes,
            outcome.added_ms + self.rewrite_ms,
            bound_ms + self.rewrite_ms,
            gap_of(outcome.added_ms, bound_ms, self.problem.step_ms),
            best[0].origin,
        )


def _bytes_by_kind(alive: Iterable[LiveTensor]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in alive:
        found[each.kind] += each.num_bytes
    return dict(found)


def _back_in(names: Sequence[str]) -> str:
    """The advice to use what `--with` or `--without` left out."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}, which --with or --without leave out"


def _phases(graph: Graph) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for op in graph.operations:
        phase = Phase.FORWARD.value if op.is_forward else op.phase.value
        if not found or found[-1][0] != phase:
            found.append((phase, op.index))
    return tuple(found)
