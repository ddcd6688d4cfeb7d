"""What is promised of plans, on steps of made-up models."""

import itertools
from dataclasses import replace

import pytest

from legroom import variants, ways
from legroom.capture import Kind, TensorInfo
from legroom.errors import InfeasibleBudgetError
from legroom.plan import solvers
from legroom.plan._budget import parse_activations, parse_budget
from legroom.plan._effort import Allowance
from legroom.plan._executor_time import ExecutorLoad, ExecutorTime
from legroom.plan._options import PlanOptions
from legroom.plan._planner import Planner, simulate_plain
from legroom.plan.presets import all_presets
from legroom.ways import Exactness
from tests.unit.plan.made_up_graphs import (
    KIB,
    MADE_UP,
    Model,
    as_recorded,
    chain,
    transformer,
    unet,
)
from tests.unit.plan.random_graphs import Builder
from tests.unit.plan.test_solvers import Squeeze

SHARES = (0.9, 0.7, 0.5)


def planner_of(graph, **options):
    options = {"ways": ways.select(), "variants": variants.select(), **options}
    return Planner(as_recorded(graph), graph, **options)


def budgets_of(planner, shares=SHARES):
    """Shares of the way from the floor up to the plain peak."""
    top, floor = planner.plain.peak_bytes, planner.floor_bytes
    return [floor + int(share * (top - floor)) for share in shares]


@pytest.fixture(scope="module", params=MADE_UP)
def planner(request):
    return planner_of(MADE_UP[request.param]())


def test_plans_keep_their_budgets(planner):
    for budget_bytes in (*budgets_of(planner), planner.floor_bytes):
        plan = planner.plan(budget_bytes)
        assert plan.budget_bytes == budget_bytes
        assert plan.predicted_peak_bytes <= budget_bytes
        assert 0 <= plan.bound_ms <= plan.added_ms
        whole = planner.problem.step_ms + plan.bound_ms
        assert plan.gap == pytest.approx((plan.added_ms - plan.bound_ms) / whole)


def test_data_beside_the_step_is_no_part_of_its_activations():
    graph = chain()
    data = TensorInfo(len(graph.tensors), "data", 2**30, Kind.INPUTS)
    alone, beside = (
        planner_of(each) for each in (graph, replace(graph, tensors=(*graph.tensors, data)))
    )
    assert beside.plain.beside_bytes == alone.plain.beside_bytes + data.num_bytes
    half = parse_activations("50%")
    assert beside.bytes_of(half) == alone.bytes_of(half) + data.num_bytes


def test_free_is_the_lowest_budget_that_adds_next_to_no_time(planner):
    free_bytes = planner.bytes_of(parse_budget("free"))
    most_ms = 0.02 * planner.problem.step_ms
    assert planner.floor_bytes <= free_bytes <= planner.plain.peak_bytes
    assert planner.plan(free_bytes).added_ms <= most_ms
    stride = (planner.plain.peak_bytes - planner.plain.state_bytes) // 8
    if free_bytes - stride >= planner.floor_bytes:
        assert planner.plan(free_bytes - stride).added_ms > most_ms


def test_the_executors_time_is_beside_what_a_plan_adds():
    graph = transformer()
    without = planner_of(graph)
    budget_bytes = without.plain.peak_bytes // 2
    load = ExecutorLoad.of(graph)
    planner = planner_of(graph, executor=ExecutorTime(run_ms=2.0, operation_ms=0.5))
    plan = planner.plan(budget_bytes)
    assert load.num_operations == sum(op.piece >= 0 for op in graph.operations)
    assert plan.executor_ms == 2.0 * load.num_runs + 0.5 * load.num_operations
    assert replace(plan, executor_ms=0.0, solve_s=0.0) == replace(
        without.plan(budget_bytes), solve_s=0.0
    )
    assert planner.plan(planner.plain.peak_bytes).executor_ms == 0, "the step as it is"


def test_nothing_is_free_where_the_executor_takes_more():
    graph = transformer()
    free_bytes = planner_of(graph).free_bytes
    most_ms = 0.02 * graph.step_ms
    planner = planner_of(graph, executor=ExecutorTime(run_ms=1.01 * most_ms))
    assert free_bytes < planner.free_bytes == planner.plain.peak_bytes
    assert planner.programs(planner.free_bytes) == {}


