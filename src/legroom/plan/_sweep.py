"""The largest value of a script argument, a batch size mostly, with which a step still fits.

In goes a function that plans the step for one value; out come the values that were tried. The
forecast only decides what to try next: the answer is always a value that was tried and fits, beside
one that was tried and does not.

A step's peak is not a straight line in the batch size: another phase may become the highest. So
each phase has its own line and the forecast is their maximum; it is convex, as the true peak is.
Where the forecast stands still it is left behind in strides that double; where it is bad (sizes
that jump, plans that fit here and not there) bisection takes over. For 1,024 values that is four
tries where the phases are lines, six on average where sizes jump, and never more than
2 + 3 * log2(n). The answer is the end of a bracket: for a step that fits again above a value that
does not, it is a largest value nearby, not over all. Tested with functions of known answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from legroom.errors import UsageError
from legroom.plan._plan import SweepPoint

Probe = Callable[[int], SweepPoint]

_FIRST_STRIDE = 8
"""The second try is this part of the range up: near, because far ones may not even run."""

_PATIENCE = 2
"""Forecasts in a row that may fail to halve the bracket before bisection takes over."""


def find_largest(
    probe: Probe, *, low: int, high: int, budget_bytes: int, step: int = 1
) -> list[SweepPoint]:
    """The values tried, smallest first; the largest that fits is `largest_that_fits` of them.

    Args:
        probe: Plans the step for one value; takes seconds, so it is called rarely.
        low: The smallest value of interest. If it does not fit, nothing else is tried.
        high: The largest value of interest.
        budget_bytes: What the forecast is compared with; whether a value fits, its probe says.
        step: Values are `low`, `low + step`, … up to `high`.

    Raises:
        UsageError: The range is empty.
    """
    if low < 1 or high < low or step < 1:
        raise UsageError(
            f"the range {low}:{high} in steps of {step} holds nothing to try; "
            "write LOW:HIGH with 1 <= LOW <= HIGH, and a step of at least 1"
        )
    return _Search(probe, low, step, (high - low) // step, budget_bytes).run()


def largest_that_fits(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The point of the largest value that fits; None if none does."""
    return max((point for point in points if point.fits), key=lambda it: it.value, default=None)


class _Search:
    """Narrows the bracket (best, worst): positions in the range that fit and do not."""

    def __init__(self, probe: Probe, low: int, step: int, last: int, budget_bytes: int) -> None:
        self._probe, self._low, self._step, self._last = probe, low, step, last
        self._budget_bytes = budget_bytes
        self._points: dict[int, SweepPoint] = {}
        self._best = -1
        # Beyond the range: never tried, never allowed.
        self._worst = last + 1
        self._stride = 1

    def run(self) -> list[SweepPoint]:
        self._try(0)
        if self._best == 0 and self._last > 0:
            self._try(max(1, self._last // _FIRST_STRIDE))
        num_slow = 0
        while self._worst - self._best > 1 and self._best >= 0:
            width = self._worst - self._best
            if num_slow >= _PATIENCE:
                self._try(self._middle())
                continue
            self._try(self._next())
            is_slow = 2 * (self._worst - self._best) > width + 1 and self._worst <= self._last
            num_slow = num_slow + 1 if is_slow else 0
        return [self._points[position] for position in sorted(self._points)]

    def _try(self, position: int) -> None:
        point = self._probe(self._low + position * self._step)
        self._points[position] = point
        if point.fits:
            self._best = position
        else:
            self._worst = position

    def _middle(self) -> int:
        return (self._best + self._worst) // 2

    def _next(self) -> int:
        """The last position that should fit; where that is an end of the bracket, beyond it.

        Each time the forecast turns out to stand still the stride doubles.
        """
        forecast = self._forecast()
        if forecast not in (self._best, self._worst - 1) or forecast == self._last:
            return forecast
        stride, self._stride = self._stride, 2 * self._stride
        if forecast == self._best:
            return min(self._best + stride, max(self._middle(), self._best + 1))
        return max(self._worst - stride, self._middle())

    def _forecast(self) -> int:
        """The last position of the bracket that should fit."""
        low, high = self._best, self._worst
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._should_fit(middle) else (low, middle)
        return low

    def _should_fit(self, position: int) -> bool:
        """Whether the highest of the phases' lines, less what a plan saves, is small enough."""
        left, right = self._nearest(position)
        first, second = self._points[left], self._points[right]
        along = (position - left) / (right - left)

        def line(start: float, end: float) -> float:
            return start + along * (end - start)

        names = first.phases.keys() & second.phases.keys()
        lines = [line(first.phases[name], second.phases[name]) for name in names]
        plain = max(lines or [line(first.plain_peak_bytes, second.plain_peak_bytes)])
        return plain - line(_saved_bytes(first), _saved_bytes(second)) <= self._budget_bytes

    def _nearest(self, position: int) -> tuple[int, int]:
        """The two tried positions around it, or the two highest below it."""
        tried = sorted(self._points)
        above = [each for each in tried if each > position]
        below = [each for each in tried if each < position]
        return (below[-1], above[0]) if above else (below[-2], below[-1])


def _saved_bytes(point: SweepPoint) -> int:
    """What the best plan takes off the plain peak."""
    return point.plain_peak_bytes - point.floor_peak_bytes
