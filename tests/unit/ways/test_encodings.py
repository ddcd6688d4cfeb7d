"""The conformance suite of encodings: what comes back, what is held, what compilers make of it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom import ways
from legroom.capture import FUNCTIONAL, Kind, OperationInfo, Phase, TensorInfo, arguments_of
from legroom.ways import AbstractEncoding, Exactness, RunCost

ENCODINGS = [name for name in ways.names() if issubclass(ways.get(name), AbstractEncoding)]
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
PRODUCER = OperationInfo(0, "aten.gt.Scalar", Phase.FORWARD, writes=(0,))


def info_of(value, **extra):
    dtype = str(value.dtype).removeprefix("torch.")
    num_bytes = value.numel() * value.dtype.itemsize
    extra = {"num_bytes": num_bytes, **extra}
    return TensorInfo(
        0, "t0", kind=Kind.STASH, shape=tuple(value.shape), dtype=dtype, producer=0, **extra
    )


@st.composite
def tensors(draw):
    """Any shape, empty ones too, any order of dimensions in memory, any type, any bits."""
    shape = draw(st.lists(st.integers(0, 9), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    count = math.prod(shape)
    if dtype is torch.bool:
        flat = torch.randint(2, (count,), generator=generator).bool()
    else:
        raw = torch.randint(256, (count * dtype.itemsize,), generator=generator)
        flat = raw.to(torch.uint8).view(dtype)
    moved = flat.view([shape[place] for place in order])
    return moved.permute([order.index(place) for place in range(len(shape))])


def encoded(way, value):
    return way.put(value)


def decoded(way, held, value):
    return way.get(held, list(value.shape), list(value.stride()), value.dtype)


def bits_of(value):
    flat = value.contiguous().view(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(value=tensors())
def test_what_is_exact_comes_back_bit_for_bit(name, value):
    way = ways.get(name)
    saving = way.estimate(info_of(value), PRODUCER)
    if saving is None:
        return
    held = encoded(way, value)
    assert held.untyped_storage().nbytes() == saving.held_bytes
    back = decoded(way, held, value)
    assert (back.shape, back.stride(), back.dtype) == (value.shape, value.stride(), value.dtype)
    if way.exactness is Exactness.BITWISE:
        assert torch.equal(bits_of(back), bits_of(value))


@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(value=tensors())
def test_the_form_for_compilers_is_the_same(name, value):
    way = ways.get(name)
    if way.estimate(info_of(value), PRODUCER) is None:
        return
    held = encoded(way, value)
    assert torch.equal(FUNCTIONAL[way.put](value), held)
    layout = (list(value.shape), list(value.stride()), value.dtype)
    again = FUNCTIONAL[way.get](held, *layout)
    assert torch.equal(bits_of(again), bits_of(way.get(held, *layout)))
    assert again.stride() == value.stride()


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_it_runs_can_be_timed(name):
    way = ways.get(name)
    values = (torch.ones(6, 5, dtype=dtype) for dtype in DTYPES)
    value = next(each for each in values if way.estimate(info_of(each), PRODUCER) is not None)
    put, get = way.signatures(info_of(value), PRODUCER)
    operation, args, kwargs = arguments_of(put)
    assert torch.equal(operation(*args, **kwargs), encoded(way, args[0]))
    operation, args, kwargs = arguments_of(get)
    assert operation(*args, **kwargs).shape == value.shape
    saving = way.estimate(info_of(value), PRODUCER, (RunCost(1.0, 10), RunCost(2.0, 20)))
    assert (saving.put_ms, saving.get_ms) == (1.0, 2.0)
    assert (saving.put_bytes, saving.get_bytes) == (10, 20)


@pytest.mark.parametrize("name", ENCODINGS)
def test_it_does_not_apply_where_it_could_be_wrong(name):
    way = ways.get(name)
    value = torch.ones(8, 8, dtype=torch.bool)
    for unfit in (
        info_of(value, num_bytes=100),  # a storage that holds more than the tensor
        info_of(value.to(torch.complex64)),
        info_of(torch.ones(8, dtype=torch.int64)),
    ):
        saving = way.estimate(unfit, PRODUCER)
        assert saving is None or saving.held_bytes < unfit.num_bytes
    backward = OperationInfo(0, "aten.gt.Scalar", Phase.BACKWARD, writes=(0,))
    assert way.estimate(info_of(value), backward) is None