def test_a_plan_pays_that_saves_more_than_it_adds():
    graph = transformer()
    planner = planner_of(graph)
    plan = planner.plan(planner.floor_bytes)
    saved = 1 - plan.predicted_peak_bytes / planner.plain.peak_bytes
    for share, pays in ((0.9, True), (1.1, False)):
        costly = replace(plan, executor_ms=share * saved * graph.step_ms - plan.added_ms)
        assert planner.pays(costly) is pays
        assert planner.pays(costly, beside_bytes=planner.plain.peak_bytes) is False
        assert planner.pays(costly, beside_ms=graph.step_ms)
        assert planner_of(graph, is_compiled=True).pays(costly), "asked for"


def test_a_budget_for_which_nothing_is_saved_leaves_the_step_plain():
    planner = planner_of(chain(), ways=ways.select(("hold",)), variants=())
    top_bytes = planner.plain.peak_bytes
    assert planner.plan(top_bytes).preset == "plain"
    assert planner.programs(top_bytes) == {}


def test_the_frontier_only_rises(planner):
    points = planner.frontier(6)
    assert points[0].budget_bytes == planner.plain.peak_bytes
    assert points[0].added_ms == 0
    assert points[-1].budget_bytes >= planner.floor_bytes
    for left, right in itertools.pairwise(points):
        assert right.budget_bytes < left.budget_bytes
        assert right.added_ms >= left.added_ms
        assert right.bound_ms >= left.bound_ms - 1e-6
    for point in points:
        assert point.predicted_peak_bytes <= point.budget_bytes
        assert point.bound_ms <= point.added_ms
    assert len({point.budget_bytes for point in points}) == 6
    assert planner.frontier(0) == ()


def test_no_preset_beats_the_plan(planner):
    known = {preset.name for preset in all_presets()}
    for point in planner.presets:
        assert point.name in {"plain", *known}
        if point.predicted_peak_bytes <= planner.plain.peak_bytes:
            plan = planner.plan(point.predicted_peak_bytes)
            assert plan.added_ms <= point.added_ms


def test_decisions_add_up(planner):
    for budget_bytes in budgets_of(planner):
        plan = planner.plan(budget_bytes)
        assert sum(each.added_ms for each in plan.decisions) == pytest.approx(plan.added_ms)
        for decision in plan.decisions:
            assert decision.num_bytes == 0 or decision.held_bytes <= decision.num_bytes
            if decision.way == "hold":
                # Plain PyTorch does not hold what backward does not read.
                assert decision.num_bytes in (0, decision.held_bytes)
                assert decision.added_ms == 0
            elif decision.way == "remake":
                assert decision.held_bytes == 0
            assert decision.reason
            assert decision.operation.startswith("aten.")


def test_the_timeline_reaches_the_peak(planner):
    for budget_bytes in budgets_of(planner):
        plan = planner.plan(budget_bytes)
        positions = [position for position, _ in plan.timeline]
        assert positions == sorted(set(positions))
        assert max(num_bytes for _, num_bytes in plan.timeline) == plan.predicted_peak_bytes
        assert [phase for phase, _ in plan.phases][:2] == ["forward", "backward"]
        assert plan.peak_phase in dict(plan.phases)


def test_what_is_alive_makes_the_peak(planner):
    for budget_bytes in budgets_of(planner):
        plan = planner.plan(budget_bytes)
        alive = [each.num_bytes for each in plan.alive_at_peak]
        assert alive == sorted(alive, reverse=True)
        assert sum(alive) == plan.predicted_peak_bytes


@pytest.mark.parametrize("make", [lambda: transformer(4), unet, chain], ids=list(MADE_UP))
def test_the_same_input_gives_the_same_plan(make):
    first, second = planner_of(make()), planner_of(make())
    assert first.floor_bytes == second.floor_bytes
    for budget_bytes in budgets_of(first, (0.4,)):
        one, other = first.plan(budget_bytes), second.plan(budget_bytes)
        assert replace(one, solve_s=0) == replace(other, solve_s=0)


