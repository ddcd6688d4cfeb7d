"""Rewrites: the step as it is written competes; those that cost time are for where none fits."""

from dataclasses import replace

import pytest

from legroom.capture import Capture
from legroom.errors import InfeasibleBudgetError
from legroom.plan import Judge, Plan, PlanOptions, plan_with_reserve
from legroom.variants import ChunkedMLP, LossWithoutLogits, SpelledOut
from tests.unit.plan.made_up_graphs import chain

WITHOUT = (SpelledOut.apply, LossWithoutLogits.apply)
ALL = (*WITHOUT, ChunkedMLP.apply)
ROUNDING = PlanOptions(budget="50%", exactness="rounding")


STEP_MS = 100.0


def captured(*, has_reserve=True, has_as_written=False):
    graph = chain()
    capture = Capture(graph, graph, 0.0)
    if has_as_written:
        capture = replace(capture, as_written=capture)
    reserve = Capture(graph, graph, 0.0, rewritten_by=(ChunkedMLP.apply,), without_reserve=graph)
    return replace(capture, reserve=reserve) if has_reserve else capture


class Plans:
    """Says which captures were planned; the floors are as given, without the reserve and with.

    `added` is what plans add to the step, and `peaks` what they take, by what is planned.
    """

    def __init__(self, budget_bytes, *floors, added=None, peaks=None, as_written_ms=None):
        self.budget_bytes = budget_bytes
        self.floors = dict(zip(("first", "reserve", "as written"), floors, strict=False))
        self.added, self.peaks, self.as_written_ms = added or {}, peaks or {}, as_written_ms
        self.planned = []

    def __call__(self, capture, options):
        name = "as written" if options.is_as_written else "first"
        if capture.reserve is None and capture.rewritten_by:
            name = "reserve"
        assert (ChunkedMLP.apply in options.rewrites) == (name == "reserve")
        assert bool(options.rewrites) == (name != "as written")
        self.planned.append(name)
        floor_bytes = self.floors[name]
        if floor_bytes > self.budget_bytes:
            raise InfeasibleBudgetError(budget_bytes=self.budget_bytes, floor_bytes=floor_bytes)
        return name, floor_bytes

    def plan_of(self, planned):
        return Plan(
            budget_bytes=self.budget_bytes,
            predicted_peak_bytes=self.peaks.get(planned[0], 0),
            added_ms=self.added.get(planned[0], 0.0),
            bound_ms=0.0,
            gap=0.0,
            preset="milp",
            exactness="rounding",
        )

    def step_ms(self, planned):
        return self.as_written_ms if planned[0] == "as written" else STEP_MS


def plan(plans, options=ROUNDING, **kwargs):
    judge = Judge(
        floor_bytes=lambda each: each[1],
        plan=plans.plan_of,
        step_ms=plans.step_ms,
        as_written_ms=lambda each: plans.as_written_ms,
    )
    return plan_with_reserve(captured(**kwargs), options, plans, judge=judge)


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
    assert plan(plans, replace(ROUNDING, budget="lowest"))[0] == taken
    assert plans.planned == ["first", "reserve"]


@pytest.mark.parametrize(
    ("changed", "rewrites", "reserve"),
    [
        ({}, WITHOUT, ALL),
        ({"budget": "lowest"}, WITHOUT, ALL),
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


BOTH = {"has_as_written": True, "has_reserve": False}


@pytest.mark.parametrize(
    ("added_ms", "as_written_ms", "other_ms", "planned", "taken"),
    [
        # As fast with its plan as the other without any: there is nothing to look for.
        (5, 106, 0, ["first"], "first"),
        (0, 100, 0, ["first"], "first"),
        (20, 105, 5, ["first", "as written"], "as written"),
        (5, 95, 6, ["first", "as written"], "as written"),
        (5, 95, 30, ["first", "as written"], "first"),
    ],
)
def test_within_a_budget_the_faster_step_is_taken(
    added_ms, as_written_ms, other_ms, planned, taken
):
    added = {"first": added_ms, "as written": other_ms}
    plans = Plans(50, 40, 20, 40, added=added, as_written_ms=as_written_ms)
    assert plan(plans, **BOTH)[0] == taken
    assert plans.planned == planned


def test_at_no_time_the_lower_peak_is_taken():
    free = replace(ROUNDING, budget="free")
    for lower, taken in ((137, "as written"), (200, "first")):
        peaks = {"first": 190, "as written": lower}
        plans = Plans(500, 40, 20, 40, peaks=peaks, as_written_ms=90.0)
        assert plan(plans, free, **BOTH)[0] == taken


def test_the_lowest_of_three_floors_is_taken():
    floor = replace(ROUNDING, budget="lowest")
    for floors, taken in (((40, 30, 20), "as written"), ((40, 20, 30), "reserve")):
        plans = Plans(100, *floors, as_written_ms=90.0)
        assert plan(plans, floor, has_as_written=True)[0] == taken
        assert plans.planned == ["first", "as written", "reserve"]


def test_as_it_is_written_comes_before_the_reserve():
    plans = Plans(30, 40, 20, 25, as_written_ms=90.0)
    assert plan(plans, has_as_written=True)[0] == "as written"
    assert plans.planned == ["first", "as written"]


@pytest.mark.parametrize(
    ("changed", "is_planned"),
    [
        ({}, True),
        ({"budget": "free"}, True),
        ({"budget": "lowest"}, True),
        ({"budget": None, "device": "RTX4090"}, True),
        ({"budget": None}, False),
        ({"preset": "tempo"}, False),
        ({"exactness": "bitwise"}, False),
        ({"ways": ("replay", "spelled-out"), "asked": ("replay", "spelled-out")}, False),
        ({"is_as_written": True}, False),
    ],
)
def test_where_the_step_is_planned_as_it_is_written(changed, is_planned):
    assert replace(ROUNDING, **changed).plans_as_written is is_planned


def test_what_is_in_reserve_is_so_for_the_step_as_written():
    options = ROUNDING.as_written()
    assert options.rewrites == ()
    assert options.with_reserve().rewrites == ALL


def test_of_floors_that_are_the_same_the_faster_is_taken():
    floor = replace(ROUNDING, budget="lowest")
    for lower, taken in ((1996, "first"), (1900, "reserve")):
        plans = Plans(9999, 2000, lower, added={"reserve": 20.0})
        assert plan(plans, floor)[0] == taken
