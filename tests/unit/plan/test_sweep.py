import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.errors import UsageError
from legroom.plan._plan import SweepPoint
from legroom.plan._sweep import find_largest, largest_that_fits


class Step:
    """A made-up step: phases and floor as functions of the value; counts what was asked of it."""

    def __init__(self, phases, budget, floor=None):
        self.phases, self.budget, self.floor = phases, budget, floor
        self.asked = []

    def __call__(self, value):
        self.asked.append(value)
        peaks = {name: phase(value) for name, phase in self.phases.items()}
        plain = max(peaks.values())
        floor = plain if self.floor is None else self.floor(value)
        return SweepPoint(value, plain, floor, peaks, floor <= self.budget)


def search(made_up, low=1, high=1024, **options):
    step = made_up
    points = find_largest(step, low=low, high=high, budget_bytes=step.budget, **options)
    assert [point.value for point in points] == sorted(set(step.asked))
    assert len(step.asked) == len(set(step.asked))
    best = largest_that_fits(points)
    return points, best.value if best else None


def check_bracket(points, best, high, step=1):
    """The answer was tried, and so was the next value, unless the range ends there."""
    tried = {point.value: point.fits for point in points}
    assert tried[best]
    assert best + step > high or tried[best + step] is False


def test_a_line_takes_four_tries():
    step = Step({"forward": lambda v: 100 + 7 * v}, budget=3000)
    points, best = search(step)
    assert best == (3000 - 100) // 7
    check_bracket(points, best, 1024)
    assert len(step.asked) == 4


def test_another_phase_may_take_the_lead():
    # The optimizer is highest at first, backward from 200 on: no one line through the peaks works.
    step = Step({"optimizer": lambda v: 4000 + v, "backward": lambda v: 200 + 20 * v}, budget=9000)
    points, best = search(step)
    assert best == 440
    check_bracket(points, best, 1024)
    assert len(step.asked) == 4


def test_plans_are_what_must_fit():
    step = Step({"forward": lambda v: 100 + 7 * v}, budget=3000, floor=lambda v: 100 + 3 * v)
    points, best = search(step)
    assert best == (3000 - 100) // 3
    check_bracket(points, best, 1024)
    assert len(step.asked) == 4


def test_nothing_fits_takes_one_try():
    step = Step({"forward": lambda v: 5000}, budget=3000)
    points, best = search(step)
    assert best is None
    assert [point.value for point in points] == [1]


def test_everything_fits_up_to_the_last_value():
    step = Step({"forward": lambda v: v}, budget=10**6)
    points, best = search(step, high=1000)
    assert best == 1000
    assert len(step.asked) == 3
    assert len(points) == 3


def test_a_range_of_one_value_is_tried():
    step = Step({"forward": lambda v: v}, budget=10)
    assert search(step, low=8, high=8)[1] == 8


def test_steps_stay_on_their_grid():
    step = Step({"forward": lambda v: 10 * v}, budget=1000)
    points, best = search(step, low=8, high=255, step=8)
    assert best == 96
    assert all(point.value % 8 == 0 for point in points)
    check_bracket(points, best, 255, step=8)


def test_sizes_that_jump_are_found_by_bisection():
    step = Step({"forward": lambda v: 100 + 512 * math.ceil(v / 64)}, budget=3000)
    points, best = search(step)
    assert best == 320
    check_bracket(points, best, 1024)
    assert len(step.asked) <= 10


def test_a_missing_phase_is_no_obstacle():
    step = Step({"forward": lambda v: 100 + 7 * v}, budget=3000)

    def probe(value):
        point = step(value)
        return SweepPoint(value, point.plain_peak_bytes, point.floor_peak_bytes, {}, point.fits)

    points = find_largest(probe, low=1, high=1024, budget_bytes=3000)
    assert largest_that_fits(points).value == 414


def test_what_fits_here_and_not_there_ends_in_a_bracket():
    # Fits below 100 and again at multiples of 3: no order to rely on.
    step = Step({"forward": lambda v: 10 if v < 100 or v % 3 == 0 else 10**6}, budget=1000)
    points, best = search(step)
    check_bracket(points, best, 1024)
    assert len(step.asked) <= 2 + 3 * math.log2(1024)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(10**4, 10**7)), min_size=1, max_size=4),
    st.integers(10**7, 10**10),
    st.floats(0.2, 1),
)
def test_lines_of_any_kind_take_few_tries(lines, budget, share):
    phases = {str(i): lambda v, a=a, b=b: a + b * v for i, (a, b) in enumerate(lines)}
    step = Step(phases, budget, floor=lambda v: int(share * max(a + b * v for a, b in lines)))
    points, best = search(step)
    fitting = [v for v in range(1, 1025) if step.floor(v) <= budget]
    assert best == (max(fitting) if fitting else None)
    if best is not None:
        check_bracket(points, best, 1024)
    assert len(step.asked) <= 12


def test_tries_are_few_on_average():
    counts = []
    for budget in range(2000, 60000, 500):
        step = Step({"a": lambda v: 1500 + 11 * v, "b": lambda v: 60 * v}, budget)
        search(step)
        counts.append(len(step.asked))
    assert sum(counts) / len(counts) <= 5
    assert max(counts) <= 8


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 60), st.data())
def test_any_order_of_fitting_ends_in_a_bracket(num_values, data):
    fits = data.draw(st.lists(st.booleans(), min_size=num_values, max_size=num_values))
    fits[0] = True
    step = Step({"forward": lambda v: 1 if fits[v - 1] else 100}, budget=10)
    points, best = search(step, high=num_values)
    check_bracket(points, best, num_values)


@pytest.mark.parametrize("bad", [{"low": 0}, {"high": 0}, {"step": 0}])
def test_an_empty_range_is_refused(bad):
    step = Step({"forward": lambda v: v}, budget=10)
    with pytest.raises(UsageError, match=r"holds nothing to try; write LOW:HIGH"):
        find_largest(step, budget_bytes=10, **{"low": 1, "high": 8, **bad})
