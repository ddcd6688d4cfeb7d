"""What runs a planned graph."""

import pytest
import torch
from torch import nn

import legroom
from legroom.engine.graph import choose_executor
from legroom.engine.graph._executors import _view
from legroom.errors import UsageError


class Attending(nn.Module):
    """Keys behind an empty cache, seen through views that need eager's strides."""

    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(32, 32)
        self.queries = nn.Linear(32, 32)

    def forward(self, value):
        batch, length, _ = value.shape
        keys = self.keys(value).view(batch, length, 2, 16).transpose(1, 2)
        keys = torch.cat([torch.tensor([]), keys], dim=-2)
        turned = (keys.transpose(-2, -1) * 0.5).view(batch * 2, 16, length)
        queries = self.queries(value).view(batch, length, 2, 16).transpose(1, 2)
        scores = torch.bmm(queries.reshape(batch * 2, length, 16), turned)
        return torch.softmax(scores, -1).square().mean()


def test_a_view_that_there_cannot_be_is_a_copy():
    value = torch.arange(24.0).view(2, 3, 4)
    assert _view(value, [6, 4]) is NotImplemented
    assert _view(value, [2, -1]) is NotImplemented
    turned = value.transpose(1, 2)
    assert torch.equal(_view(turned, [8, 3]), turned.reshape(8, 3))


@pytest.mark.parametrize("exactness", ["bitwise", "rounding"])
def test_inductor_needs_rounding(exactness):
    assert choose_executor("eager", exactness).name == "eager"
    if exactness == "rounding":
        assert choose_executor("inductor", exactness).name == "inductor"
    else:
        with pytest.raises(UsageError, match="changes rounding"):
            choose_executor("inductor", exactness)


@pytest.mark.slow
def test_inductor_may_leave_other_strides_than_eager():
    torch.manual_seed(0)
    model, data = Attending(), torch.randn(4, 128, 32)
    expected = model(data)
    expected.backward()
    gradients = [param.grad.clone() for param in model.parameters()]
    fitted = legroom.fit(model, activations="70%", exactness="rounding", executor="inductor")
    model.zero_grad()
    found = model(data)
    found.backward()
    fitted.undo()
    torch.testing.assert_close(found, expected)
    for param, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(param.grad, gradient, rtol=1e-4, atol=1e-7)
