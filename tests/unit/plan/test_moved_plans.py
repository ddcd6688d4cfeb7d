"""Plans that may hold tensors elsewhere: bounds, budgets, recipes."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from legroom import variants, ways
from legroom.plan import presets
from legroom.plan._effort import Allowance, Effort
from legroom.plan._planner import Planner
from legroom.plan._problem import Choice, build_problem
from legroom.plan._relaxation import Relaxation
from legroom.plan._search import Search
from legroom.plan._simulate import Simulator, Trace
from legroom.ways import _move
from tests.unit.plan.made_up_graphs import MADE_UP, as_recorded
from tests.unit.plan.random_graphs import graphs
from tests.unit.ways.test_move import SPEED

FEW = 300
WAYS = (*ways.select(), ways.Disk)
BOTH = (*ways.select(), ways.Host, ways.Disk)


@pytest.fixture(autouse=True, scope="module")
def made_up_tensors_are_moved():
    """They are small, and have no shape."""
    before = _move._LEAST_BYTES, _move.is_dense
    _move._LEAST_BYTES, _move.is_dense = 1, lambda tensor: True
    yield
    _move._LEAST_BYTES, _move.is_dense = before


def fast(times, tiers=("disk",)):
    """Tiers so many times as fast as the made-up steps need; latency is what there is."""
    quick = {
        name: getattr(SPEED, name) / times
        for name in ("computing_latency_ms_put", "computing_latency_ms_get", "latency_ms_put",
                     "latency_ms_get")
    }  # fmt: skip
    return dict.fromkeys(tiers, replace(SPEED, **quick))


def problem_of(graph, times=1.0, tiers=("disk",)):
    return build_problem(graph, BOTH, variants.select(), speeds=fast(times, tiers))


def all_choices(problem):
    options = [range(len(each.options)) for each in problem.candidates]
    for picked in itertools.product(*options):
        if all(picked[n] == picked[tied[0]] for n, tied in enumerate(problem.tied)):
            yield Choice(picked)


def num_choices(problem):
    total = 1
    for candidate in problem.candidates:
        total *= len(candidate.options)
    return total


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    graphs(max_operations=3),
    st.sampled_from([0.1, 1.0, 10.0]),
    st.floats(0.2, 1.0),
    st.sampled_from([("disk",), ("host", "disk")]),
)
def test_no_choice_is_faster_than_the_bound(graph, times, share, tiers):
    problem = problem_of(graph, times, tiers)
    event(f"tiers {len(problem.moves)}, few {num_choices(problem) <= FEW}")
    if num_choices(problem) > FEW or not problem.moves:
        return
    simulator = Simulator(problem)
    outcomes = [simulator.run(choice) for choice in all_choices(problem)]
    budget_bytes = int(share * max(each.peak_bytes for each in outcomes))
    fitting = [each.added_ms for each in outcomes if each.peak_bytes <= budget_bytes]
    relaxed = Relaxation(problem).solve(budget_bytes)
    if fitting:
        assert relaxed is not None
        if not problem.variant_names:  # choices here take the first formula
            assert relaxed.bound_ms <= min(fitting) + 1e-6


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(graphs(max_operations=4), st.data())
def test_what_waits_is_in_memory_for_no_longer(graph, data):
    problem = problem_of(graph)
    search = Search(problem)
    behind = search.moving(search.hold_all(), range(len(problem.candidates)))
    event(f"moves {behind != search.hold_all()}")
    picked = list(behind.options)
    for number, candidate in enumerate(problem.candidates):
        if candidate.options[picked[number]].move:
            picked[number] += 1
            assert candidate.options[picked[number]].saving.waits
    waiting = Choice(tuple(picked))
    simulator = search.simulator
    assert simulator.run(waiting).peak_bytes <= simulator.run(behind).peak_bytes
    assert simulator.stash_bytes(waiting) <= simulator.stash_bytes(behind)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(graphs(max_operations=5), st.sampled_from([0.2, 3.0, 1000.0]), st.data())
def test_memory_is_what_the_timetable_says(graph, times, data):
    """Counted anew for each position, where nothing is run again: an oracle of the simulator's."""
    problem = problem_of(graph, times)
    search = Search(problem)
    choice = search.hold_all()
    options = list(choice.options)
    for group in {tied[0]: tied for tied in problem.tied}.values():
        can = [
            index
            for index, each in enumerate(problem.candidates[group[0]].options)
            if each.saving.keeps_whole or each.move
        ]
        picked = data.draw(st.sampled_from(can))
        for number in group:
            options[number] = picked
    choice = Choice(tuple(options))
    trace = Trace()
    search.simulator.run(choice, trace)
    extra = trace.extra_during(problem.num_positions)
    reads = {
        number: [p for p, needs in problem.needs.items() if number in needs[0]]
        for number in range(len(problem.candidates))
    }
    made = trace.timetable
    for position in range(problem.num_positions):
        expected = 0
        for number, candidate in enumerate(problem.candidates):
            late = [p for p in reads[number] if p > candidate.last_forward_use]
            if not late or not candidate.last_forward_use < position <= max(late):
                continue
            saving = candidate.options[options[number]].saving
            if saving.keeps_whole:
                expected += candidate.num_bytes
            elif saving.waits:
                expected += candidate.num_bytes if position >= min(late) else 0
            elif position < made.settled_before[number] or position >= made.fetched_before[number]:
                expected += saving.moved_bytes
        assert extra[position] == expected


