"""What the executor takes by itself: measured once, kept, predicted, and weighed."""

import logging

import pytest
import torch
from torch import nn

import legroom
from legroom.engine import _calibration
from legroom.engine.graph import PlannedCall, guard
from legroom.plan import ExecutorTime, _executor_time, executor_time
from tests.unit.engine.training import Block, first_difference, state_of


@pytest.fixture
def costs(monkeypatch):
    """Lets the executor take what the test says."""

    def set_to(run_ms, operation_ms=0.0):
        made = ExecutorTime(run_ms, operation_ms)
        monkeypatch.setattr(_executor_time, "_calibrations", [lambda: made])

    return set_to


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_calibration, "_SECONDS", 0.0)  # one round; what it shows is no matter
    return tmp_path


def test_it_is_measured_once_and_kept(own_cache, monkeypatch):
    rounds = []
    measure = _calibration._measure
    monkeypatch.setattr(_calibration, "_measure", lambda: rounds.append(1) or measure())
    first = _calibration.measure_executor()
    assert _calibration.measure_executor() == first
    assert len(rounds) == 1
    assert first.run_ms >= 0
    assert first.operation_ms >= 0


def test_measuring_leaves_the_program_as_it_was(own_cache):
    import torch._dynamo

    counts = {name: dict(each) for name, each in torch._dynamo.utils.counters.items()}
    state, had_pieces, was_alone = torch.get_rng_state(), guard.has_pieces, guard.is_alone
    with torch.no_grad():
        _calibration.measure_executor()
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert (guard.has_pieces, guard.is_alone) == (had_pieces, was_alone)
    assert {name: dict(each) for name, each in torch._dynamo.utils.counters.items()} == counts


def test_the_chains_run_through_the_executor(own_cache, monkeypatch):
    calls = []
    forget = PlannedCall.forget

    def noted(self):
        calls.append((self.num_pieces, len(self._pieces)))
        forget(self)

    monkeypatch.setattr(PlannedCall, "forget", noted)
    _calibration.measure_executor()
    assert calls == [(0, 1), (0, 1)], "a piece each, without a program"


def test_what_cannot_be_measured_counts_for_nothing(own_cache, monkeypatch, caplog):
    def fails():
        raise RuntimeError("no clock")

    monkeypatch.setattr(_calibration, "_measure", fails)
    with caplog.at_level(logging.WARNING, "legroom"):
        assert _calibration.measure_executor() == ExecutorTime()
    assert "the executor's own time is not known: no clock" in caplog.text


def test_compiled_kernels_and_other_devices_count_for_nothing(costs):
    costs(1.0, 1.0)
    assert executor_time("cpu", is_compiled=False) == ExecutorTime(1.0, 1.0)
    assert executor_time("cpu", is_compiled=True) == ExecutorTime()
    assert executor_time("cuda:0", is_compiled=False) == ExecutorTime()


# Weighed -----------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(16, 0.0) for _ in range(4)))

    def forward(self, value):
        return self.blocks(value).square().mean()


def trained(budget, num_steps=6):
    """The handle, after some steps that are those of plain training."""
    states = []
    for is_fitted in (False, True):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = legroom.fit(model, budget=budget, optimizer=optimizer) if is_fitted else None
        for _ in range(num_steps):
            model(torch.randn(512, 16)).backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append(state_of(model))
    assert first_difference(*states) is None
    return handle


def runs_as_planned(handle):
    (kind,) = handle._kinds
    return isinstance(kind.call, PlannedCall)


def test_a_share_that_no_plan_keeps_is_not_bought_at_any_price(costs, caplog):
    costs(1000.0)
    with caplog.at_level(logging.WARNING, "legroom"):
        handle = trained("1%")
    report = handle.report()
    handle.undo()
    assert not runs_as_planned(handle)
    assert report.executor_ms == report.added_ms == 0
    assert report.predicted_peak_bytes == report.plain_peak_bytes <= report.budget_bytes
    said = [each for each in caplog.messages if "runs as it is" in each]
    assert len(said) == 1
    assert "no plan keeps 1 % of the peak" in said[0]
    assert "would save" in said[0]
    assert "longer" in said[0]


def test_the_lowest_plan_is_used_where_it_pays(costs, caplog):
    costs(0.0)
    with caplog.at_level(logging.WARNING, "legroom"):
        handle = trained("1%")
    handle.undo()
    assert runs_as_planned(handle)
    assert "That is used" in caplog.text


@pytest.mark.parametrize("budget", ["90%", "lowest"])
def test_a_share_that_is_kept_and_the_lowest_win_over_speed(costs, budget):
    costs(1000.0)
    handle = trained(budget)
    report = handle.report()
    handle.undo()
    assert runs_as_planned(handle)
    assert report.executor_ms >= 1000.0
    assert report.predicted_peak_bytes < report.plain_peak_bytes


def test_bytes_win_over_speed(costs):
    costs(0.0)
    handle = trained("lowest")
    budget_bytes = handle.report().budget_bytes
    handle.undo()
    costs(1000.0)
    handle = trained(budget_bytes)
    handle.undo()
    assert runs_as_planned(handle)


def test_free_counts_the_executor(costs):
    costs(1000.0)
    handle = trained("free")
    handle.undo()
    assert not runs_as_planned(handle)