def test_below_the_floor_says_what_would_fit():
    planner = planner_of(chain())
    floor_bytes = planner.floor_bytes
    with pytest.raises(InfeasibleBudgetError, match="no plan fits") as caught:
        planner.plan(floor_bytes // 2)
    assert caught.value.budget_bytes == floor_bytes // 2
    assert caught.value.largest
    found = planner.plan(caught.value.floor_bytes)
    assert found.predicted_peak_bytes <= caught.value.floor_bytes


@pytest.mark.parametrize("make", MADE_UP.values(), ids=list(MADE_UP))
def test_what_the_search_for_the_floor_finds_counts(make, monkeypatch):
    floor_bytes = planner_of(make()).floor_bytes
    fresh = planner_of(make())
    monkeypatch.setattr(fresh._contest, "solve", lambda budget_bytes: (0.0, True))  # no time for it
    assert fresh.plan(floor_bytes).predicted_peak_bytes <= floor_bytes


def test_an_update_that_sets_the_lowest_peak_is_named():
    model = Model()
    x = model.batch
    for _ in range(3):
        x = model.call("mm.default", [x], 20 * KIB, saves=[x], weight_bytes=500)
    model.call("mse_loss.default", [x], 4, saves=[x])
    graph = model.step()
    *others, update = graph.operations
    without = planner_of(graph)
    top, floor = without.plain.peak_bytes, without.floor_bytes
    middle = (top + floor) // 2 - without.plain.phase_peaks["optimizer"]
    for extra, is_in_update, gains in ((0, False, True), (middle, True, True), (top, True, False)):
        changed = replace(update, workspace_bytes=extra)
        planner = planner_of(replace(graph, operations=(*others, changed)))
        with pytest.raises(InfeasibleBudgetError) as caught:
            planner.plan(planner.floor_bytes - 1)
        error = caught.value
        assert error.plain_bytes == planner.plain.peak_bytes
        assert (error.is_in_update, not error.has_nothing_to_gain) == (is_in_update, gains)
        assert ("the peak is the update's" in str(error)) is is_in_update


def test_room_enough_adds_no_time(planner):
    for budget_bytes in (planner.plain.peak_bytes, 10 * planner.plain.peak_bytes):
        plan = planner.plan(budget_bytes)
        assert (plan.added_ms, plan.bound_ms, plan.gap) == (0.0, 0.0, 0.0)
        assert plan.predicted_peak_bytes <= planner.plain.peak_bytes


@pytest.mark.parametrize("make", [lambda: transformer(4), unet, chain], ids=list(MADE_UP))
def test_a_short_time_still_gives_an_answer(make):
    graph = make()
    hurried = planner_of(graph, allowance=Allowance(0.001))
    patient = planner_of(graph)
    for budget_bytes in budgets_of(patient, (0.6, 0.2)):
        best = patient.plan(budget_bytes)
        if hurried.floor_bytes > budget_bytes:
            with pytest.raises(InfeasibleBudgetError):
                hurried.plan(budget_bytes)
            continue
        plan = hurried.plan(budget_bytes)
        assert plan.predicted_peak_bytes <= budget_bytes
        assert plan.added_ms >= best.bound_ms - 1e-6
        assert plan.bound_ms <= best.added_ms + 1e-6
        if plan.added_ms > best.added_ms + 1e-6:
            assert plan.timed_out


def test_enabled_ways_restrict_the_plan():
    model = Model()
    x = model.call("mm.default", [model.batch], 20 * KIB, saves=["out"], time_ms=4.0)
    for _ in range(3):
        drop = model.call("native_dropout.default", [x], 30 * KIB, saves=["out"], is_random=True)
        x = model.call("mm.default", [drop], 20 * KIB, saves=["out"], time_ms=4.0)
    model.call("mse_loss.default", [x], 4, saves=[x])
    graph = model.step()
    without = planner_of(graph, ways=ways.select(("replay",)), variants=())
    assert without.floor_bytes < without.plain.peak_bytes
    plan = without.plan(without.floor_bytes)
    assert {each.way for each in plan.decisions} == {"hold", "replay"}
    assert plan.variants == ()
    both = planner_of(graph)
    assert both.floor_bytes < without.floor_bytes
    assert "remake" in {each.way for each in both.plan(both.floor_bytes).decisions}


def test_hold_alone_has_no_room_to_plan():
    planner = planner_of(chain(), ways=ways.select(()), variants=())
    assert planner.floor_bytes == planner.plain.peak_bytes
    with pytest.raises(InfeasibleBudgetError, match=r"remake, .* more, which --with or --without"):
        planner.plan(planner.plain.peak_bytes - 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["--disk FOLDER", "--exactness rounding", "--exactness lossy"]),
        ({"disk": True, "exactness": "rounding"}, ["--exactness lossy"]),
        ({"disk": True, "exactness": "lossy"}, []),
        ({"exactness": "lossy"}, ["--disk FOLDER"]),
        ({"exactness": "lossy", "device": "RTX4090"}, ["--host"]),
    ],
)
def test_remedies_are_switches_not_yet_in_use(options, expected):
    asked = PlanOptions(**options)
    exactness = Exactness(asked.exactness)
    planner = planner_of(
        chain(),
        ways=ways.select(asked.way_names, exactness=exactness),
        variants=variants.select(exactness=exactness),
        rewrites=variants.rewrites(exactness=exactness),
        exactness=asked.exactness,
        is_described=asked.device is not None,
    )
    with pytest.raises(InfeasibleBudgetError) as caught:
        planner.plan(planner.floor_bytes - 1)
    assert [each.partition(" (")[0] for each in caught.value.remedies] == expected


