"""When tensors leave for other tiers and come back: a timetable, with a channel for each tier.

In go trips, each with how long it takes, and when operations run; out comes before which operation
each tensor has left, before which it is called back, and how long the step waits for it. Oracle:
`tests/unit/plan/test_transfers.py` carries timetables out on a device with a clock of its own.
"""

# Note [Timetable]
# 1. Each tier has one channel: its transfers run one after the other, in the order in which they
#    are asked for, whatever goes on in another tier's. Measured bandwidth is that of all its
#    threads together. Of a link that copies both ways at once, that is on the careful side.
# 2. A tensor starts to leave after its last use in forward. The program looks after it, and lets go
#    of its memory, before the first operation of its own piece that starts when the transfer has
#    ended: nothing waits, and the memory is there meanwhile.
# 3. It is called back as late as possible so that it is there when it is read, with some time to
#    spare: memory is taken from then on. Not before backward of its piece has begun, nor before it
#    has left, nor before what its tier is to give back earlier: a channel keeps the order.
# 4. A trip that waits does so both times: nothing of it is in memory but what is being read. That
#    costs the whole transfer at least.
# 5. Waiting moves everything after it, of all tiers; what was to be called back keeps its place in
#    the program.

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

_TO_SPARE = 1.5
"""Times the time of a transfer: so much earlier is it asked for."""


@final
@dataclass(frozen=True, slots=True)
class Trip:
    """A tensor that leaves and comes back.

    Attributes:
        candidate: Its number.
        tier: Name of the tier whose channel it takes.
        leaves_after: The position after which it leaves.
        read_before: The position before which it must be back.
        stops: Positions of its own piece and call, in order: where the program can look after it.
        first_return: The first of them at which it may be called back.
        leave_ms: How long it takes to leave.
        return_ms: How long it takes to come back.
        waits: See Note [Timetable], rule 4.
    """

    candidate: int
    tier: str
    leaves_after: int
    read_before: int
    stops: Sequence[int]
    first_return: int
    leave_ms: float
    return_ms: float
    waits: bool


@final
@dataclass(slots=True)
class Timetable:
    """When each trip is looked after, by candidate.

    Attributes:
        settled_before: The position before which the tensor's memory is let go; not of trips that
            wait.
        fetched_before: The position before which memory for it is taken again; likewise.
        waited_ms: How long the step waits for it.
    """

    settled_before: dict[int, int] = field(default_factory=dict)
    fetched_before: dict[int, int] = field(default_factory=dict)
    waited_ms: dict[int, float] = field(default_factory=dict)

    @property
    def total_ms(self) -> float:
        """How long the step waits in all."""
        return sum(self.waited_ms.values())


def timetable(trips: Sequence[Trip], starts_ms: Sequence[float]) -> Timetable:
    """When to look after each trip; see Note [Timetable].

    Args:
        starts_ms: When each operation would start if nothing was waited for, and at the end when
            the last one ends.
    """
    return _Maker(trips, starts_ms).make()


@final
@dataclass(slots=True)
class _Channel:
    """What one tier has been asked for so far.

    Attributes:
        free_ms: When it is free.
        called: The last position at which something was called back.
    """

    free_ms: float = 0.0
    called: int = 0


class _Maker:
    def __init__(self, trips: Sequence[Trip], starts_ms: Sequence[float]) -> None:
        self._starts_ms = starts_ms
        self._trips = trips
        self._made = Timetable()
        self._channels = {trip.tier: _Channel() for trip in trips}
        self._late_ms = 0.0  # how much later than `starts_ms` the step is by now
        self._waits: list[tuple[float, float]] = []  # where it became so late, and how late
        self._left_ms: dict[int, float] = {}

    def make(self) -> Timetable:
        latest = self._latest_calls()
        leaving = [(trip.leaves_after + 0.5, 0, trip.candidate, trip) for trip in self._trips]
        returning = [(float(trip.read_before), 1, trip.candidate, trip) for trip in self._trips]
        for place, is_return, _, trip in sorted(leaving + returning, key=lambda each: each[:3]):
            if is_return:
                self._return(trip, latest[trip.candidate])
            else:
                self._leave(trip)
            self._waits.append((place, self._late_ms))
        return self._made

    def _latest_calls(self) -> Mapping[int, float]:
        """When each must be called back at the latest, one after the other from each tier."""
        latest: dict[int, float] = {}
        behind_ms = dict.fromkeys(self._channels, float("inf"))
        for trip in sorted(self._trips, key=lambda each: (-each.read_before, -each.candidate)):
            end_ms = min(self._starts_ms[trip.read_before], behind_ms[trip.tier])
            latest[trip.candidate] = end_ms - _TO_SPARE * trip.return_ms
            behind_ms[trip.tier] = latest[trip.candidate]
        return latest

    def _leave(self, trip: Trip) -> None:
        ready_ms = self._starts_ms[trip.leaves_after + 1] + self._late_ms
        channel = self._channels[trip.tier]
        channel.free_ms = max(ready_ms, channel.free_ms) + trip.leave_ms
        self._left_ms[trip.candidate] = channel.free_ms
        if trip.waits:
            self._wait(trip, channel.free_ms - ready_ms)
            return
        after_ms = channel.free_ms - self._late_ms
        position = bisect.bisect_left(self._starts_ms, after_ms, lo=trip.leaves_after + 1)
        stop = bisect.bisect_left(trip.stops, position)
        settled = trip.stops[stop] if stop < len(trip.stops) else trip.read_before
        self._made.settled_before[trip.candidate] = min(settled, trip.read_before)

    def _return(self, trip: Trip, latest_ms: float) -> None:
        due_ms = self._starts_ms[trip.read_before] + self._late_ms
        called_ms = due_ms
        channel = self._channels[trip.tier]
        if not trip.waits:
            earliest = max(self._made.settled_before[trip.candidate], channel.called)
            fetched = channel.called = self._stop_before(trip, latest_ms, earliest)
            self._made.fetched_before[trip.candidate] = fetched
            called_ms = min(due_ms, self._starts_ms[fetched] + self._late_before(fetched))
        called_ms = max(called_ms, self._left_ms[trip.candidate])
        channel.free_ms = max(called_ms, channel.free_ms) + trip.return_ms
        self._wait(trip, max(0.0, channel.free_ms - due_ms))

    def _stop_before(self, trip: Trip, latest_ms: float, earliest: int) -> int:
        """The last stop of the piece that is early enough, or the first that is possible."""
        position = bisect.bisect_right(self._starts_ms, latest_ms) - 1
        stop = bisect.bisect_right(trip.stops, position) - 1
        early = trip.stops[stop] if stop >= 0 else -1
        first = bisect.bisect_left(trip.stops, max(trip.first_return, earliest))
        possible = trip.stops[first] if first < len(trip.stops) else trip.read_before
        return min(trip.read_before, max(early, possible))

    def _late_before(self, position: int) -> float:
        """How late the step was when it came to a position."""
        count = bisect.bisect_left(self._waits, (position, 0.0))
        return self._waits[count - 1][1] if count else 0.0

    def _wait(self, trip: Trip, waited_ms: float) -> None:
        self._late_ms += waited_ms
        waited = self._made.waited_ms
        waited[trip.candidate] = waited.get(trip.candidate, 0.0) + waited_ms
