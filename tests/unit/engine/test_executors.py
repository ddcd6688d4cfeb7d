"""What runs a planned graph."""

import contextlib
import importlib
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import fx, nn

import legroom
from legroom.engine.graph import _executors, choose_executor
from legroom.engine.graph._executors import _fusing_neighbours, _view
from legroom.errors import UsageError


@pytest.fixture(scope="module")
def inductor():
    """Inductor's modules, which warn when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = ("compile_fx", "config", "choices", "virtualized")
        return SimpleNamespace(
            **{name: importlib.import_module(f"torch._inductor.{name}") for name in names}
        )


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


def test_inductor_fuses_only_what_lies_close_together(monkeypatch, inductor):
    def node(first, last):
        return SimpleNamespace(min_order=first, max_order=last)

    base, virtual = inductor.choices.InductorChoices, inductor.virtualized.V
    monkeypatch.setattr(base, "can_fuse", staticmethod(lambda *rest: True))
    with _fusing_neighbours():
        assert virtual.choices.can_fuse(None, node(3, 5), node(6, 27), 1)
        # Torch's own would: remade at the end of backward, next to what reads the same before it.
        assert not virtual.choices.can_fuse(None, node(3, 5), node(28, 28), 1)
        assert not virtual.choices.can_fuse(None, node(40, 41), node(3, 5), 1)
        assert "neighbours" in inductor.config.inductor_choices_class().uuid()
    assert virtual.choices.can_fuse(None, node(3, 5), node(60, 60), 1)
    assert inductor.config.inductor_choices_class is None


def test_inductor_compiles_under_that_rule(monkeypatch, inductor):
    asked = []

    @contextlib.contextmanager
    def noted():
        asked.append(True)
        with _fusing_neighbours():
            yield

    monkeypatch.setattr(_executors, "_fusing_neighbours", noted)
    monkeypatch.setattr(inductor.compile_fx, "compile_fx_inner", lambda graph, inputs: graph)
    graph = fx.symbolic_trace(lambda value: value + 1)
    choose_executor("inductor", "rounding").compile(graph, [torch.ones(2)])
    assert asked == [True]
