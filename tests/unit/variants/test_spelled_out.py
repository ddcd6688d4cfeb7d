"""An activation that is written out is found by what it computes, whoever wrote it."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.capture import capture_step, scan_heap
from legroom.layers import known_activation
from legroom.plan import Judge, PlanOptions
from legroom.variants import SpelledOut


def gelu_new(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def gelu_fast(x):
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_by_erf(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


WRITTEN = {
    "gelu_new": (gelu_new, "aten.gelu"),
    "gelu_fast": (gelu_fast, "aten.gelu"),
    "gelu by erf": (gelu_by_erf, "aten.gelu"),
    "swish": (lambda x: x * torch.sigmoid(x), "aten.silu"),
    "swish by method": (lambda x: x.sigmoid().mul(x), "aten.silu"),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), "aten.mish"),
}
OTHERS = {
    "half": lambda x: 0.5 * x * (1.0 + torch.tanh(x)),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "two tensors": lambda x: x * torch.sigmoid(x.roll(1, 0)),
    "read elsewhere": lambda x: torch.tanh(x) + 0.1 * x,
}


class Model(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 64)
        self.activation = activation

    def forward(self, value):
        return self.last(self.activation(self.first(value) + 0.1)).square().mean()


def names_of(model, **options):
    value = torch.randn(64, 64)
    options = {"exactness": "rounding", "rewrites": (SpelledOut.apply,), **options}
    captured = capture_step(lambda: model(value).backward(), **options)
    return [each.name.rpartition(".")[0] for each in captured.planned.operations]


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_found_however_it_is_written(name):
    activation, operation = WRITTEN[name]
    names = names_of(Model(activation))
    assert operation in names
    assert f"{operation}_backward" in names
    assert "aten.tanh" not in names


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_stays(name):
    names = names_of(Model(OTHERS[name]))
    assert not [each for each in names if each.split(".")[1] in ("gelu", "silu", "mish")]


def test_at_bitwise_nothing_is_rewritten():
    names = names_of(Model(gelu_new), exactness="bitwise", rewrites=PlanOptions().rewrites)
    assert "aten.gelu" not in names


def test_gradients_are_as_good_as_those_of_eager():
    torch.manual_seed(0)
    model, value = Model(gelu_new), torch.randn(512, 64)
    exact, plain = copy.deepcopy(model).double(), copy.deepcopy(model)
    exact(value.double()).backward()
    plain(value).backward()
    handle = legroom.fit(model, budget="lowest", exactness="rounding")
    for _ in range(2):
        model.zero_grad()
        model(value).backward()
    handle.undo()
    for mine, theirs, best in zip(
        model.parameters(), plain.parameters(), exact.parameters(), strict=True
    ):
        allowed = max(1e-6 * best.grad.norm(), 3 * (theirs.grad.double() - best.grad).norm())
        assert (mine.grad.double() - best.grad).norm() <= allowed


def test_nothing_it_tells_activations_by_stays_alive():
    seen = []

    def compute(values):
        seen.append((values.shape, values.dtype))
        return gelu_new(values)

    assert known_activation(compute) == (F.gelu, {"approximate": "tanh"})
    alive = [(each.shape, each.dtype) for each in scan_heap().tensors]
    assert seen[0] not in alive


def test_the_step_is_captured_as_it_is_written_too():
    model, value = Model(gelu_new), torch.randn(64, 64)

    def captured(activation, **options):
        model.activation = activation
        return capture_step(
            lambda: model(value).backward(),
            exactness="rounding",
            rewrites=(SpelledOut.apply,),
            **options,
        )

    found = captured(gelu_new, as_written=True)
    assert found.rewritten_by == (SpelledOut.apply,)
    assert found.as_written.rewritten_by == ()
    names = [each.name for each in found.as_written.planned.operations]
    assert not any("gelu" in name for name in names)
    assert found.as_written.plain is found.plain
    assert captured(gelu_new).as_written is None
    assert captured(F.relu, as_written=True).as_written is None


def test_a_plan_of_the_step_as_it_is_written_runs(monkeypatch):
    torch.manual_seed(0)
    model, value = Model(gelu_new), torch.randn(512, 64)
    expected = model(value)
    expected.backward()
    gradients = [param.grad.clone() for param in model.parameters()]
    monkeypatch.setattr(Judge, "is_unbeatable", lambda self, planned, budget: False)
    monkeypatch.setattr(Judge, "best", lambda self, found, budget: found[-1])
    handle = legroom.fit(model, activations="60%", exactness="rounding")
    model.zero_grad()
    loss = model(value)
    loss.backward()
    report = handle.report()
    handle.undo()
    assert report.rewrites == ()
    assert report.not_planned == ()
    assert torch.equal(loss, expected)
    found = [param.grad for param in model.parameters()]
    assert all(map(torch.equal, found, gradients))
