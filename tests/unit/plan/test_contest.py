"""A bound on what forward leaves for backward, beside the bound on the peak."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legroom import variants, ways
from legroom.errors import InfeasibleBudgetError, InfeasibleStashError, UsageError
from legroom.plan._budget import parse_stash
from legroom.plan._planner import Planner
from legroom.plan._problem import Choice, build_problem
from legroom.plan._simulate import Simulator
from tests.unit.plan.made_up_graphs import MADE_UP, as_recorded
from tests.unit.plan.random_graphs import graphs
from tests.unit.plan.test_planner import planner_of
from tests.unit.plan.test_solvers import Squeeze, num_choices

FEW = 400


def best_by_trying(problem, budget_bytes, stash_bytes):
    """The least added time within both bounds, of all choices there are."""
    simulator = Simulator(problem)
    options = [range(len(each.options)) for each in problem.candidates]
    positions = [p for p in problem.variant_names if p in problem.needs]
    formulas = [range(len(problem.needs[p])) for p in positions]
    best = None
    for picked in itertools.product(*options):
        if any(picked[n] != picked[tied[0]] for n, tied in enumerate(problem.tied)):
            continue
        for variant in itertools.product(*formulas):
            choice = Choice(picked, tuple(zip(positions, variant, strict=True)))
            outcome = simulator.run(choice)
            if outcome.peak_bytes > budget_bytes or simulator.stash_bytes(choice) > stash_bytes:
                continue
            best = outcome.added_ms if best is None else min(best, outcome.added_ms)
    return best


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(graphs(max_operations=4), st.floats(0.1, 1.0), st.floats(0.1, 0.9))
def test_both_bounds_are_kept_at_the_least_added_time(graph, peak_share, stash_share):
    enabled = (*ways.select(), Squeeze)
    problem = build_problem(graph, enabled, variants.select())
    if num_choices(problem) > FEW or not problem.left_by_forward:
        return
    plain = as_recorded(graph)
    planner = Planner(
        plain, graph, ways=enabled, variants=variants.select(), stash=parse_stash("50%")
    )
    budget_bytes = int(peak_share * planner.plain.peak_bytes)
    planner.stash_bytes = stash_bytes = int(stash_share * planner.plain.stash_bytes)
    expected = best_by_trying(problem, budget_bytes, stash_bytes)
    try:
        plan = planner.plan(budget_bytes)
    except (InfeasibleBudgetError, InfeasibleStashError):
        assert expected is None
        return
    assert plan.predicted_peak_bytes <= budget_bytes
    assert plan.stash_bytes <= stash_bytes
    if plan.preset != "plain" and expected is not None and plan.order == "captured":
        assert plan.added_ms == pytest.approx(expected)


@pytest.mark.parametrize("name", MADE_UP)
def test_half_of_the_stash_is_kept_within_the_plain_peak(name):
    free = planner_of(MADE_UP[name]())
    planner = planner_of(MADE_UP[name](), stash=parse_stash("50%"))
    top_bytes = planner.plain.peak_bytes
    plan = planner.plan(top_bytes)
    assert plan.stash_bytes <= planner.stash_bytes == planner.plain.stash_bytes // 2
    assert plan.predicted_peak_bytes <= top_bytes
    fixed_bytes = max(planner.problem.left_by_forward.values())
    assert plan.stash_bytes == fixed_bytes + sum(each.held_bytes for each in plan.decisions)
    assert planner.programs(top_bytes) != {}
    assert planner.floor_bytes == free.floor_bytes


def test_a_bound_that_nothing_keeps_says_what_is_the_least():
    only_hold = {"ways": ways.select(("hold",)), "variants": ()}
    planner = planner_of(MADE_UP["chain"](), stash=parse_stash(1), **only_hold)
    with pytest.raises(InfeasibleStashError, match="the least that was found is") as error:
        planner.plan(planner.plain.peak_bytes)
    least_bytes = error.value.least_bytes
    enough = planner_of(MADE_UP["chain"](), stash=parse_stash(least_bytes), **only_hold)
    assert enough.plan(enough.plain.peak_bytes).stash_bytes <= least_bytes


def test_a_budget_below_the_floor_is_named_first():
    planner = planner_of(MADE_UP["chain"](), stash=parse_stash("50%"))
    with pytest.raises(InfeasibleBudgetError):
        planner.plan(planner.floor_bytes // 2)


@pytest.mark.parametrize("value", [0, "0%", "120%", "much", True, -3, "-5%"])
def test_bounds_that_are_none_are_refused(value):
    with pytest.raises(UsageError, match="stash"):
        parse_stash(value)
