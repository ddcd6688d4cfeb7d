"""Drop the cheapest bytes that are alive at the peak, until it fits; then fill the room left.

Also known as: selective recomputation by price per byte, with a global look at the peak. Takes
one simulation per step; may miss the optimum, and gives no bound of its own.
"""

from __future__ import annotations

from typing import final

from legroom.plan._effort import Effort
from legroom.plan._search import Search
from legroom.plan.solvers._solver import AbstractSolver, Verdict


@final
class Greedy(AbstractSolver):
    """From everything held, downwards."""

    name = "greedy"
    summary = "drop the cheapest bytes alive at the peak, one after the other"

    @classmethod
    def solve(cls, search: Search, budget_bytes: int, effort: Effort) -> Verdict:
        """Never proves anything: its bound is zero."""
        search.mend(search.hold_all(), budget_bytes, cls.name, effort)
        best = search.archive.best(budget_bytes)
        if best is not None:
            search.fill(best.choice, budget_bytes, cls.name, effort)
        return Verdict(bound_ms=0.0, timed_out=effort.timed_out)
