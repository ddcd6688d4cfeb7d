"""The conformance suite of encodings: what comes back, what is held, what compilers make of it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom import ways
from legroom.capture import FUNCTIONAL, Kind, OperationInfo, Phase, TensorInfo, arguments_of
from legroom.ways import AbstractEncoding, Exactness, RunCost
from legroom.ways._integer import reset_noise

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
    reset_noise(1)
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
    reset_noise(1)
    assert torch.equal(bits_of(FUNCTIONAL[way.put](value)), bits_of(held))
    layout = (list(value.shape), list(value.stride()), value.dtype)
    again = FUNCTIONAL[way.get](held, *layout)
    assert torch.equal(bits_of(again), bits_of(way.get(held, *layout)))
    assert again.stride() == value.stride()


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_it_runs_can_be_timed(name):
    way = ways.get(name)
    values = (torch.ones(60, 50, dtype=dtype) for dtype in DTYPES)
    value = next(each for each in values if way.estimate(info_of(each), PRODUCER) is not None)
    put, get = way.signatures(info_of(value), PRODUCER)
    operation, args, kwargs = arguments_of(put)
    expected = encoded(way, args[0])
    reset_noise(1)
    assert torch.equal(bits_of(operation(*args, **kwargs)), bits_of(expected))
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


# What is lossy: how much -------------------------------------------------------------------------

RELATIVE_ERRORS = {
    "bfloat16": 2**-8, "float16": 2**-11, "float10": 2**-5, "float8-e4m3": 2**-4,
    "float8-e5m2": 2**-3,
}  # fmt: skip
STEPS = {"integer8": 255, "integer4": 15, "integer2": 3}
SPECIAL = torch.tensor([math.inf, -math.inf, math.nan])


def there_and_back(way, value):
    return decoded(way, encoded(way, value), value)


def test_every_lossy_encoding_is_held_to_its_error():
    lossy = {name for name in ENCODINGS if ways.get(name).exactness is Exactness.LOSSY}
    assert lossy == {*RELATIVE_ERRORS, *STEPS}


@pytest.mark.parametrize("name", RELATIVE_ERRORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fewer_bits_round_to_the_nearest(name, dtype):
    value = torch.randn(70_001, generator=torch.Generator().manual_seed(0)).to(dtype)
    back = there_and_back(ways.get(name), value)
    normal = value.abs() > 2**-5  # below, the narrowest types have fewer digits
    assert ((back - value).abs()[normal] <= RELATIVE_ERRORS[name] * value.abs()[normal]).all()
    assert ((back - value).abs()[~normal] <= 2**-8).all()
    assert torch.equal(there_and_back(ways.get(name), back), back)


@pytest.mark.parametrize("name", RELATIVE_ERRORS)
def test_large_numbers_stay_finite_and_infinities_do_not(name):
    value = torch.tensor([1e38, -1e38, 3.4e38, 1e30])
    back = there_and_back(ways.get(name), value)
    assert back.isfinite().all()
    assert torch.equal(back.sign(), value.sign())
    special = there_and_back(ways.get(name), SPECIAL)
    assert not special.isfinite().any()
    assert special[2].isnan()


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e38])
def test_integers_are_off_by_less_than_a_step(name, scale):
    value = torch.randn(256 * 300 + 77, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    value = value * scale
    back = there_and_back(ways.get(name), value)
    for rows, again in zip(value.split(256), back.split(256), strict=True):
        step = (rows.double().amax() - rows.double().amin()) / STEPS[name]
        assert (again.double() - rows.double()).abs().max() <= step * (1 + 1e-4)


@pytest.mark.parametrize("name", STEPS)
def test_integers_are_right_on_average(name):
    way = ways.get(name)
    value = torch.randn(1024, generator=torch.Generator().manual_seed(0))
    reset_noise(5)
    draws = torch.stack([decoded(way, way.put(value), value) for _ in range(600)])
    steps = torch.stack([rows.amax() - rows.amin() for rows in value.split(256)]) / STEPS[name]
    # A step's deviation is at most half of it: five deviations of the mean, for every number.
    allowed = 5 * 0.5 * steps.repeat_interleave(256) / 600**0.5
    assert ((draws.mean(0) - value).abs() <= allowed).all()
    assert (draws.std(0) > 0).any()


@pytest.mark.parametrize("name", STEPS)
def test_what_is_not_finite_leaves_the_others_alone(name):
    value = torch.randn(1024, generator=torch.Generator().manual_seed(0))
    value[[3, 300, 301]] = SPECIAL
    back = there_and_back(ways.get(name), value)
    assert torch.equal(back.isinf(), value.isinf())
    assert torch.equal(back.isnan(), value.isnan())
    assert torch.equal(back[value.isinf()], value[value.isinf()])
    finite = value.isfinite()
    spread = value[finite].amax() - value[finite].amin()
    assert (back - value)[finite].abs().max() <= spread
    nothing = there_and_back(ways.get(name), torch.full((300,), math.nan))
    assert nothing.isnan().all()


@pytest.mark.parametrize("name", STEPS)
def test_a_constant_comes_back(name):
    value = torch.full((1000,), 0.7)
    assert torch.equal(there_and_back(ways.get(name), value), value)


def test_rounding_leaves_the_programs_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    ways.get("integer4").put(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.rand(4), expected)
