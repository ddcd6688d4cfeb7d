"""Try every choice: for the smallest problems, and the oracle that others are tested against."""

from __future__ import annotations

import itertools
import math
from typing import final

from legroom.plan._effort import Effort
from legroom.plan._problem import Choice
from legroom.plan._search import Search
from legroom.plan.solvers._solver import AbstractSolver, Verdict


@final
class BruteForce(AbstractSolver):
    """Exponential; with up to about a dozen candidates the fastest."""

    name = "brute-force"
    summary = "try every choice, where there are few"

    @classmethod
    def num_choices(cls, search: Search) -> int:
        """How many choices there are to try."""
        problem = search.problem
        free = [n for n, tied in enumerate(problem.tied) if tied[0] == n]
        sizes = [len(problem.candidates[n].options) for n in free]
        sizes += [len(problem.needs.get(p, ((),))) for p in problem.variant_names]
        return math.prod(sizes)

    @classmethod
    def solve(cls, search: Search, budget_bytes: int, effort: Effort) -> Verdict:
        """Exact, unless the deadline comes first."""
        problem = search.problem
        positions = list(problem.variant_names)
        free = [n for n, tied in enumerate(problem.tied) if tied[0] == n]
        options = [range(len(problem.candidates[n].options)) for n in free]
        variants = [range(len(problem.needs.get(p, ((),)))) for p in positions]
        for picked in itertools.product(*options):
            if effort.timed_out:
                return Verdict(bound_ms=0.0, timed_out=True)
            of_first = dict(zip(free, picked, strict=True))
            whole = tuple(of_first[tied[0]] for tied in problem.tied)
            for alternatives in itertools.product(*variants):
                chosen = tuple(
                    (p, index) for p, index in zip(positions, alternatives, strict=True) if index
                )
                search.evaluate(Choice(whole, chosen), cls.name)
        best = search.archive.best(budget_bytes)
        return Verdict(bound_ms=best.outcome.added_ms if best else float("inf"))
