"""Tensors with many zeros are held sparsely where that makes a plan faster, and it stays right."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.engine import _density, _step_plan
from legroom.engine._whole_step import Training
from legroom.errors import InfeasibleBudgetError, UsageError
from tests.unit.engine.training import state_of

CHANNELS = 16
DATA = torch.randn(4, CHANNELS, 48, 48, generator=torch.Generator().manual_seed(1))


class Sparsely(nn.Module):
    """Convolutions that take far longer than a few passes over what they return, and ReLUs of which
    a sixth of the elements are above zero."""

    def __init__(self, num_layers=6):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(CHANNELS, CHANNELS, 11, padding=5, bias=False) for _ in range(num_layers)
        )
        self.register_buffer("threshold", torch.tensor(1.0))
        with torch.no_grad():
            value = DATA
            for layer in self.layers:
                layer.weight.div_(layer(value).std())
                value = F.relu(layer(value) - self.threshold)

    def forward(self, data):
        value = data
        for layer in self.layers:
            value = F.relu(layer(value) - self.threshold)
        return value.square().mean()


def trained(num_steps=3, dense_after=None, **options):
    torch.manual_seed(0)
    model = Sparsely()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = None
    if options:
        handle = legroom.fit(model, optimizer=optimizer, time_limit_s=5.0, **options)
    losses = []
    for number in range(num_steps):
        if number == dense_after:
            model.threshold.fill_(-50.0)
        optimizer.zero_grad()
        loss = model(DATA)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    report = handle.report() if handle is not None else None
    if handle is not None:
        handle.undo()
    return losses, state_of(model), report


def test_it_is_used_where_it_is_faster_and_training_is_the_same():
    losses, state, report = trained(budget="lowest", ways=["remake", "sparse"])
    assert "sparse" in report.ways
    assert report.measured_peak_bytes <= report.budget_bytes
    assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.02)
    assert (losses, state) == trained()[:2]
    assert report.added_ms < trained(budget="lowest", ways=["remake"])[2].added_ms


def test_without_it_nothing_is_watched(monkeypatch):
    seen = []
    monkeypatch.setattr(_density, "density_of", lambda value: seen.append(value.shape))
    trained(num_steps=1, budget="lowest", ways=["remake"])
    trained(num_steps=1, budget="100%", ways=["remake", "sparse"])
    assert not seen
    trained(num_steps=3, budget="lowest", ways=["remake", "sparse"])
    assert 6 <= len(seen) <= 18  # of one call


def test_forward_runs_as_often_as_without():
    counts = []
    for ways in (["remake"], ["remake", "sparse"]):
        torch.manual_seed(0)
        model = Sparsely()
        calls = []
        model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        handle = legroom.fit(model, budget="lowest", time_limit_s=5.0, ways=ways)
        for _ in range(3):
            model(DATA).backward()
        handle.undo()
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_when_zeros_become_fewer_it_is_planned_again_and_right(caplog):
    options = {"budget": "lowest", "ways": ["remake", "sparse"]}
    losses, state, report = trained(num_steps=9, dense_after=3, **options)
    assert (losses, state) == trained(num_steps=9, dense_after=3)[:2]
    assert "tensors have fewer zeros than when it was planned: planning again" in caplog.text
    assert report.measured_peak_bytes <= report.budget_bytes


def test_a_second_plan_that_does_not_fit_leaves_the_first(monkeypatch):
    within = _step_plan.plan_within

    def plan_within(planner, budget_bytes):
        if any(each.density is not None for each in planner.graph.tensors):
            raise InfeasibleBudgetError(budget_bytes=budget_bytes, floor_bytes=2 * budget_bytes)
        return within(planner, budget_bytes)

    monkeypatch.setattr(_step_plan, "plan_within", plan_within)
    monkeypatch.setattr(Training, "add", lambda *rest: None)  # each call is planned by itself
    losses, _, report = trained(budget="lowest", ways=["remake", "sparse"])
    assert losses == trained()[0]
    assert set(report.ways) <= {"hold", "remake"}


def test_inductor_does_without():
    with pytest.raises(UsageError, match="cannot carry out 'sparse'"):
        legroom.fit(
            Sparsely(1), budget="50%", executor="inductor", exactness="rounding", ways=["sparse"]
        )
