"""Which ways apply to which tensors, where backward has several formulas to choose from."""

import pytest
import torch
from torch import nn

from legroom import variants, ways
from legroom.capture import capture_step
from legroom.plan._problem import build_problem, signatures_of_ways


def captured(*layers):
    """A step of a convolution, a batch norm, these layers and another convolution."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), *layers, nn.Conv2d(8, 1, 3)
    )
    data = torch.randn(2, 3, 16, 16)
    return capture_step(lambda: net(data).square().mean().backward()).planned


def offered(graph, enabled_variants):
    """Names of the ways for each tensor that a ReLU or a pooling makes."""
    problem = build_problem(graph, ways.select(), enabled_variants)
    return {
        graph.tensors[each.tensor].name.partition(".")[2]: [option.way for option in each.options]
        for each in problem.candidates
        if "relu" in graph.tensors[each.tensor].name or "pool" in graph.tensors[each.tensor].name
    }


@pytest.fixture(scope="module")
def relu_and_pooling():
    return captured(nn.ReLU(), nn.MaxPool2d(2))


def test_a_bit_is_enough_in_front_of_a_max_pooling(relu_and_pooling):
    found = offered(relu_and_pooling, variants.select())
    assert "sign" in found["relu_fused"]
    assert "offsets" in found["max_pool2d_with_indices~1"]
    assert "sign" not in found["max_pool2d_with_indices"]  # a convolution reads it


def test_a_pooling_that_asks_for_its_input_needs_numbers(relu_and_pooling):
    found = offered(relu_and_pooling, variants.select(("relu-from-input",)))
    assert "sign" not in found["relu_fused"]
    assert "offsets" in found["max_pool2d_with_indices~1"]


@pytest.mark.parametrize(
    "pooling", [nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(4), nn.MaxPool2d(3, 2, 1)], ids=str
)
def test_a_bit_is_enough_in_front_of_other_poolings(pooling):
    assert "sign" in offered(captured(nn.ReLU(), pooling), variants.select())["relu_fused"]


def test_a_convolution_beside_the_pooling_needs_numbers():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.pooling, self.beside = nn.MaxPool2d(2), nn.Conv2d(8, 8, 2, stride=2)

        def forward(self, value):
            return self.pooling(value) + self.beside(value)

    found = offered(captured(nn.ReLU(), Both()), variants.select())
    assert "sign" not in found["relu_fused"]


@pytest.mark.parametrize("enabled", [(), variants.select()], ids=["plain", "variants"])
def test_what_the_ways_run_is_named_beforehand(relu_and_pooling, enabled):
    """Every cost that the problem asks for was asked for when operations were timed."""
    asked = []

    class Costs(dict):
        def get(self, key, default=None):
            asked.append(key)
            return default

    costs = Costs(others=None)  # an empty one would be taken for none
    build_problem(relu_and_pooling, ways.select(), enabled, costs)
    named = signatures_of_ways(relu_and_pooling, ways.select(), enabled)
    assert set(asked) == set(named)
    assert any("legroom.sign_put" in each for each in named) == bool(enabled)
