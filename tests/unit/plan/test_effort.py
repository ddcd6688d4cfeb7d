"""How much planning takes: in proportion to what can be gained, decided by counts of work."""

import importlib
import math
from dataclasses import replace

import pytest
import torch

from legroom.capture import capture_step
from legroom.plan._budget import parse_activations
from legroom.plan._effort import Allowance, Effort
from legroom.plan._options import PlanOptions
from legroom.plan._report import planner_of as planner_of_capture
from legroom.plan._search import Search
from legroom.plan._simulate import Simulator
from tests.unit.plan.made_up_graphs import chain, transformer, unet
from tests.unit.plan.test_planner import planner_of

effort_module = importlib.import_module("legroom.plan._effort")


class Clock:
    """In place of `time.monotonic`."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(effort_module.time, "monotonic", lambda: self.now)

    def runs_with_simulations(self, monkeypatch, seconds):
        """Each simulation takes so long from now on."""
        run = Simulator.run

        def slow(simulator, *args):
            self.now += seconds
            return run(simulator, *args)

        monkeypatch.setattr(Simulator, "run", slow)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def small_step():
    """Of a fraction of a millisecond: what rules its choices out one by one takes for ever."""
    layers = [
        layer
        for _ in range(3)
        for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.LayerNorm(64))
    ]
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        net(torch.randn(512, 64)).pow(2).mean().backward()
        optimizer.step()

    return step


def test_the_clock_runs_only_while_something_is_planned(clock):
    allowance = Allowance(30.0)
    clock.now += 100
    with allowance.running():
        clock.now += 10
        with allowance.running():
            clock.now += 5
        assert allowance.deadline(0.5) == clock.now + 7.5
    clock.now += 100
    assert allowance.seconds_left == 15
    with allowance.running():
        clock.now += 100
        assert allowance.seconds_left == 0
    allowance.renew()
    assert allowance.seconds_left == 30


def test_without_seconds_nothing_ends_by_the_clock(clock):
    allowance = Allowance(None)
    with allowance.running():
        clock.now += 1e9
    assert allowance.seconds_left == allowance.deadline(0.1) == math.inf


@pytest.mark.parametrize(("left_ms", "most"), [(1.1, 7), (3.0, 18), (1000.0, 42)])
def test_the_more_is_left_to_gain_the_longer_it_tries(left_ms, most):
    search = Search(planner_of(chain()).problem)
    held = search.hold_all()
    search.evaluate(held, "hold")
    effort = Effort(search, None, worth_ms=1.0, bound_ms=-left_ms)
    tries = effort.tries(budget_bytes=2**40)
    assert next(n for n in range(1, 100) if tries.are_over()) == most


def test_what_is_not_worth_it_is_not_looked_for():
    search = Search(planner_of(chain()).problem)
    search.evaluate(search.hold_all(), "hold")
    effort = Effort(search, None, worth_ms=1.0, bound_ms=-0.9)
    assert effort.tries(budget_bytes=2**40).are_over()


def test_one_allowance_is_for_all_that_is_planned(clock, monkeypatch):
    clock.runs_with_simulations(monkeypatch, 0.5)
    planner = planner_of(transformer(4), allowance=Allowance(30.0))
    started = clock.now
    top_bytes = planner.plain.peak_bytes
    planner.plan(int(0.7 * top_bytes))
    planner.frontier(10)
    assert planner.floor_bytes < top_bytes
    assert clock.now - started <= 2 * 30.0  # what has begun is ended, and plans are described


@pytest.mark.parametrize("make", [lambda: transformer(4), unet, chain])
def test_fixed_effort_does_not_look_at_the_clock(make, clock, monkeypatch):
    fast = planner_of(make(), allowance=PlanOptions(effort="fixed").allowance())
    budgets = [int(share * fast.plain.peak_bytes) for share in (0.9, 0.75)]
    plans = [fast.plan(each) for each in budgets]
    clock.runs_with_simulations(monkeypatch, 1000.0)
    slow = planner_of(make(), allowance=PlanOptions(effort="fixed").allowance())
    for budget_bytes, expected in zip(budgets, plans, strict=True):
        plan = slow.plan(budget_bytes)
        assert not plan.timed_out
        assert replace(plan, solve_s=0) == replace(expected, solve_s=0)
    assert slow.floor_bytes == fast.floor_bytes


def test_a_small_step_is_not_solved_for_half_a_minute():
    capture = capture_step(small_step())
    options = PlanOptions(device="24GiB, 100 GB/s to host", effort="fixed")
    planner, _ = planner_of_capture(capture, options)
    plan = planner.plan(planner.bytes_of(parse_activations("75%")))
    assert plan.added_ms > plan.bound_ms  # or there was nothing to go on trying for
    solved = sum(order.search.relaxation.num_solved for order in planner._contest._orders)
    assert solved <= 40  # 182 and more, when it went on until the time limit


def test_solving_stops_within_one_percent_of_a_step():
    planner = planner_of(transformer(6))
    plan = planner.plan(int(0.93 * planner.plain.peak_bytes))
    assert 0 < plan.added_ms - plan.bound_ms <= 0.01 * planner.problem.step_ms
    (search,) = [order.search for order in planner._contest._orders]
    assert search.relaxation.num_solved <= 4  # no branch and bound


def test_a_budget_that_others_have_answered_is_not_solved_again():
    planner = planner_of(transformer(6))
    budget_bytes = int(0.8 * planner.plain.peak_bytes)
    plan = planner.plan(budget_bytes)
    search = planner._contest._orders[0].search
    before = search.relaxation.num_solved
    again = planner.plan(max(plan.predicted_peak_bytes, budget_bytes - 100))
    assert search.relaxation.num_solved == before
    assert again.bound_ms == pytest.approx(plan.bound_ms)


def test_presets_leave_half_of_the_time(clock, monkeypatch):
    known = planner_of(transformer(4)).presets
    clock.runs_with_simulations(monkeypatch, 4.0)
    presets = planner_of(transformer(4), allowance=Allowance(30.0)).presets
    assert presets == known[: len(presets)]
    assert 2 < len(presets) < len(known)


def test_without_time_everything_is_held_or_dropped_by_simulation_alone(monkeypatch):
    """The relaxation of a step of very many operations takes long to build."""
    search_module = importlib.import_module("legroom.plan._search")
    monkeypatch.setattr(search_module, "_RELAXING_S", 1000.0)
    monkeypatch.setattr(search_module, "Relaxation", None)  # not built
    planner = planner_of(transformer(4), allowance=Allowance(30.0))
    budget_bytes = int(0.7 * planner.plain.peak_bytes)
    plan = planner.plan(budget_bytes)
    assert plan.predicted_peak_bytes <= budget_bytes
    assert plan.timed_out
    assert plan.bound_ms == 0.0
    assert planner.floor_bytes <= plan.predicted_peak_bytes


def test_what_was_begun_is_not_tried_to_the_end(clock, monkeypatch):
    clock.runs_with_simulations(monkeypatch, 0.5)
    search = Search(planner_of(transformer(4)).problem)
    before = search.simulator.num_simulations
    effort = Effort(search, None, clock.now + 2.0)
    search.mend(search.hold_all(), 0, "hold", effort)
    assert search.simulator.num_simulations - before <= 8


@pytest.mark.parametrize(
    ("capture_s", "left_s"), [(5.0, 30.0), (30.0, 30.0), (45.0, 15.0), (99.0, 10.0)]
)
def test_a_long_capture_leaves_less_to_planning(capture_s, left_s):
    options = PlanOptions(time_limit_s=30.0)
    assert options.allowance_after(capture_s).seconds_left == left_s
    repeatable = PlanOptions(time_limit_s=30.0, effort="fixed")
    assert repeatable.allowance_after(capture_s).seconds_left == math.inf
