"""Rewrites that cost time: planned without first, and with them where that is needed."""

from dataclasses import replace

import pytest

from legroom.capture import Capture
from legroom.errors import InfeasibleBudgetError
from legroom.plan import PlanOptions, plan_with_reserve
from legroom.variants import ChunkedMLP, LossWithoutLogits, SpelledOut
from tests.unit.plan.made_up_graphs import chain

WITHOUT = (SpelledOut.apply, LossWithoutLogits.apply)
ALL = (*WITHOUT, ChunkedMLP.apply)
ROUNDING = PlanOptions(budget="50%", exactness="rounding")


def captured(*, has_reserve=True):
    graph = chain()
    capture = Capture(graph, graph, 0.0)
    reserve = Capture(graph, graph, 0.0, rewritten_by=(ChunkedMLP.apply,), without_reserve=graph)
    return replace(capture, reserve=reserve) if has_reserve else capture


class Plans:
    """Says which captures were planned; the floors are as given, without the reserve and with."""

    def __init__(self, budget_bytes, *floors):
        self.budget_bytes, self.floors = budget_bytes, floors
        self.planned = []

    def __call__(self, capture, options):
        is_reserve = capture.reserve is None and bool(capture.rewritten_by)
        assert (ChunkedMLP.apply in options.rewrites) == is_reserve
        self.planned.append("reserve" if is_reserve else "first")
        floor_bytes = self.floors[is_reserve]
        if floor_bytes > self.budget_bytes:
            raise InfeasibleBudgetError(budget_bytes=self.budget_bytes, floor_bytes=floor_bytes)
        return self.planned[-1], floor_bytes


def plan(plans, options=ROUNDING, **kwargs):
    return plan_with_reserve(captured(**kwargs), options, plans, floor_bytes=lambda each: each[1])


def test_a_plan_that_fits_without_is_taken():
    plans = Plans(50, 40, 20)
    assert plan(plans)[0] == "first"
    assert plans.planned == ["first"]


def test_where_none_fits_it_is_planned_with_the_reserve():
    plans = Plans(30, 40, 20)
    assert plan(plans)[0] == "reserve"
    assert plans.planned == ["first", "reserve"]


@pytest.mark.parametrize("floors", [(40, 20), (20, 40)])
def test_where_neither_fits_the_lower_floor_is_told(floors):
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(Plans(10, *floors))
    assert caught.value.floor_bytes == 20


def test_without_a_reserve_the_error_is_its_own():
    plans = Plans(10, 40, 20)
    with pytest.raises(InfeasibleBudgetError):
        plan(plans, has_reserve=False)
    assert plans.planned == ["first"]


@pytest.mark.parametrize(
    ("floors", "taken"), [((40, 20), "reserve"), ((20, 40), "first"), ((20, 20), "first")]
)
def test_as_little_as_possible_is_the_lower_floor(floors, taken):
    plans = Plans(100, *floors)
    assert plan(plans, replace(ROUNDING, budget="floor"))[0] == taken
    assert plans.planned == ["first", "reserve"]


@pytest.mark.parametrize(
    ("changed", "rewrites", "reserve"),
    [
        ({}, WITHOUT, ALL),
        ({"budget": "floor"}, WITHOUT, ALL),
        ({"budget": None, "activations": "50%"}, WITHOUT, ALL),
        ({"budget": None, "device": "RTX4090"}, WITHOUT, ALL),
        ({"budget": None}, WITHOUT, ()),
        ({"budget": "free"}, WITHOUT, ()),
        ({"preset": "tempo"}, WITHOUT, ()),
        ({"exactness": "bitwise"}, (), ()),
        ({"ways": ("replay", "chunked-mlp"), "asked": ("replay", "chunked-mlp")}, ALL[2:], ()),
        ({"ways": ("replay", "spelled-out")}, WITHOUT[:1], ()),
        ({"ways": ("replay", "chunked-mlp")}, (), ALL[2:]),
    ],
)
def test_what_is_done_at_once_and_what_is_in_reserve(changed, rewrites, reserve):
    options = replace(ROUNDING, **changed)
    assert options.rewrites == rewrites
    assert options.reserve == reserve
    if reserve:
        assert options.with_reserve().rewrites == reserve
        assert options.with_reserve().reserve == ()
