import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

HIDDEN = 64 * 128 * 4


def run_once(function, x):
    return function(x)  # here


def run_again_in_backward(function, x):
    return checkpoint(function, x, use_reentrant=False)


class Net(nn.Module):
    def __init__(self, activation, run=run_once):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(16, 128) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(128, 16) for _ in range(2))
        self.activation = activation
        self.run = run

    def forward(self, x):
        for up, down in zip(self.up, self.down, strict=True):
            x = x + self.run(nn.Sequential(self.activation, down), up(x))
        return x


@pytest.mark.parametrize("activation", [nn.GELU(), nn.SiLU(), nn.Mish(), nn.LeakyReLU()])
def test_outputs_follow_from_kept_inputs(find_in, train, is_here, activation):
    model, x = Net(activation), torch.randn(64, 16)
    finding = find_in(train(model, lambda: model(x).square().mean()))["activation-input-and-output"]
    assert finding.bytes == 2 * HIDDEN
    assert len(finding.tensors) == 2
    assert is_here(finding)
    assert finding.module == "activation"


def test_half_of_a_joint_projection_is_an_input(find_in, train, is_here):
    first, second = nn.Linear(16, 256), nn.Linear(128, 16)
    x = torch.randn(64, 16)

    def loss():
        gate, value = first(x).chunk(2, dim=-1)
        gated = nn.functional.silu(gate) * value  # here
        return second(gated).square().mean()

    finding = find_in(train(nn.ModuleList([first, second]), loss))["activation-input-and-output"]
    assert finding.bytes == HIDDEN
    assert is_here(finding)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(nn.ReLU()),
        lambda: Net(nn.LeakyReLU(inplace=True)),
        lambda: Net(nn.GELU(), run_again_in_backward),
    ],
)
def test_relu_or_checkpoint_keeps_one_of_them(find_in, train, make):
    model, x = make(), torch.randn(64, 16)
    findings = find_in(train(model, lambda: model(x).square().mean()))
    assert "activation-input-and-output" not in findings
