"""Losses that hold the memory of all their terms: predicted so, and planned without it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from legroom.capture._losses import _NUMBERS, LARGE_LOSSES
from tests.unit.engine.training import bytes_of, check_prediction, check_same

LOSSES = {
    "mse": F.mse_loss,
    "entropy": lambda value, target: F.binary_cross_entropy(value.sigmoid(), target.sigmoid()),
}


@pytest.mark.parametrize("func", LARGE_LOSSES, ids=str)
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_fake_losses_are_as_large_as_real_ones(func, reduction):
    value, target = torch.rand(8, 16), torch.rand(8, 16)
    extra = (None, reduction) if "cross_entropy" in str(func) else (reduction,)
    real = func(value, target, *extra)
    fake = LARGE_LOSSES[func](value.to("meta"), target.to("meta"), *extra)
    assert fake.shape == real.shape
    assert fake.untyped_storage().nbytes() == real.untyped_storage().nbytes() == 512
    number = _NUMBERS[func](value, target, *extra)
    assert bytes_of(number) == bytes_of(real)
    assert number.untyped_storage().nbytes() == (512 if reduction == 0 else 4)


class Model(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.loss = loss

    def forward(self, data):
        value = data
        for layer in self.layers:
            value = torch.tanh(layer(value))
        return self.loss(value, data.flip(0))


@pytest.mark.parametrize("name", ["mse", "entropy"])
def test_the_peak_is_known_and_the_training_the_same(name):
    data = torch.randn(1024, 64)

    def gradients(model, step):
        loss = model(data)
        loss.backward()
        return loss

    handle = check_same(Model(LOSSES[name]), gradients, budget="lowest", is_remade=False)
    check_prediction(handle, rel=0.005)