def test_a_third_way_is_planned_with():
    planner = planner_of(chain(), ways=(ways.Hold, Squeeze), variants=())
    budget_bytes = (planner.plain.peak_bytes + planner.floor_bytes) // 2
    plan = planner.plan(budget_bytes)
    assert plan.predicted_peak_bytes <= budget_bytes
    squeezed = [each for each in plan.decisions if each.way == "squeeze"]
    assert squeezed
    assert all(4 * each.held_bytes <= each.num_bytes for each in squeezed)
    assert plan.added_ms == pytest.approx(1.5 * len(squeezed))
    assert sum(each.added_ms for each in plan.decisions) == pytest.approx(plan.added_ms)


def test_plans_say_where_they_come_from(planner):
    origins = {"plain", "hold", *solvers.names()}
    for preset in all_presets():
        origins |= {preset.name, f"{preset.name}, changed"}
    for budget_bytes in budgets_of(planner):
        plan = planner.plan(budget_bytes)
        assert plan.preset in origins
        assert plan.order in ("captured", "memory")


def test_progress_is_told():
    told = []
    planner = planner_of(chain(), on_progress=lambda *what: told.append(what))
    planner.frontier(3)
    assert {stage for stage, _, _ in told} == {"looking for the floor", "planning"}
    assert all(0 <= done <= total for _, done, total in told)
    assert ("planning", 3, 3) in told


def test_the_plain_step_is_simulated_as_recorded():
    build = Builder()
    weight = build.tensor(100, kind=Kind.WEIGHTS)
    (a,) = build.forward([weight], 50, planned=False)
    (gradient,) = build.backward([a], 100, kind=Kind.GRADIENTS, planned=False, workspace_bytes=5)
    build.hand_out(a, 1)
    plain = simulate_plain(build.graph())
    assert plain.peak_bytes == 255
    assert plain.state_bytes == 200
    assert plain.phase_peaks == {"forward": 150, "backward": 255}
    assert plain.kinds == {
        Kind.WEIGHTS: 100, Kind.STASH: 50, Kind.GRADIENTS: 100, Kind.WORKSPACE: 5
    }  # fmt: skip
    assert build.tensors[gradient].released_after is None


def test_a_step_that_could_not_be_captured_is_planned():
    graph = as_recorded(chain())
    planner = planner_of(graph)
    peak_bytes = planner.plain.peak_bytes
    assert planner.floor_bytes == peak_bytes
    assert planner.plan(peak_bytes).added_ms == 0
    assert planner.plan(peak_bytes).decisions == ()
    with pytest.raises(InfeasibleBudgetError):
        planner.plan(peak_bytes - 1)