@pytest.mark.parametrize("times", [0.2, 3.0, 1000.0])
def test_what_is_still_leaving_counts_as_stash(times):
    search = search_of(MADE_UP["chain"](), times)
    choice = search.moving(search.hold_all(), range(len(search.problem.candidates)))
    trace = Trace()
    search.simulator.run(choice, trace)
    (turn,) = trace.left
    expected = sum(
        each.options[choice.options[number]].saving.moved_bytes
        if number in trace.timetable.settled_before
        else each.num_bytes
        for number, each in enumerate(search.problem.candidates)
        if number in trace.put and trace.timetable.settled_before.get(number, turn + 1) > turn
    )
    assert trace.left[turn] == expected + search.problem.left_by_forward[turn]


@pytest.mark.parametrize("make", MADE_UP.values(), ids=list(MADE_UP))
@pytest.mark.parametrize("times", [0.05, 1.0, 20.0])
def test_with_the_disk_no_plan_is_slower_than_without_or_with_all_on_it(make, times):
    graph = make()
    plain = as_recorded(graph)
    options = {"variants": variants.select(), "allowance": Allowance(5.0)}
    without = Planner(plain, graph, ways=ways.select(), **options)
    planner = Planner(plain, graph, ways=WAYS, speeds=fast(times), **options)
    assert planner.floor_bytes <= without.floor_bytes
    forced = Planner(plain, graph, ways=WAYS, speeds=fast(times), preset="vdnn", **options)
    for share in (0.2, 0.6):
        top, floor = without.plain.peak_bytes, without.floor_bytes
        budget_bytes = floor + int(share * (top - floor))
        plan = planner.plan(budget_bytes)
        assert plan.predicted_peak_bytes <= budget_bytes
        assert plan.added_ms <= without.plan(budget_bytes).added_ms + 1e-9
    everything = forced.plan(forced.floor_bytes)
    assert planner.plan(forced.floor_bytes).added_ms <= everything.added_ms + 1e-9


TIERS = ("host", "disk")


@pytest.mark.parametrize("make", MADE_UP.values(), ids=list(MADE_UP))
@pytest.mark.parametrize("times", [0.05, 1.0, 20.0])
def test_with_another_tier_no_plan_is_slower(make, times):
    graph = make()
    options = {"ways": BOTH, "variants": variants.select(), "allowance": Allowance(5.0)}
    plain = as_recorded(graph)
    one = Planner(plain, graph, speeds=fast(times, ("host",)), **options)
    both = Planner(plain, graph, speeds=fast(times, TIERS), **options)
    assert both.floor_bytes <= one.floor_bytes
    for share in (0.2, 0.6):
        budget_bytes = one.floor_bytes + int(share * (one.plain.peak_bytes - one.floor_bytes))
        assert both.plan(budget_bytes).predicted_peak_bytes <= budget_bytes
        assert both.plan(budget_bytes).added_ms <= one.plan(budget_bytes).added_ms + 1e-9


