"""What calls with their own plan are called, and what they differ in."""

import pytest
import torch

from legroom.engine._call_key import call_key


@pytest.fixture
def net():
    return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Dropout(0.5))


def key_of(net, *arguments):
    return call_key(net, arguments, {})


def test_scalars_have_no_shape_to_tell(net):
    batch, scalar = torch.randn(4, 64), torch.tensor(2.0)
    assert key_of(net, batch, scalar, scalar).in_words == "4x64"
    assert key_of(net, scalar).in_words == "scalars only"
    assert key_of(net).in_words == "no tensors"


def test_what_calls_of_one_shape_differ_in_is_named(net):
    batch = torch.randn(4, 64)
    first = key_of(net, batch)
    assert key_of(net, batch.double()).difference_from(first) == "dtypes"
    assert key_of(net, torch.randn(5, 64)).difference_from(first) == "shapes"
    assert key_of(net, batch, 3).difference_from(first) == "arguments"
    net.eval()
    assert key_of(net, batch).difference_from(first) == "train or eval mode"
    net.train()
    net[0].weight.requires_grad_(False)
    assert key_of(net, batch).difference_from(first) == "frozen parameters"
    net[0].weight.requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        assert key_of(net, batch).difference_from(first) == "autocast"
