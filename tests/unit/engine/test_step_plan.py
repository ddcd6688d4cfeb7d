"""A made-up step: what it must not touch."""

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

import legroom


def losses(*, budget=None):
    """Of five steps with a scheduler that a hook of the optimizer moves, and the hook's calls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    calls = []

    def after(*_):
        calls.append("own")
        scheduler.step()

    optimizer.register_step_post_hook(after)
    handle = register_optimizer_step_post_hook(lambda *_: calls.append("any"))
    fitted = legroom.fit(model, budget=budget) if budget else None
    found = []
    for _ in range(5):
        loss = model(torch.randn(1024, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.item(), scheduler.get_last_lr()))
    handle.remove()
    assert fitted is None or fitted.plan is not None
    return found, calls


def test_planning_calls_no_hooks_of_optimizers():
    assert losses(budget="floor") == losses()
