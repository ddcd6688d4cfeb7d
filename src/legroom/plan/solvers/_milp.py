"""The relaxation as guide and bound: round it, mend it, and on small problems close the gap.

Also known as: LP rounding with a threshold sweep (Checkmate's approximation), and logic-based
Benders decomposition: the mixed integer programme proposes, the simulator disposes, and a choice
that it finds over budget is ruled out. Exact where it runs to the end, because the programme is a
relaxation of what the simulator does (`_relaxation`). Ties go to the first found; HiGHS runs on
one thread from a fixed seed. Oracle: brute force.
"""

from __future__ import annotations

from typing import final

from legroom.plan._effort import Effort, Tries
from legroom.plan._problem import Choice
from legroom.plan._relaxation import RelaxedSolution
from legroom.plan._search import Search
from legroom.plan._simulate import Trace
from legroom.plan.solvers._solver import AbstractSolver, Verdict

_THRESHOLDS = (0.5, 0.1, 0.9, 0.3, 0.7, 0.01, 0.99)
_TIGHTER = (0.97, 0.94, 0.9, 0.85, 0.8)
_MOST_CUTS = 400
_PATIENCE_IN_CUTS = 0.4
"""A cut rules out one choice, and takes as long as many simulations."""
_MOST_NODES = 1000
"""Of branch and bound, for each of those."""
_EXACT_UP_TO = 40
"""Up to so many candidates with a choice, the mixed integer programme is solved to the end."""


@final
class Milp(AbstractSolver):
    """Linear programme, rounding, repair by the simulator; branch and cut on small problems."""

    name = "milp"
    summary = "linear programme, rounded and mended by the simulator; exact on small graphs"

    @classmethod
    def solve(cls, search: Search, budget_bytes: int, effort: Effort) -> Verdict:
        """Bound and choices; exact where the problem is small and time suffices."""
        if max(search.problem.base_during, default=0) > budget_bytes:
            return Verdict(bound_ms=float("inf"))  # whatever is chosen
        if search.evaluate(search.hold_all(), "hold").peak_bytes <= budget_bytes:
            return Verdict(bound_ms=0.0)
        if not search.may_relax(effort.seconds_left):
            return Verdict(bound_ms=0.0, timed_out=True)
        bound_ms = approach(search, budget_bytes, effort)
        if bound_ms is None:
            return Verdict(float("inf"))
        if _is_small(search) and effort.is_worth(effort.left_ms(budget_bytes)):
            bound_ms = _close(search, budget_bytes, cls.name, effort)
        return Verdict(bound_ms=bound_ms, timed_out=effort.timed_out)


def approach(search: Search, budget_bytes: int, effort: Effort) -> float | None:
    """Round, mend and fill without proving anything; the bound, or None if nothing can fit."""
    tries = effort.tries(budget_bytes)
    for share in (1.0, *_TIGHTER):
        # The relaxation does not see what is alive for a moment while things are remade.
        relaxed = search.relaxation.solve(
            int(share * budget_bytes), time_limit_s=effort.seconds_left
        )
        if relaxed is None and share == 1.0:
            return None
        if relaxed is None:
            break
        if share == 1.0:
            effort.bound_ms = max(effort.bound_ms, relaxed.bound_ms)
        if _round(search, relaxed, budget_bytes, effort, tries):
            break
    best = search.archive.best(budget_bytes)
    if best is not None and effort.is_worth(effort.left_ms(budget_bytes)):
        choice = search.decode(best.choice, budget_bytes, Milp.name, effort)
        search.exchange(choice, budget_bytes, Milp.name, effort)
    return effort.bound_ms


def _is_small(search: Search) -> bool:
    """Whether choices can be ruled out one by one.

    Not where tensors are moved: the relaxation does not say how long those stay in memory, and
    would offer one choice after the other.
    """
    num_choices = sum(len(each.options) > 1 for each in search.problem.candidates)
    return not search.problem.moves and num_choices <= _EXACT_UP_TO


def _round(
    search: Search, relaxed: RelaxedSolution, budget_bytes: int, effort: Effort, tries: Tries
) -> bool:
    """Hold what the relaxation holds more than a threshold of; mend and fill each attempt.

    Returns whether there is no point in trying on with another relaxation.
    """
    if not effort.is_worth(effort.left_ms(budget_bytes)):
        return True
    for threshold in _THRESHOLDS:
        search.mend(rounded(search, relaxed, threshold), budget_bytes, Milp.name, effort)
        best = search.archive.best(budget_bytes)
        if best is not None:
            search.fill(best.choice, budget_bytes, Milp.name, effort)
        if tries.are_over():
            return True
        beyond_ms = relaxed.bound_ms - effort.bound_ms  # rounding this one gives no less
        if not effort.is_worth(effort.left_ms(budget_bytes) - beyond_ms):
            break
    return False


def rounded(search: Search, relaxed: RelaxedSolution, threshold: float) -> Choice:
    """Hold what the relaxation holds at least that share of; for the rest, what it prefers."""
    options = []
    for number, share in enumerate(relaxed.shares):
        candidate = search.problem.candidates[number]
        if share is None:  # too small to matter: held where backward reads it
            options.append(0 if candidate.late_uses else relaxed.options[number])
        elif share >= threshold:
            options.append(0)
        else:
            options.append(_best_other(search, relaxed, number))
    tied = tuple(options[group[0]] for group in search.problem.tied)
    return Choice(tied, relaxed.variants)


def _best_other(search: Search, relaxed: RelaxedSolution, number: int) -> int:
    """The option the relaxation prefers, if that is not to hold; else the leanest other one."""
    candidate = search.problem.candidates[number]
    preferred = relaxed.options[number]
    if not candidate.options[preferred].saving.keeps_whole:
        return preferred
    others = [
        (option.saving.held_bytes, index)
        for index, option in enumerate(candidate.options)
        if not option.saving.keeps_whole
    ]
    return min(others)[1] if others else preferred


def _close(search: Search, budget_bytes: int, origin: str, effort: Effort) -> float:
    """Solve the integer programme, rule out what the simulator finds over budget, and repeat."""
    tries = effort.tries(budget_bytes, _PATIENCE_IN_CUTS)
    with search.relaxation.cutting():
        for _ in range(_MOST_CUTS):
            if effort.timed_out:
                break
            solved = search.relaxation.solve(
                budget_bytes,
                integral=True,
                time_limit_s=effort.seconds_left,
                most_nodes=_MOST_NODES,
                close_enough_ms=effort.worth_ms / 2,
            )
            if solved is None:  # everything that could fit has been tried
                return _added_ms(search, budget_bytes)
            # What was ruled out before may still be the best: it bounds the others from above.
            bound_ms = min(solved.bound_ms, _added_ms(search, budget_bytes))
            effort.bound_ms = max(effort.bound_ms, bound_ms)
            if solved.stopped_early:
                break
            choice = Choice(solved.options, solved.variants)
            search.evaluate(choice, origin)
            trace = Trace()
            search.simulator.run(choice, trace)
            if not search.relaxation.forbid(choice, trace.needed):
                return _added_ms(search, budget_bytes)
            if tries.are_over():
                break
    return effort.bound_ms


def _added_ms(search: Search, budget_bytes: int) -> float:
    """Of the best choice so far; infinite where none fits."""
    best = search.archive.best(budget_bytes)
    return best.outcome.added_ms if best is not None else float("inf")
