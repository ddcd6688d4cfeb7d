"""Operations that joint graphs are taken apart into do what eager PyTorch does, bit for bit."""

import pytest
import torch
from torch.nn import functional as F

from legroom.capture._operations import TAKEN_APART

aten = torch.ops.aten
PROBABILITIES = (0.021, 0.04, 0.053, 0.1, 0.2, 0.3, 1 / 3, 0.5, 0.9, 0.999)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def same_bits(left, right):
    assert (left.shape, left.stride(), left.dtype) == (right.shape, right.stride(), right.dtype)
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", PROBABILITIES)
def test_dropout_is_that_of_eager(p, dtype):
    for value in (
        torch.randn(33, 20).to(dtype),
        torch.randn(20, 33).to(dtype).t(),
        torch.randn(2, 8, 6, 6).to(dtype, memory_format=torch.channels_last),
        torch.randn(33, 40).to(dtype)[:, ::2],
    ):
        leaf = value.detach().requires_grad_()
        torch.manual_seed(3)
        expected = F.dropout(leaf, p)
        state = torch.get_rng_state()
        gradient = torch.randn(value.shape).to(dtype)
        expected.backward(gradient)
        torch.manual_seed(3)
        output, mask = TAKEN_APART[aten.native_dropout.default](value, p, True)
        assert torch.equal(torch.get_rng_state(), state)
        assert same_bits(output, expected.detach())
        assert mask.dtype is torch.bool
        scale = 1.0 / (1.0 - p)
        back = TAKEN_APART[aten.native_dropout_backward.default](gradient, mask, scale)
        assert torch.equal(back, leaf.grad)


def test_what_is_no_plain_dropout_stays_whole():
    dropout = TAKEN_APART[aten.native_dropout.default]
    value = torch.ones(4)
    assert dropout(value, 0.5, False) is NotImplemented
    assert dropout(value, 1.0, True) is NotImplemented
