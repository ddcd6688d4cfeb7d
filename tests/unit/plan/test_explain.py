"""Decisions in words, and what is alive at the peak, on steps whose figures are known."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from legroom import ways
from legroom.capture import Kind
from legroom.plan._explain import alive_at_peak, decisions_of, timeline_of, variants_of
from legroom.plan._problem import Choice, build_problem
from legroom.plan._search import Search
from legroom.plan._simulate import NEVER_FITS
from tests.unit.plan.random_graphs import Builder, graphs
from tests.unit.plan.test_simulate import chain_of_three, choices
from tests.unit.plan.test_solvers import problem_of


def search_of(build):
    return Search(build_problem(build.graph(), ways.select()))


@settings(max_examples=200, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(graphs(), st.data())
def test_decisions_add_up_whatever_is_chosen(graph, data):
    problem = problem_of(graph)
    search, choice = Search(problem), data.draw(choices(problem))
    outcome = search.evaluate(choice, "any")
    assume(outcome.peak_bytes < NEVER_FITS)
    added_ms = sum(each.added_ms for each in decisions_of(search, choice))
    assert added_ms == pytest.approx(outcome.added_ms, abs=1e-9)
    timeline = timeline_of(search, choice)
    assert max(num_bytes for _, num_bytes in timeline) == outcome.peak_bytes


def test_every_decision_has_its_reason():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (checkpoint,) = build.forward([x], 40, name="aten.mm.default")
    (between,) = build.forward([checkpoint], 50, name="aten.cos.default", time_ms=2.0)
    (wide,) = build.forward([between], 200, name="aten.sin.default", time_ms=1.0)
    (mask,) = build.forward([wide], 20, name="aten.bernoulli.default", is_random=True)
    (gradient,) = build.backward([mask], 5)
    build.backward([gradient, wide], 5)
    search = search_of(build)
    found = {each.tensor: each for each in decisions_of(search, search.holding([0, 3]))}
    assert {name: each.way for name, each in found.items()} == {
        "t1": "hold", "t2": "remake", "t3": "remake", "t4": "hold",
    }  # fmt: skip
    assert found["t1"].reason.startswith("backward does not read it")
    assert found["t2"].reason == "on the way to something else that is remade"
    assert found["t3"].reason.startswith("running sin again gives")
    assert found["t4"].reason == "there is no other way for it"
    assert [each.num_bytes for each in found.values()] == [0, 0, 200, 20]
    assert [each.held_bytes for each in found.values()] == [40, 0, 0, 20]
    assert [each.added_ms for each in found.values()] == [0.0, 2.0, 1.0, 0.0]
    assert found["t3"].operation == "aten.sin.default"


def test_what_is_alive_while_an_operation_runs():
    build = chain_of_three()
    search = search_of(build)
    alive = alive_at_peak(search, search.hold_all())
    assert [(each.name, each.num_bytes) for each in alive] == [
        ("t3", 300), ("t2", 200), ("t1", 100), ("t4", 30), ("all inputs", 10),
    ]  # fmt: skip


def test_what_is_alive_while_something_is_remade():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100, workspace_bytes=500)
    (b,) = build.forward([a], 50)
    (gradient,) = build.backward([b], 80)
    build.backward([gradient, a], 5)
    search = search_of(build)
    choice = search.holding([1])
    outcome = search.evaluate(choice, "any")
    assert (outcome.peak_bytes, outcome.peak_position) == (10 + 80 + 100 + 500, 3)
    names = {each.name: each.num_bytes for each in alive_at_peak(search, choice)}
    # The gradient that operation 3 is about to make is not there yet.
    assert {name: names[name] for name in ("t1", "t3", "all inputs")} == {
        "t1": 100, "t3": 80, "all inputs": 10,
    }  # fmt: skip
    assert "t4" not in names


def test_other_formulas_are_listed_by_node():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    (a,) = build.forward([x], 100)
    (b,) = build.forward([a], 100, name="aten.relu.default")
    (gradient,) = build.backward([b], 5)
    (gradient,) = build.backward(
        [gradient, b], 5, name="aten.threshold_backward.default", node="threshold_backward_1"
    )
    build.backward([gradient, a], 5)
    problem = problem_of(build.graph())
    assert problem.variant_names == {3: ("", "relu-from-input")}
    assert variants_of(problem, Choice((0, 0))) == ()
    assert variants_of(problem, Choice((0, 0), ((3, 1),))) == (
        ("threshold_backward_1", "relu-from-input"),
    )


def test_long_timelines_are_thinned_out():
    build = Builder()
    x = build.tensor(10, kind=Kind.INPUTS)
    for _ in range(500):
        (x,) = build.forward([x], 10)
    build.forward([x], 10_000)
    for _ in range(500):
        (x,) = build.forward([x], 10)
    search = search_of(build)
    timeline = timeline_of(search, search.hold_all())
    assert len(timeline) <= 400
    assert (500, 10_020) in timeline
