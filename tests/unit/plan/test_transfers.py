"""Timetables, carried out on tiers with a clock of their own."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.plan._transfers import Trip, timetable


class Clock:
    """A device that computes and channels that move: what waits for what, and until when."""

    def __init__(self):
        self.now_ms = self.waited_ms = 0.0
        self.free_ms = {}
        self.ends_ms = {}

    def ask(self, what, trip, taken_ms):
        """The channel of a tier does one thing after the other."""
        self.free_ms[trip.tier] = max(self.free_ms.get(trip.tier, 0.0), self.now_ms) + taken_ms
        self.ends_ms[what] = self.free_ms[trip.tier]

    def wait(self, what):
        late_ms = max(0.0, self.ends_ms[what] - self.now_ms)
        self.waited_ms += late_ms
        self.now_ms += late_ms


def carried_out(trips, made, operation_ms):
    """What really waits, if the program does as the timetable says."""
    clock = Clock()
    for position, taken_ms in enumerate(operation_ms):
        for trip in trips:
            if made.settled_before.get(trip.candidate) == position:
                clock.wait(("out", trip.candidate))
        for number, called in made.fetched_before.items():
            if called == position:
                trip = next(each for each in trips if each.candidate == number)
                clock.ask(("in", number), trip, trip.return_ms)
        for trip in sorted(trips, key=lambda each: each.candidate):
            if trip.read_before == position:
                if trip.waits:
                    clock.ask(("in", trip.candidate), trip, trip.return_ms)
                clock.wait(("in", trip.candidate))
        clock.now_ms += taken_ms
        for trip in sorted(trips, key=lambda each: each.candidate):
            if trip.leaves_after == position:
                clock.ask(("out", trip.candidate), trip, trip.leave_ms)
                if trip.waits:
                    clock.wait(("out", trip.candidate))
    return clock.waited_ms


def starts_of(operation_ms):
    return list(itertools.accumulate(operation_ms, initial=0.0))


@st.composite
def journeys(draw, may_wait=True):
    """A step of forward and backward, and tensors that leave in one and are read in the other."""
    num_forward = draw(st.integers(1, 8))
    operation_ms = draw(
        st.lists(st.integers(1, 20), min_size=2 * num_forward, max_size=2 * num_forward)
    )
    stops = list(range(2 * num_forward))
    trips = []
    for number in range(draw(st.integers(1, 6))):
        leaves_after = draw(st.integers(0, num_forward - 1))
        trips.append(
            Trip(
                candidate=number,
                tier=draw(st.sampled_from(["host", "disk"])),
                leaves_after=leaves_after,
                read_before=draw(st.integers(num_forward, 2 * num_forward - 1)),
                stops=stops,
                first_return=num_forward,
                leave_ms=float(draw(st.integers(1, 30))),
                return_ms=float(draw(st.integers(1, 30))),
                waits=may_wait and draw(st.booleans()),
            )
        )
    return trips, [float(each) for each in operation_ms]


@settings(max_examples=400, deadline=None)
@given(journeys())
def test_every_trip_is_looked_after_in_order(journey):
    trips, operation_ms = journey
    made = timetable(trips, starts_of(operation_ms))
    for trip in trips:
        number = trip.candidate
        if trip.waits:
            assert number not in made.settled_before
            assert number not in made.fetched_before
            least_ms = trip.leave_ms + trip.return_ms
            assert made.waited_ms[number] >= least_ms - 1e-9
            continue
        settled, fetched = made.settled_before[number], made.fetched_before[number]
        assert trip.leaves_after < settled <= fetched <= trip.read_before
        assert fetched >= trip.first_return
        assert {settled, fetched} <= set(trip.stops)


@settings(max_examples=400, deadline=None)
@given(journeys(may_wait=False))
def test_no_less_is_waited_than_the_channel_needs(journey):
    trips, operation_ms = journey
    made = timetable(trips, starts_of(operation_ms))
    real_ms = carried_out(trips, made, operation_ms)
    late_ms = 0.0  # each channel may be late by what comes back when it is asked for
    for tier in ("host", "disk"):
        own = [trip for trip in trips if trip.tier == tier]
        taken_ms = sum(trip.leave_ms + trip.return_ms for trip in own)
        assert made.total_ms >= taken_ms - sum(operation_ms) - 1e-9
        late_ms += max((trip.return_ms for trip in own), default=0.0)
    assert real_ms <= made.total_ms + late_ms + 1e-9


@settings(max_examples=400, deadline=None)
@given(journeys())
def test_predicted_waiting_is_near_what_is_waited(journey):
    trips, operation_ms = journey
    made = timetable(trips, starts_of(operation_ms))
    real_ms = carried_out(trips, made, operation_ms)
    slack_ms = max(trip.leave_ms + trip.return_ms for trip in trips)
    assert abs(made.total_ms - real_ms) <= slack_ms + 0.25 * max(made.total_ms, real_ms)


def test_what_is_read_later_is_called_back_later():
    trips = [
        trip(candidate=0, leaves_after=3, read_before=6, leave_ms=30.0),
        trip(candidate=1, leaves_after=0, read_before=7, leave_ms=1.0, return_ms=20.0),
    ]
    made = timetable(trips, starts_of([10.0] * 8))
    assert made.fetched_before[0] <= made.fetched_before[1]


def trip(**changes):
    usual = {
        "candidate": 0, "tier": "disk", "leaves_after": 0, "read_before": 7,
        "stops": list(range(8)), "first_return": 4, "leave_ms": 15.0, "return_ms": 10.0,
        "waits": False,
    }  # fmt: skip
    return Trip(**{**usual, **changes})


def test_what_is_short_costs_nothing_and_comes_back_late():
    operation_ms = [10.0] * 8
    made = timetable([trip()], starts_of(operation_ms))
    assert made.total_ms == 0
    assert made.settled_before == {0: 3}  # 15 ms after the first operation's end at 10
    assert made.fetched_before == {0: 5}  # half as much again as the 10 ms that it takes
    assert carried_out([trip()], made, operation_ms) == 0


def test_what_waits_costs_all_of_it():
    operation_ms = [10.0] * 8
    waiting = trip(waits=True)
    made = timetable([waiting], starts_of(operation_ms))
    assert made.total_ms == 25.0 == carried_out([waiting], made, operation_ms)


def test_a_slow_tier_is_waited_for():
    operation_ms = [10.0] * 8
    slow = trip(leave_ms=100.0, return_ms=100.0)
    made = timetable([slow], starts_of(operation_ms))
    assert made.total_ms == pytest.approx(200.0 - 60.0)
    assert made.settled_before == made.fetched_before == {0: 7}


def test_tiers_keep_out_of_each_others_way():
    operation_ms = [10.0] * 8
    one = trip(candidate=0, tier="host", leave_ms=25.0, return_ms=25.0)
    other = trip(candidate=1, tier="disk", leave_ms=28.0, return_ms=28.0)
    both = timetable([one, other], starts_of(operation_ms))
    for each in (one, other):
        alone = timetable([each], starts_of(operation_ms))
        assert both.settled_before[each.candidate] == alone.settled_before[each.candidate]
        assert both.fetched_before[each.candidate] == alone.fetched_before[each.candidate]
    assert both.total_ms == 0 == carried_out([one, other], both, operation_ms)
    same = [replace(each, tier="disk") for each in (one, other)]
    queued = timetable(same, starts_of(operation_ms))
    assert queued.total_ms > 0
    assert queued.total_ms == pytest.approx(carried_out(same, queued, operation_ms))


def test_waiting_for_one_tier_gives_the_other_time():
    operation_ms = [10.0] * 8
    slow = trip(candidate=0, tier="disk", leave_ms=100.0, return_ms=100.0)
    quick = trip(candidate=1, tier="host", read_before=7, leave_ms=40.0, return_ms=40.0)
    made = timetable([slow, quick], starts_of(operation_ms))
    assert made.waited_ms == {0: pytest.approx(140.0), 1: 0.0}
    assert carried_out([slow, quick], made, operation_ms) == pytest.approx(140.0)


def test_another_piece_is_no_place_to_stop():
    operation_ms = [10.0] * 8
    made = timetable([trip(stops=[0, 6, 7], first_return=6)], starts_of(operation_ms))
    assert made.settled_before == {0: 6}
    assert made.fetched_before == {0: 6}
