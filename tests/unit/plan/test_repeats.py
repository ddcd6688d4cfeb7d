"""Rounds that repeat within a step: one stands for several, and nothing that is higher is lost."""

import itertools

import pytest

from legroom.capture import Holding, Kind, ObservedRun, ObservedStep, Phase, Stretch
from legroom.plan._repeats import without_repeats

KIB = 1024


class Loop:
    """A step that is written down round by round."""

    def __init__(self):
        self.stretches, self.holdings = [], []

    def run(self, number, *, is_backward):
        phase = Phase.BACKWARD if is_backward else Phase.FORWARD
        run = ObservedRun(kind=1, call=number, piece=0, number=number, is_backward=is_backward)
        self.stretches.append(Stretch(phase, run))

    def other(self, passing_bytes=0):
        self.stretches.append(Stretch(Phase.OTHER, passing_bytes=passing_bytes))

    def keep(self, num_bytes, *, died=None, born=None, place=None):
        at = len(self.stretches) - 1 if born is None else born
        self.holdings.append(Holding(num_bytes, Kind.TEMPORARIES_BACKWARD, at, died, place))

    def step(self):
        return ObservedStep(tuple(self.stretches), tuple(self.holdings), peak_bytes=0)


def searching(num_rounds, *, growth=1, output_bytes=lambda number: 4 * KIB):
    """L-BFGS: in each round one more stretch of the loop, and a history that grows."""
    loop = Loop()
    for number in range(num_rounds):
        loop.run(number, is_backward=False)
        first = len(loop.stretches) - 1
        loop.run(number, is_backward=True)
        loop.keep(output_bytes(number), born=first, died=first + 2, place=("cat", 0))
        for _ in range(1 + growth * number):
            loop.other(passing_bytes=8 * KIB)
        loop.keep(64 * KIB)
    return loop.step()


def level_at(step, place):
    return sum(
        each.num_bytes
        for each in step.holdings
        if each.born <= place and (each.died is None or each.died >= place)
    )


def levels_of_last_runs(step, count):
    places = [place for place, each in enumerate(step.stretches) if each.run is not None]
    return [level_at(step, place) for place in places[-count:]]


@pytest.mark.parametrize("growth", [1, 3])
def test_rounds_that_grow_are_left_out(growth):
    step = searching(20, growth=growth)
    short = without_repeats(step)
    assert len(short.runs) == 4
    assert levels_of_last_runs(short, 4) == levels_of_last_runs(step, 4)
    assert sum(each.times for each in short.stretches if each.run is not None) == 40


def test_what_the_loop_keeps_is_there_without_its_rounds():
    step = searching(20)
    short = without_repeats(step)
    last, last_short = len(step.stretches) - 1, len(short.stretches) - 1
    assert level_at(short, last_short) == level_at(step, last)
    for each in short.holdings:
        assert -1 <= each.born < len(short.stretches)
        assert each.died is None or each.born <= each.died < len(short.stretches)


def test_few_rounds_that_grow_stay_as_they_are():
    step = searching(8)
    assert without_repeats(step) == step


def test_a_round_that_is_higher_than_the_next_stays():
    step = searching(20)
    high = next(place for place, each in enumerate(step.stretches) if each.run is None)
    stretches = list(step.stretches)
    stretches[high] = Stretch(Phase.OTHER, passing_bytes=64 * 1024 * KIB)
    short = without_repeats(ObservedStep(tuple(stretches), step.holdings, peak_bytes=0))
    assert max(each.passing_bytes for each in short.stretches) == 64 * 1024 * KIB
    assert len(short.runs) == 6


def test_a_round_whose_output_is_another_stays():
    step = searching(20, output_bytes=lambda number: (3 if number == 10 else 4) * KIB)
    short = without_repeats(step)
    found = [each.num_bytes for each in short.holdings if each.place is not None]
    assert found.count(3 * KIB) == 1


def test_rounds_are_followed_in_the_order_of_their_backwards():
    """Two runs that are differentiated first in first out are not those of last in first out."""
    loop, numbers = Loop(), itertools.count()
    for turn in range(20):
        first, second = next(numbers), next(numbers)
        loop.run(first, is_backward=False)
        loop.run(second, is_backward=False)
        for number in (first, second) if turn % 2 else (second, first):
            loop.run(number, is_backward=True)
        for _ in range(1 + turn):
            loop.other()
        loop.keep(64 * KIB)
    short = without_repeats(loop.step())
    assert len(short.runs) > 4