def test_two_tiers_move_at_the_same_time():
    """The same trips: all to one tier, and every other one to another tier."""
    problem = problem_of(MADE_UP["chain"](), 0.1, TIERS)
    search = Search(problem)
    numbers = [n for n, each in enumerate(problem.candidates) if search._behind[n] is not None]

    def moved(tier_of):
        options = list(search.hold_all().options)
        for place, number in enumerate(numbers):
            options[number] = next(
                index
                for index, each in enumerate(problem.candidates[number].options)
                if each.move == each.way == tier_of(place) and not each.saving.waits
            )
        return Choice(tuple(options))

    one = moved(lambda place: "disk")
    other = moved(lambda place: "host")
    both = moved(lambda place: TIERS[place % 2])
    assert search.waited_ms(one) == search.waited_ms(other) > 0
    assert search.waited_ms(both) < search.waited_ms(one)


def test_a_bound_knows_of_both_channels():
    bounds = {}
    for tiers in (("disk",), TIERS):
        problem = problem_of(MADE_UP["chain"](), 0.02, tiers)
        only = replace(
            problem,
            candidates=tuple(
                replace(
                    each, options=tuple(o for o in each.options if o.move and not o.saving.waits)
                )
                if any(o.move for o in each.options)
                else each
                for each in problem.candidates
            ),
        )
        bounds[tiers] = Relaxation(only).solve(1 << 60).bound_ms
    assert 0 < bounds[TIERS] < bounds["disk",]


def test_what_is_run_again_is_moved_where_that_is_faster():
    search = search_of(MADE_UP["transformer"](), times=20.0)
    lean = search.holding(())
    budget_bytes = search.simulator.run(search.hold_all()).peak_bytes
    before = search.evaluate(lean, "lean")
    moved = search.move(lean, budget_bytes, "moved", Effort(search, 1000, float("inf")))
    after = search.evaluate(moved, "moved")
    assert after.added_ms < before.added_ms
    assert after.peak_bytes <= budget_bytes
    options = [each.options[moved.options[n]] for n, each in enumerate(search.problem.candidates)]
    assert any(option.move for option in options)


def search_of(graph, times=1000.0):
    return Search(problem_of(graph, times))


def moved_by(name, search):
    choice = next(iter(presets.get(name).choices(search)))
    return choice, [
        number
        for number, candidate in enumerate(search.problem.candidates)
        if candidate.options[choice.options[number]].move
    ]


def test_vdnn_moves_all_that_backward_reads():
    search = search_of(MADE_UP["unet"]())
    _, moved = moved_by("vdnn", search)
    read = [n for n, each in enumerate(search.problem.candidates) if each.late_uses]
    assert moved == [n for n in read if search._behind[n] is not None] != []


def test_swapping_waits_for_nothing():
    search = search_of(MADE_UP["transformer"](), times=5.0)
    choice, moved = moved_by("swap", search)
    assert moved
    assert search.waited_ms(choice) == 0


def test_superneurons_moves_what_is_expensive_and_remakes_the_rest():
    search = search_of(MADE_UP["transformer"]())
    choice, moved = moved_by("superneurons", search)
    ways_used = {
        each.options[choice.options[number]].way
        for number, each in enumerate(search.problem.candidates)
    }
    assert moved
    assert "remake" in ways_used


@pytest.mark.parametrize("name", ["vdnn", "swap", "superneurons"])
def test_without_a_tier_there_is_nothing_to_move(name):
    problem = build_problem(MADE_UP["unet"](), ways.select(), variants.select())
    assert list(presets.get(name).choices(Search(problem))) == []
