"""What planning has no time for runs as it is, or under the plan that there is."""

import importlib

import pytest
import torch
from torch import nn

import legroom
from legroom.engine._planning_time import PlanningTime
from legroom.engine._whole_step import Training
from legroom.meter import PeakGauge
from legroom.plan import PlanOptions

clock_module = importlib.import_module("legroom.engine._planning_time")
whole_step = importlib.import_module("legroom.engine._whole_step")
step_capture = importlib.import_module("legroom.capture._step_capture")

NUM_STEPS = 4


def trained(**options):
    """Parameters after each of a few steps with two micro-batches, and the handle, undone.

    The step must be known to be judged by the time that the handle is undone.
    """
    torch.manual_seed(0)
    layers = [each for _ in range(4) for each in (nn.Linear(64, 64), nn.GELU())]
    model = nn.Sequential(nn.Linear(16, 64), *layers)
    optimizer = torch.optim.Adam(model.parameters())
    handle = legroom.fit(model, optimizer=optimizer, time_limit_s=2.0, **options) if options else 0
    states = []
    try:
        for number in range(NUM_STEPS):
            for micro in range(2):
                generator = torch.Generator().manual_seed(10 * number + micro)
                value = model(torch.randn(512, 16, generator=generator))
                value.log_softmax(-1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            states.append([param.detach().clone() for param in model.parameters()])
        assert not handle or handle.plan is None or not handle.waits_for_whole
    finally:
        if handle:
            handle.undo()
    return states, handle


def check_same(states, others):
    for mine, theirs in zip(states, others, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.fixture
def counts(monkeypatch):
    """How often a step was read and composed."""
    seen = {"stop": 0, "compose": 0}
    stop, compose = PeakGauge.stop, whole_step.compose

    def stops(*args, **options):
        seen["stop"] += 1
        return stop(*args, **options)

    def composes(*args):
        seen["compose"] += 1
        return compose(*args)

    monkeypatch.setattr(PeakGauge, "stop", stops)
    monkeypatch.setattr(whole_step, "compose", composes)
    return seen


def test_what_is_left_falls_while_something_is_planned(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clock_module.time, "perf_counter", lambda: now[0])
    planning = PlanningTime()
    assert planning.left_s == 30.0
    with planning.spending():
        now[0] += 10
        assert planning.left_s == pytest.approx(20.5)
        with planning.spending():
            now[0] += 10
        assert planning.left_s == pytest.approx(11.0)
    now[0] += 100
    assert planning.left_s == pytest.approx(16.0)
    with planning.spending():
        now[0] += 100
        assert planning.left_s == 0.0


@pytest.mark.parametrize(("rate", "stops"), [("_READING_S", 0), ("_PLANNING_S", NUM_STEPS - 1)])
def test_a_step_too_large_keeps_the_plans_of_its_calls(rate, stops, counts, monkeypatch, caplog):
    monkeypatch.setattr(whole_step, rate, 1000.0)
    states, handle = trained(activations="50%")
    assert counts == {"stop": stops, "compose": 0}
    assert handle.plan is not None
    said = [each.message for each in caplog.records if "planning has no time left" in each.message]
    assert len(said) == 1
    assert "calls keep the plans they have" in said[0]
    check_same(states, trained()[0])


def test_a_limit_and_a_repeatable_plan_take_their_time(counts, monkeypatch):
    monkeypatch.setattr(whole_step, "_READING_S", 1000.0)
    monkeypatch.setattr(whole_step, "_PLANNING_S", 1000.0)
    monkeypatch.setattr(step_capture, "_TIMES_PLAIN", 1e9)
    for options in ({"budget": "1500KB"}, {"activations": "50%", "effort": "fixed"}):
        before = counts["compose"]
        _, handle = trained(**options)
        assert handle.plan is not None
        assert counts["compose"] > before


def test_an_early_plan_is_granted_more_than_a_later_one():
    training = Training(PlanOptions(activations="50%"))
    training._time.spent_s = 1e6
    group = whole_step._Group(frozenset())
    granted = []
    for num_plans in range(3):
        group.num_plans = num_plans
        granted.append([training._has_time_for(seconds, group) for seconds in (14, 7, 4)])
    assert granted == [[True, True, True], [False, True, True], [False, False, True]]


def test_a_call_too_large_to_be_captured_runs_as_it_is(counts, monkeypatch, caplog):
    monkeypatch.setattr(step_capture, "_TIMES_PLAIN", 1e9)
    states, handle = trained(activations="50%")
    assert handle.plan is None
    assert counts == {"stop": 0, "compose": 0}
    said = [each.message for each in caplog.records if "without a plan" in each.message]
    assert len(said) == 1
    assert "capturing all of its operations takes longer than planning may take" in said[0]
    check_same(states, trained()[0])
