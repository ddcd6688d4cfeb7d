import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MAPS = 2 * 8 * 16 * 16 * 4


def convolutional(norm, activation):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        norm,
        activation,
        nn.Conv2d(8, 8, 3, padding=1),
    )


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.InstanceNorm2d(8), nn.GroupNorm(2, 8)])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU(inplace=True), nn.Identity()])
def test_output_of_a_norm_or_its_relu_is_waste(find_in, train, is_here, norm, activation):
    model, x = convolutional(norm, activation), torch.randn(2, 3, 16, 16)

    def loss():
        return model(x).square().mean()  # here

    finding = find_in(train(model, loss))["norm-input-and-output"]
    assert finding.bytes == MAPS
    assert is_here(finding)


class Rms(nn.Module):
    """As in transformers' Llama."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x


class Blocks(nn.Module):
    def __init__(self, norm, run=lambda function, x: function(x)):
        super().__init__()
        self.norms = nn.ModuleList(norm(32) for _ in range(3))
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.stem = nn.Linear(32, 32)
        self.run = run

    def forward(self, x):
        x = self.stem(x)
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + self.run(nn.Sequential(norm, linear), x)
        return x


@pytest.mark.parametrize(
    ("norm", "kept_per_norm"),
    [(nn.LayerNorm, 1), (nn.RMSNorm, 2), (Rms, 2)],
)
def test_rows_normalised_before_a_linear_are_waste(find_in, train, norm, kept_per_norm):
    model, x = Blocks(norm), torch.randn(64, 32)
    finding = find_in(train(model, lambda: model(x).square().mean()))["norm-input-and-output"]
    assert finding.bytes == 3 * kept_per_norm * 64 * 32 * 4
    assert len(finding.tensors) == 3 * kept_per_norm


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, Rms])
def test_checkpointed_norm_and_linear_keep_no_output(find_in, train, norm):
    def run_again_in_backward(function, x):
        return checkpoint(function, x, use_reentrant=False)

    model, x = Blocks(norm, run_again_in_backward), torch.randn(64, 32)
    assert "norm-input-and-output" not in find_in(train(model, lambda: model(x).square().mean()))


def test_norm_whose_output_nobody_keeps_is_none(find_in, train):
    model, x = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)), torch.randn(64, 32)
    assert "norm-input-and-output" not in find_in(train(model, lambda: model(x).mean()))
