"""Tensors with many zeros: bits come back, in the room that was planned, or whole without room."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.capture import Kind, OperationInfo, Phase, TensorInfo, arguments_of
from legroom.ways import RunCost, Sparse, density_of, take_overflows

PRODUCER = OperationInfo(0, "aten.relu.default", Phase.FORWARD, writes=(0,))
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def info_of(value, density):
    dtype = str(value.dtype).removeprefix("torch.")
    shape = tuple(value.shape)
    return TensorInfo(0, "t0", value.nbytes, Kind.STASH, shape, dtype, producer=0, density=density)


def saving_of(value, density, costs=()):
    return Sparse.estimate(info_of(value, density), PRODUCER, costs)


def back_of(value, held, saving):
    return Sparse.get(held, list(value.shape), list(value.stride()), value.dtype, *saving.about)


@st.composite
def sparse_tensors(draw):
    """Any length around blocks and bytes, any order of dimensions, special numbers, few or many."""
    shape = draw(st.sampled_from([(70,), (8, 9), (3, 5, 7), (1,), (65536,), (65537,), (2, 70001)]))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    value = torch.randn(shape, generator=generator)
    kept = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.05, 0.5, 0.7]))
    value = torch.where(kept, value, 0.0).to(dtype)
    specials = torch.tensor([math.nan, math.inf, -math.inf, -0.0], dtype=dtype)
    value.view(-1)[: min(4, value.numel())] = specials[: min(4, value.numel())]
    return value.transpose(0, -1) if draw(st.booleans()) and value.dim() > 1 else value


@settings(max_examples=150, deadline=None, derandomize=True)
@given(value=sparse_tensors())
def test_bits_come_back_in_the_room_that_was_planned(value):
    saving = saving_of(value, density_of(value))
    if saving is None:
        return
    held = Sparse.put(value, *saving.about)
    assert not take_overflows()
    assert held.nbytes == saving.held_bytes < value.nbytes
    back = back_of(value, held, saving)
    bits = torch.int16 if value.dtype.itemsize == 2 else torch.int32
    assert torch.equal(back.contiguous().view(bits), value.contiguous().view(bits))
    assert back.stride() == value.stride()


def test_a_negative_zero_is_a_number():
    assert density_of(torch.tensor([-0.0, 0.0])) == 0.5


@pytest.mark.parametrize("value", [torch.ones(8, dtype=torch.int64), torch.empty(0)], ids=str)
def test_what_cannot_be_held_so_has_no_density(value):
    assert density_of(value) is None


@pytest.mark.parametrize("density", [None, 0.9, 1.0])
def test_it_is_for_what_was_measured_to_have_zeros(density):
    assert saving_of(torch.ones(4096), density) is None


def test_what_it_holds_is_what_is_not_zero():
    value = torch.zeros(1 << 16)
    assert saving_of(value, 0.25).held_bytes < 0.35 * value.nbytes
    assert saving_of(value, 0.0).held_bytes < 0.1 * value.nbytes


def test_more_than_there_is_room_for_is_held_whole_and_counted():
    take_overflows()
    value = torch.randn(1 << 17, generator=torch.Generator().manual_seed(0))
    saving = saving_of(value, 0.3)
    held = Sparse.put(value, *saving.about)
    assert held.nbytes == value.nbytes
    assert torch.equal(back_of(value, held, saving), value)
    assert (take_overflows(), take_overflows()) == (1, 0)


@pytest.mark.parametrize("density", [0.01, 0.2, 0.5, 0.75])
def test_it_is_timed_on_numbers_with_as_many_zeros(density):
    value = torch.randn(70_000, generator=torch.Generator().manual_seed(0))
    (signature,) = Sparse.signatures(info_of(value, density), PRODUCER)
    operation, args, _ = arguments_of(signature)
    back = operation(*args)
    assert density_of(back) == pytest.approx(args[1], abs=0.01)
    assert density <= args[1] <= density + 0.08
    assert (back > 0).logical_or(back == 0).all()
    assert (back.diff().sign() * args[0].diff().sign() >= 0).all()
    saving = saving_of(value, 0.5, (RunCost(3.0, 10),))
    assert (saving.put_ms, saving.get_ms) == (1.5, 1.5)
    assert (saving.put_bytes, saving.get_bytes) == (10, 10)


def test_what_long_tensors_take_lies_on_a_line():
    value = torch.empty(3 << 20, device="meta")
    signatures = Sparse.signatures(info_of(value, 0.5), PRODUCER)
    short, long = (arguments_of(each)[1][0].numel() for each in signatures)
    assert short < long < value.numel()
    saving = saving_of(value, 0.5, (RunCost(1.0, 10), RunCost(8.0, 10)))
    assert saving.put_ms + saving.get_ms == pytest.approx(24.0)
    assert saving.put_bytes == 10
