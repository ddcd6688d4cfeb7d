"""What a solver is: looks for the choice that fits a budget and adds the least time."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, final

from legroom.plan._effort import Effort
from legroom.plan._search import Search


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What a solver can say of the budget; its choices are in the search's archive.

    Attributes:
        bound_ms: No choice within the budget adds less time; infinite where none fits.
        timed_out: Whether it stopped at its deadline with work left to do.
    """

    bound_ms: float
    timed_out: bool = False


class AbstractSolver(abc.ABC):
    """Proposes choices to a search; the simulator judges them.

    Attributes:
        name: As in candidates' names in tables.
        summary: What it does, in a clause.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def solve(cls, search: Search, budget_bytes: int, effort: Effort) -> Verdict:
        """Look for choices within the budget until nothing is left to try, or no effort."""
