"""Checkmate's approximation: the linear relaxation at nine tenths of a budget, rounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from legroom.plan._problem import Choice
from legroom.plan._search import Search
from legroom.plan.presets._preset import AbstractPreset
from legroom.plan.solvers import rounded

_SHARES = (0.5, 0.75, 0.35)
_MOST_S, _TIME_SHARE = 30.0, 0.1
"""What solving for each of them may take, in all and of the time that is left to planning."""
_TIGHTENED = 0.9
_THRESHOLDS = tuple(tenth / 10 for tenth in range(1, 10))


@final
class Checkmate(AbstractPreset):
    """What the paper does where its integer programme takes too long, for three budgets."""

    name = "checkmate"
    summary = "round the relaxation at 0.9 of half of the memory, the best of nine thresholds"
    origin = "Checkmate 2020 (two-phase LP rounding)"
    costs = "what the rounded relaxation runs again"
    when = (
        "To compare with Checkmate's approximation. Three budgets are rounded: 50, 75 and 35 "
        "% of what the step needs with everything held."
    )
    not_with = "Nothing."

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """For each budget, the fastest rounding that fits; the leanest where none does."""
        whole = search.evaluate(search.hold_all(), "save-all").peak_bytes
        for share in _SHARES:
            seconds = min(_MOST_S, _TIME_SHARE * search.allowance.seconds_left)
            if not search.may_relax(seconds):
                return
            budget_bytes = int(share * whole)
            relaxed = search.relaxation.solve(int(_TIGHTENED * budget_bytes), time_limit_s=seconds)
            if relaxed is None:
                continue
            tried = [rounded(search, relaxed, threshold) for threshold in _THRESHOLDS]
            outcomes = [search.evaluate(choice, cls.name) for choice in tried]
            order = sorted(
                range(len(tried)),
                key=lambda i: (
                    max(outcomes[i].peak_bytes, budget_bytes),
                    outcomes[i].added_ms,
                    i,
                ),
            )
            yield tried[order[0]]
