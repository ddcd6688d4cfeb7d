"""Rule 4: a solver against brute force, on random graphs."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legroom import variants, ways
from legroom.plan._effort import Effort
from legroom.plan._problem import build_problem
from legroom.plan._search import Search
from legroom.plan.solvers import BruteForce, Greedy, Milp
from tests.unit.plan.random_graphs import graphs


class Squeeze(ways.AbstractWay):
    """A third way, as later ones will be: holds a quarter, takes time to put and to get."""

    name, summary, origin, costs = "squeeze", "a quarter of the bytes", "this test", "time"
    exactness = ways.Exactness.BITWISE

    @classmethod
    def estimate(cls, tensor, producer, costs=(), readers=()):
        if tensor.num_bytes < 12:
            return None
        return ways.Saving(
            held_bytes=tensor.num_bytes // 4, put_ms=0.5, get_ms=1.0, put_bytes=3, get_bytes=5
        )


class StandIn(ways.AbstractWay):
    """Holds an eighth, from which nothing can be made again."""

    name, summary, origin, costs = "stand-in", "an eighth of the bytes", "this test", "time"
    exactness = ways.Exactness.BITWISE

    @classmethod
    def estimate(cls, tensor, producer, costs=(), readers=()):
        if not readers or tensor.num_bytes % 3:
            return None
        return ways.Saving(held_bytes=tensor.num_bytes // 8, put_ms=0.75, readers_only=True)


def problem_of(graph):
    return build_problem(graph, (*ways.select(), Squeeze, StandIn), variants.select())


def num_choices(problem):
    total = 1
    for number, candidate in enumerate(problem.candidates):
        if problem.tied[number][0] == number:
            total *= len(candidate.options)
    for position in problem.variant_names:
        total *= len(problem.needs.get(position, ((),)))
    return total


def solved(solver, problem, budget_bytes):
    search = Search(problem)
    effort = Effort(search, None)
    verdict = solver.solve(search, budget_bytes, effort)
    return search.archive.best(budget_bytes), verdict


@pytest.mark.parametrize("num_graphs", [150, pytest.param(500, marks=pytest.mark.slow)])
def test_milp_equals_brute_force(num_graphs):
    @settings(
        max_examples=num_graphs, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )  # fmt: skip
    @given(graphs(), st.floats(0.35, 1.0))
    def check(graph, share):
        compare_with_brute_force(graph, share)

    check()


def compare_with_brute_force(graph, share):
    problem = problem_of(graph)
    if num_choices(problem) > 3000:
        return
    search = Search(problem)
    plain = search.evaluate(search.hold_all(), "hold").peak_bytes
    budget_bytes = int(share * plain)
    truth, _ = solved(BruteForce, problem, budget_bytes)
    found, verdict = solved(Milp, problem, budget_bytes)
    assert (found is None) == (truth is None)
    if truth is None:
        return
    assert found.outcome.peak_bytes <= budget_bytes
    assert found.outcome.added_ms == pytest.approx(truth.outcome.added_ms, abs=1e-6)
    assert verdict.bound_ms <= truth.outcome.added_ms + 1e-6
    again, _ = solved(Milp, problem, budget_bytes)
    assert again.choice == found.choice
    quick, _ = solved(Greedy, problem, budget_bytes)
    if quick is not None:
        assert quick.outcome.peak_bytes <= budget_bytes
        assert quick.outcome.added_ms >= truth.outcome.added_ms - 1e-6
