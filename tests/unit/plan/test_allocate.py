"""Bits go where gradients depend on them, within the same budget."""

from dataclasses import replace

import pytest

from legroom import ways
from legroom.plan._allocate import adjustables, with_least_error
from tests.unit.plan.made_up_graphs import chain, transformer
from tests.unit.plan.test_planner import planner_of

INTEGERS = ("hold", "integer2", "integer4", "integer8")


def of_numbers(graph):
    """The same with names, and with every tensor made of floating-point numbers."""
    return replace(
        graph,
        tensors=tuple(
            replace(each, shape=(each.num_bytes // 4,), dtype="float32") for each in graph.tensors
        ),
        operations=tuple(replace(each, node=f"node{each.index}") for each in graph.operations),
    )


def planned(graph, **options):
    graph = of_numbers(graph)
    options = {
        "ways": ways.select(INTEGERS, exactness=ways.Exactness.LOSSY),
        "variants": (),
        "exactness": "lossy",
        **options,
    }
    planner = planner_of(graph, **options)
    budget_bytes = (2 * planner.floor_bytes + planner.plain.peak_bytes) // 3
    return planner, budget_bytes


@pytest.fixture(params=[chain, transformer], ids=["chain", "transformer"])
def case(request):
    return planned(request.param())


def weights_of(found, heavy):
    return {each.place: 1.0 if number in heavy else 1e-4 for number, each in enumerate(found)}


def test_what_matters_gets_no_fewer_bits_than_what_does_not(case):
    planner, budget_bytes = case
    found = planner.adjustables(budget_bytes)
    assert len(found) > 2
    heavy = set(range(len(found) // 2))
    planner.allocate(weights_of(found, heavy))
    entry, order = planner._chosen(budget_bytes)
    errors = [own_error(order, each, entry) for each in found]
    matter, rest = errors[: len(heavy)], errors[len(heavy) :]
    assert sum(matter) / len(matter) <= sum(rest) / len(rest)


def test_the_budget_is_kept_and_the_error_never_grows(case):
    planner, budget_bytes = case
    before, order = planner._contest.best(budget_bytes)
    found = adjustables(order.search, before.choice)
    for heavy in (set(), {0}, {len(found) - 1}, set(range(0, len(found), 2))):
        weights = weights_of(found, heavy)
        after = with_least_error(order.search, before, budget_bytes, weights)
        assert order.search.simulator.run(after.choice) == after.outcome
        assert after.outcome.peak_bytes <= budget_bytes
        assert error_of(order, found, after, weights) <= error_of(order, found, before, weights)


def own_error(order, adjustable, entry):
    number = adjustable.numbers[0]
    options = order.search.problem.candidates[number].options
    return ways.get(options[entry.choice.options[number]].way).error


def error_of(order, found, entry, weights):
    return sum(weights[each.place] * own_error(order, each, entry) ** 2 for each in found)


def test_a_recipe_holds_no_more_than_before():
    planner, _ = planned(transformer(), preset="actnn")
    budget_bytes = planner.plain.peak_bytes - 1
    entry, order = planner._contest.best(budget_bytes)
    found = adjustables(order.search, entry.choice)
    after = with_least_error(
        order.search, entry, budget_bytes, weights_of(found, {0}), holds_no_more=True
    )

    def held(choice):
        return sum(
            each.options[index].saving.held_bytes
            for each, index in zip(order.search.problem.candidates, choice.options, strict=True)
        )

    assert held(after.choice) <= held(entry.choice)


def test_nothing_measured_changes_nothing(case):
    planner, budget_bytes = case
    before = planner.programs(budget_bytes)
    found = planner.adjustables(budget_bytes)
    planner.allocate(weights_of(found, {0}))
    planner.allocate({})
    assert planner.programs(budget_bytes) == before


def test_exact_plans_have_nothing_to_adjust():
    planner, budget_bytes = planned(
        transformer(), ways=ways.select(("hold", "remake")), exactness="bitwise"
    )
    assert planner.adjustables(budget_bytes) == []
