import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

import legroom
from legroom.errors import (
    CaptureFailedError,
    InfeasibleBudgetError,
    NothingCapturedError,
    UsageError,
)


@pytest.fixture
def step():
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters())
    data = torch.randn(1024, 64)

    def step():
        optimizer.zero_grad()
        net(data).pow(2).mean().backward()
        optimizer.step()

    step.net, step.optimizer = net, optimizer
    return step


def test_a_step_is_planned_and_left_as_it_was(step):
    before = [param.detach().clone() for param in step.net.parameters()]
    random = torch.get_rng_state()
    report = legroom.plan(step, activations="70%", points=3, time_limit_s=3)
    assert report.chosen is not None
    assert report.chosen.predicted_peak_bytes <= report.chosen.budget_bytes
    assert report.chosen.added_ms >= report.chosen.bound_ms
    assert {decision.way for decision in report.chosen.decisions} >= {"hold"}
    assert all(torch.equal(a, b) for a, b in zip(before, step.net.parameters(), strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert not step.optimizer.state
    measured = legroom.profile(step).peak_bytes
    assert report.plain_peak_bytes == pytest.approx(measured, rel=1e-3)


def test_residual_convolutions_are_planned_in_either_order():
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic", num_labels=4
    )
    net = ResNetForImageClassification(config).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pictures, labels = torch.randn(8, 3, 48, 48), torch.randint(4, (8,))

    def step():
        optimizer.zero_grad()
        net(pixel_values=pictures, labels=labels).loss.backward()
        optimizer.step()

    report = legroom.plan(step, activations="85%", points=0)
    assert report.chosen is not None
    assert report.chosen.predicted_peak_bytes <= report.chosen.budget_bytes
    assert any(name == "shape-only" for _, name in report.chosen.variants)


def test_only_enabled_ways_are_used(step):
    report = legroom.plan(step, activations="90%", ways=["replay"], points=0)
    assert report.ways == ("hold", "replay")
    assert {decision.way for decision in report.chosen.decisions} <= {"hold", "replay"}


def test_without_a_budget_there_is_a_frontier_only(step):
    report = legroom.plan(step, points=4, time_limit_s=3)
    assert report.chosen is None
    assert len(report.frontier) == 4
    assert report.to_dict()["budget_bytes"] is None


def test_a_budget_below_the_floor_is_refused(step):
    with pytest.raises(InfeasibleBudgetError, match=r"no plan fits 97\.7 KiB") as caught:
        legroom.plan(step, budget=100_000, points=0, time_limit_s=3)
    floor = caught.value.floor_bytes
    again = legroom.plan(step, budget=floor, points=0, time_limit_s=3)
    assert again.chosen.predicted_peak_bytes <= floor


def test_what_is_not_a_step_is_refused():
    with pytest.raises(UsageError, match="step must be callable without arguments, got int"):
        legroom.plan(3)
    with pytest.raises(NothingCapturedError, match="calls no module with gradients enabled"):
        legroom.plan(lambda: torch.ones(1, requires_grad=True).sum().backward())


def test_a_failing_step_is_named_as_such(step):
    def fails():
        step()
        raise ValueError("out of batches")

    with pytest.raises(CaptureFailedError, match="ValueError: out of batches"):
        legroom.plan(fails)


def test_a_described_link_holds_tensors_in_host_memory(step):
    def plan(link="32 GB/s to host", **options):
        return legroom.plan(
            step, budget="75%", device=f"24GiB, {link}", ways=["remake"], points=0, **options
        )

    without = plan()
    fast, slow = (plan(link, host=True) for link in ("1000 GB/s to host", "0.5 GB/s to host"))
    assert fast.floor_peak_bytes < without.floor_peak_bytes
    assert sum(fast.chosen.moved_bytes["host"]) > 0
    assert fast.chosen.added_ms < without.chosen.added_ms
    assert fast.chosen.added_ms < slow.chosen.added_ms <= without.chosen.added_ms + 1e-9
    assert fast.measured_share == 0
