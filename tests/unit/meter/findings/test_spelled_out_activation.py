import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH = 64, 128
HIDDEN = ROWS * WIDTH * 4


def gelu_new(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))  # here


def gelu_erf(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))  # here


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)  # here


def silu_by_exp(x):
    return x / (1 + torch.exp(-x))  # here


class Net(nn.Module):
    def __init__(self, activation, num_layers=2):
        super().__init__()
        self.activation = activation
        self.up = nn.ModuleList(nn.Linear(16, WIDTH) for _ in range(num_layers))
        self.down = nn.ModuleList(nn.Linear(WIDTH, 16) for _ in range(num_layers))

    def forward(self, x):
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(self.activation(up(x)))
        return x


@pytest.mark.parametrize(
    ("activation", "num_extra"),
    [(gelu_new, 3), (gelu_erf, 2), (quick_gelu, 1), (silu_by_exp, 2)],
)
def test_all_but_one_kept_tensor_is_waste(find_in, train, is_here, activation, num_extra):
    model, x = Net(activation), torch.randn(ROWS, 16)
    finding = find_in(train(model, lambda: model(x).square().mean()))["spelled-out-activation"]
    assert finding.bytes == 2 * num_extra * HIDDEN
    assert len(finding.tensors) == 2 * num_extra
    assert "2 calls" in finding.detail
    assert is_here(finding)


def test_activation_modules_are_grouped_by_call(find_in, train):
    class Gelu(nn.Module):
        def forward(self, x):
            return gelu_new(x)

    model, x = Net(Gelu(), num_layers=3), torch.randn(ROWS, 16)
    finding = find_in(train(model, lambda: model(x).square().mean()))["spelled-out-activation"]
    assert finding.bytes == 9 * HIDDEN


@pytest.mark.parametrize("activation", [nn.GELU("tanh"), F.silu, F.relu, torch.tanh])
def test_fused_functions_are_no_finding(find_in, train, activation):
    model, x = Net(activation), torch.randn(ROWS, 16)
    assert "spelled-out-activation" not in find_in(train(model, lambda: model(x).square().mean()))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.gate = nn.Linear(16, WIDTH), nn.Linear(16, WIDTH)

    def forward(self, x):
        return self.value(x) * torch.sigmoid(self.gate(x))


class Highway(Gated):
    def forward(self, x):
        gate, value = torch.sigmoid(self.gate(x)), self.value(x)
        return gate * value + (1 - gate) * value.detach()


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(16, WIDTH) for _ in range(3))

    def forward(self, x):
        first, second, third = (gate(x) for gate in self.gates)
        state = torch.sigmoid(first) * torch.tanh(second)
        return torch.sigmoid(third) * torch.tanh(state)


@pytest.mark.parametrize("make", [Gated, Highway, Cell])
def test_gates_are_not_activations(find_in, train, make):
    model, x = make(), torch.randn(ROWS, 16)
    assert "spelled-out-activation" not in find_in(train(model, lambda: model(x).square().mean()))


def test_formulas_of_a_loss_are_not_activations(find_in, train):
    model, x = nn.Linear(16, WIDTH), torch.randn(ROWS, 16)
    assert "spelled-out-activation" not in find_in(train(model, lambda: gelu_new(model(x)).mean()))
