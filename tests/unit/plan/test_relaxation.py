"""The relaxation's one promise: no choice that the simulator lets pass is better than its bound."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legroom import ways
from legroom.capture import Kind
from legroom.plan import _relaxation
from legroom.plan._effort import Effort
from legroom.plan._problem import Choice, build_problem
from legroom.plan._relaxation import Relaxation
from legroom.plan._search import Search
from legroom.plan.solvers import BruteForce
from tests.unit.plan.random_graphs import Builder, graphs
from tests.unit.plan.test_solvers import num_choices, problem_of

RANDOMLY = settings(
    max_examples=300, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)  # fmt: skip


def everything(problem):
    """Every choice, simulated: the archive then knows the optimum for every budget."""
    search = Search(problem)
    effort = Effort(search, None)
    BruteForce.solve(search, 0, effort)
    return search.archive


def check_bounds(problem, relaxation):
    """For every budget at which the optimum changes."""
    archive = everything(problem)
    for entry in archive.entries:
        for integral in (False, True):
            relaxed = relaxation.solve(entry.outcome.peak_bytes, integral=integral)
            if relaxed is None:
                assert not relaxation._costs  # nothing to decide
            else:
                assert relaxed.bound_ms <= entry.outcome.added_ms + 1e-6
    leanest = relaxation.solve(None)
    if leanest is not None:
        assert leanest.bound_ms <= archive.leanest().outcome.peak_bytes + 1e-3


@RANDOMLY
@given(graphs())
def test_the_bound_is_below_every_choice(graph):
    problem = problem_of(graph)
    if num_choices(problem) <= 300:
        check_bounds(problem, Relaxation(problem))


@RANDOMLY
@given(graphs(), st.integers(1, 3))
def test_few_samples_still_give_a_bound(graph, num_samples):
    problem = problem_of(graph)
    if num_choices(problem) > 300:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_relaxation, "_SMALL_PROBLEM", 0)
        patch.setattr(_relaxation, "_NUM_FORWARD_SAMPLES", 2)
        patch.setattr(_relaxation, "_NEGLIGIBLE", 0.1)  # some tensors are taken as given
        check_bounds(problem, Relaxation(problem, num_samples=num_samples))


def test_negligible_tensors_are_not_decided_on():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    made = []
    for number in range(70):
        (x,) = build.forward([x], 3 if number % 2 else 10_000)
        made.append(x)
    (gradient,) = build.backward([x], 10)
    for tensor in reversed(made[:-1]):
        (gradient,) = build.backward([gradient, tensor], 10)
    problem = build_problem(build.graph(), ways.select())
    search = Search(problem)
    whole = search.evaluate(search.hold_all(), "hold").peak_bytes
    relaxed = Relaxation(problem).solve(whole // 2)
    left_out = [n for n, share in enumerate(relaxed.shares) if share is None]
    assert left_out == list(range(1, 70, 2))
    # Every second tensor can be remade for one millisecond from what is taken as given.
    assert 14 <= relaxed.bound_ms <= 18


def test_an_impossible_budget_has_no_solution():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (b,) = build.forward([a], 50)
    (gradient,) = build.backward([b], 10)
    build.backward([gradient, a], 10)
    relaxation = Relaxation(build_problem(build.graph(), ways.select()))
    assert relaxation.solve(100) is None
    leanest = relaxation.solve(None)
    assert leanest.bound_ms == pytest.approx(160)
    assert relaxation.solve(160) is not None


def test_forbidden_choices_do_not_come_back():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (b,) = build.forward([a], 50)
    (gradient,) = build.backward([b], 10)
    build.backward([gradient, a, b], 10)
    problem = build_problem(build.graph(), ways.select())
    relaxation = Relaxation(problem)
    seen = []
    with relaxation.cutting():
        while (solved := relaxation.solve(10_000, integral=True)) is not None:
            assert solved.is_integral
            assert solved.options not in seen
            seen.append(solved.options)
            choice = Choice(solved.options, solved.variants)
            relaxation.forbid(choice, frozenset(range(len(problem.candidates))))
    assert len(seen) == num_choices(problem) == 4
    assert relaxation.solve(10_000, integral=True).bound_ms == 0  # all are allowed again


def test_a_first_life_may_reach_into_backward():
    """The caller lets go of t1 at operation 5: u is remade before that, v long after."""
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (handed_out,) = build.forward([x], 100)
    (u,) = build.forward([handed_out], 80)
    (v,) = build.forward([handed_out], 80)
    (y,) = build.forward([u, v], 5)
    (z,) = build.forward([y], 5, workspace_bytes=300)
    (gradient,) = build.backward([z, u], 5)
    (gradient,) = build.backward([gradient, y], 390)
    (gradient,) = build.backward([gradient], 5)
    build.backward([gradient, v], 5)
    build.hand_out(handed_out, 5)
    problem = build_problem(build.graph(), ways.select())
    check_bounds(problem, Relaxation(problem))
    leanest = everything(problem).leanest().outcome
    assert (leanest.peak_bytes, leanest.added_ms) == (420, 3.0)
