"""Calls of several sizes under one budget: the last batch of an epoch, a larger one later."""

import copy

import pytest
import torch

import legroom
from legroom.engine import _fit
from legroom.errors import InfeasibleBudgetError
from tests.unit.engine.training import Net, batch, first_difference, sgd, train


def of_sizes(*rows):
    def gradients(model, step):
        loss = model(*batch(step, rows=rows[step]))
        loss.backward()
        return loss

    return gradients


def trained(rows, **options):
    """Train plain and fitted with a batch of so many rows in each step; the handle and events."""
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    expected = train(plain, of_sizes(*rows), sgd(plain), num_steps=len(rows))
    optimizer = sgd(model)
    handle = legroom.fit(model, optimizer=optimizer, **options)
    said = []
    handle._on_event = said.append
    actual = train(model, of_sizes(*rows), optimizer, num_steps=len(rows))
    assert first_difference(expected, actual) is None
    handle.undo()
    return handle, said


@pytest.mark.parametrize(
    "options", [{"budget": "60%"}, {"budget": "lowest"}, {"activations": "50%"}]
)
def test_smaller_last_batch_has_the_budget_of_the_others(options):
    handle, said = trained([512, 512, 512, 8], **options)
    kinds = [kind.step_plan for kind in handle._kinds]
    assert len(kinds) == 2
    assert kinds[1].budget_bytes == kinds[0].budget_bytes
    assert kinds[1].plan.added_ms == 0  # it fits as it is
    assert said == []
    report = handle.report()  # not of the last batch
    assert report.plain_peak_bytes == kinds[0].plain_peak_bytes
    assert report.ways


def test_a_share_is_of_the_largest_step():
    handle, _ = trained([256, 1024, 1024, 1024, 512], activations="60%")
    small, large, later = (kind.step_plan for kind in handle._kinds)
    assert large.budget_bytes > small.budget_bytes
    assert later.budget_bytes == large.budget_bytes  # neither its own share nor that of the first


def test_a_later_kind_that_does_not_fit_a_share_ends_nothing(monkeypatch):
    plan_call, asked = _fit.plan_call, []

    def refusing(step, options, **rest):
        asked.append(options.budget)
        if asked == ["60%", "60%"]:
            raise InfeasibleBudgetError(budget_bytes=1, floor_bytes=2, largest=())
        return plan_call(step, options, **rest)

    monkeypatch.setattr(_fit, "plan_call", refusing)
    _, said = trained([512, 512, 512, 64], budget="60%")
    assert asked == ["60%", "60%", "lowest"]
    assert said == []  # until its first real step was seen, and that keeps the share


def test_a_first_kind_that_does_not_fit_is_an_error():
    model = Net()
    handle = legroom.fit(model, budget=100_000)
    with pytest.raises(InfeasibleBudgetError):
        model(*batch(0, rows=512))
    handle.undo()


class Table(torch.nn.Module):
    """Its peak is in the optimizer, where no plan lowers it."""

    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(4000, 64), torch.nn.Linear(64, 1)

    def forward(self, rows):
        return self.head(self.table(rows)).square().mean()


def test_a_loss_that_the_loop_keeps_is_no_reason_to_stop():
    torch.manual_seed(0)
    model, kept = Table(), []
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        kept.append(model(torch.arange(32)))
        kept[-1].backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    kept.clear()
    budget = legroom.plan(step, points=0).plain_peak_bytes
    kept.clear()
    handle = legroom.fit(model, budget=budget, step=step)
    kept.clear()
    for _ in range(6):
        step()  # a few bytes more each time
    assert handle.report().measured_peak_bytes > budget
    handle.undo()


def test_a_loss_in_the_loop_fits_where_the_plan_of_the_step_does():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(32, 32), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 128))
    optimizer = sgd(model)
    data, target = torch.randn(4096, 32), torch.randn(4096, 128)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()

    step()
    budget = legroom.plan(step, budget="lowest", points=0).chosen.predicted_peak_bytes + 2**18
    for options in ({}, {"step": step}):
        handle = legroom.fit(model, budget=budget, optimizer=optimizer, **options)
        for _ in range(6):
            step()
        handle.undo()
        assert handle.report().measured_peak_bytes <= budget
