"""How much planning may take: one allowance of time for all of it, and counts of work for each try.

In go what the user said and what is left to gain; out comes whether to try on. See Note [Effort].
"""

# Note [Effort]
# 1. All that planning does for one request (forms of the step, budgets, the lowest peak, points of
#    the frontier) shares one allowance. Its clock runs only while something is planned.
# 2. Solving stops where the best plan is within `CLOSE_ENOUGH` of a step's time of the proven
#    bound, and is not begun where a plan and a bound for other budgets say so already.
# 3. It also stops where it has dried up: a number of tries in a row has not closed a tenth of what
#    was left to gain. The more is left, the larger that number.
# 4. Under effort `fixed` there is no clock: simulations, cuts, nodes and iterations are counted,
#    and nothing else ends a search. The same counts hold under `proportional`; time is a guard.
# 5. What grows with the number of operations is begun where there is time for it: presets have half
#    of it (Note [Candidates], rule 7), the relaxation is built where that takes no more than is
#    left, and a capture that took long leaves less. To hold everything, to drop it, and what is
#    found by simulation from there, is always tried.

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from legroom.plan._search import Search

CLOSE_ENOUGH = 0.01
"""Of a step's time: what can be gained below this is not looked for."""
PROPORTIONAL, FIXED = "proportional", "fixed"
EFFORTS = (PROPORTIONAL, FIXED)

_CLOSED_SHARE = 0.1
_TRIES_PER_GAIN = 6
_MOST_TRIES = 42
"""In vain, one after the other: so many for each gain that is just worth looking for."""
_FEWEST_SECONDS = 0.1


@final
class Allowance:
    """The time that planning may take; see Note [Effort], rule 1.

    Args:
        seconds: None: no time enters any decision.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._spent_s = 0.0
        self._since: float | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The clock runs inside; also where this is entered again."""
        if self._since is not None:
            yield
            return
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._spent_s += time.monotonic() - self._since
            self._since = None

    @property
    def seconds_left(self) -> float:
        """Infinite where no time enters."""
        if self._seconds is None:
            return math.inf
        running_s = 0.0 if self._since is None else time.monotonic() - self._since
        return max(0.0, self._seconds - self._spent_s - running_s)

    def deadline(self, share: float) -> float:
        """The moment at which that share of what is left will have passed."""
        return time.monotonic() + share * self.seconds_left

    def at_most(self, seconds: float) -> Allowance:
        """The same, or less where there is less; begun anew."""
        return Allowance(None if self._seconds is None else min(self._seconds, seconds))

    def again(self) -> Allowance:
        """As much once more, for something else."""
        return Allowance(self._seconds)

    def renew(self) -> None:
        """Begin again: something else is asked for."""
        self._spent_s = 0.0
        if self._since is not None:
            self._since = time.monotonic()


@final
class Effort:
    """How much may still be tried for one budget; see Note [Effort].

    Args:
        num_simulations: None: as many as it takes.
        deadline: A guard for machines that are slower than thought.
        worth_ms: Added time that is not worth looking for; 0: everything is.
        rival_ms: Added time of the best plan that was found elsewhere.
        bound_ms: No plan adds less; whoever proves more sets it.
    """

    def __init__(
        self,
        search: Search,
        num_simulations: int | None,
        deadline: float = math.inf,
        *,
        worth_ms: float = 0.0,
        rival_ms: float = math.inf,
        bound_ms: float = 0.0,
    ) -> None:
        self._search = search
        self._last = None
        if num_simulations is not None:
            self._last = search.simulator.num_simulations + num_simulations
        self._deadline = deadline
        self.worth_ms, self.rival_ms, self.bound_ms = worth_ms, rival_ms, bound_ms

    @property
    def timed_out(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._deadline

    @property
    def is_spent(self) -> bool:
        """Whether it is time to stop."""
        done = self._search.simulator.num_simulations
        return (self._last is not None and done >= self._last) or self.timed_out

    @property
    def seconds_left(self) -> float:
        """Until the deadline; a little at least."""
        return max(_FEWEST_SECONDS, self._deadline - time.monotonic())

    def left_ms(self, budget_bytes: int) -> float:
        """What can still be gained; infinite where no plan fits the budget yet."""
        best = self._search.archive.best(budget_bytes)
        own_ms = math.inf if best is None else best.outcome.added_ms
        return min(own_ms, self.rival_ms) - self.bound_ms

    def is_worth(self, left_ms: float) -> bool:
        """Whether so much is worth looking for."""
        return left_ms > max(self.worth_ms, 1e-9)

    def tries(self, budget_bytes: int, patience: float = 1.0) -> Tries:
        """Begin to count how often is tried in vain.

        Args:
            patience: Times as many tries as usual.
        """
        return Tries(self, budget_bytes, patience)


@final
class Tries:
    """Whether trying for a budget has dried up; see Note [Effort], rule 3."""

    def __init__(self, effort: Effort, budget_bytes: int, patience: float) -> None:
        self._effort, self._budget_bytes = effort, budget_bytes
        self._times = patience
        self._left_ms = effort.left_ms(budget_bytes)
        self._in_vain = 0

    def are_over(self) -> bool:
        """Whether to stop, after another try: no effort is left, nothing to gain, or dried up."""
        left_ms = self._effort.left_ms(self._budget_bytes)
        if left_ms < math.inf and left_ms <= (1 - _CLOSED_SHARE) * self._left_ms:
            self._left_ms, self._in_vain = left_ms, 0
        else:
            self._in_vain += 1
        is_over = self._effort.is_spent or not self._effort.is_worth(left_ms)
        return is_over or self._in_vain >= self._most_in_vain

    @property
    def _most_in_vain(self) -> float:
        """So many tries in a row may be in vain."""
        worth_ms = self._effort.worth_ms
        if worth_ms <= 0:
            return math.inf
        tries = min(_MOST_TRIES, _TRIES_PER_GAIN * self._left_ms / worth_ms)
        return max(1.0, self._times * tries)
