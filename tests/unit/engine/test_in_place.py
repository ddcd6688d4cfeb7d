"""Training in which gradients take the place of others: the same bits, less at the peak."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.capture import _in_place
from tests.unit.engine.training import check_prediction, check_same


class Wide(nn.Module):
    """An MLP with a wide middle, whose gradient is the peak when everything else is made again."""

    def __init__(self, activation):
        super().__init__()
        self.activation = activation
        self.up = nn.ModuleList(nn.Linear(32, 512) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(512, 32) for _ in range(3))
        self.head = nn.Linear(32, 300)

    def forward(self, value, target):
        for up, down in zip(self.up, self.down, strict=True):
            value = value + down(self.activation(up(value)))
        return F.cross_entropy(self.head(value), target)


def gradients(model, step):
    torch.manual_seed(step)
    loss = model(torch.randn(256, 32), torch.randint(300, (256,)))
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("activation", "budget"),
    [
        (F.gelu, "lowest"),
        (F.silu, "lowest"),
        pytest.param(
            F.relu,
            "100%",
            marks=pytest.mark.xfail(
                reason="the plain step is taken to need a middle less than it does, and the plan "
                "of the whole step one more"
            ),
        ),
        (torch.tanh, "lowest"),
    ],
)
def test_training_is_the_same(activation, budget):
    handle = check_same(Wide(activation), gradients, is_remade=False, budget=budget)
    check_prediction(handle, rel=0.02)


def test_the_middle_is_there_once_less(monkeypatch):
    model = Wide(F.gelu)
    middle_bytes = 256 * 512 * 4

    def floor_bytes():
        return legroom.plan(lambda: gradients(model, 0), points=0).floor_peak_bytes

    in_place = floor_bytes()
    monkeypatch.setattr(_in_place, "_FEWEST_BYTES", 1 << 40)
    # Then the peak is elsewhere, which takes a little of it back.
    assert floor_bytes() - in_place > 0.8 * middle_bytes


def test_backward_may_run_twice():
    torch.manual_seed(0)
    model, value = Wide(F.gelu), torch.randn(256, 32)
    target = torch.randint(300, (256,))

    def twice():
        model.zero_grad()
        loss = model(value, target)
        loss.backward(retain_graph=True)
        loss.backward()
        return [param.grad.clone() for param in model.parameters()]

    expected = twice()
    handle = legroom.fit(model, budget="100%")
    assert all(map(torch.equal, twice(), expected))
    handle.undo()
