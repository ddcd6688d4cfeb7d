"""The conformance suite of encodings: what comes back, what is held, what it takes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom import ways
from legroom.capture import (
    Kind,
    OperationInfo,
    Phase,
    TensorInfo,
    arguments_of,
    signature_of,
)
from legroom.ways import AbstractEncoding, Exactness, RunCost, take_overflows
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
MOST = 200
"""Indices that are encoded lie below."""


def reader(name, *args):
    """An operation of backward that reads tensor 0 after another."""
    operation = getattr(torch.ops.aten, name).default
    signature = signature_of(operation, args)
    return OperationInfo(1, f"aten.{name}.default", Phase.BACKWARD, (5, 0), signature=signature)


def surroundings(way, value):
    """What makes and what reads a tensor that this way is for."""
    meta = value.to("meta")
    if way.name.startswith("fewbit"):
        return PRODUCER, (reader("gelu_backward", meta, meta),)
    if way.name == "sign":
        return PRODUCER, (reader("threshold_backward", meta, meta, 0),)
    if way.name == "sketch":
        return PRODUCER, (reader("mm", meta, meta),)
    if way.name == "offsets":
        signature = signature_of(torch.ops.aten.max.dim, (torch.empty(MOST, device="meta"), 0))
        made = OperationInfo(0, "aten.max.dim", Phase.FORWARD, writes=(7, 0), signature=signature)
        return made, ()
    return PRODUCER, ()


def estimate(way, value, costs=()):
    producer, readers = surroundings(way, value)
    density = 0.5 if way.name == "sparse" else None  # of many, more is true
    return way.estimate(info_of(value, density=density), producer, costs, readers)


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
    if dtype is torch.int64:
        flat = torch.randint(MOST, (count,), generator=generator)
    elif dtype is torch.bool:
        flat = torch.randint(2, (count,), generator=generator).bool()
    else:
        raw = torch.randint(256, (count * dtype.itemsize,), generator=generator)
        flat = raw.to(torch.uint8).view(dtype)
    moved = flat.view([shape[place] for place in order])
    return moved.permute([order.index(place) for place in range(len(shape))])


def encoded(way, value):
    reset_noise(1)
    return way.put(value, *estimate(way, value).about)


def decoded(way, held, value):
    about = estimate(way, value).about
    return way.get(held, list(value.shape), list(value.stride()), value.dtype, *about)


def bits_of(value):
    flat = value.contiguous().view(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(value=tensors())
def test_what_is_exact_comes_back_bit_for_bit(name, value):
    way = ways.get(name)
    saving = estimate(way, value)
    if saving is None:
        return
    held = encoded(way, value)
    has_room = name != "sparse" or not take_overflows()
    assert held.untyped_storage().nbytes() == (saving.held_bytes if has_room else value.nbytes)
    back = decoded(way, held, value)
    assert (back.shape, back.stride(), back.dtype) == (value.shape, value.stride(), value.dtype)
    if way.exactness is Exactness.BITWISE and not way.readers_only:
        assert torch.equal(bits_of(back), bits_of(value))


@pytest.mark.parametrize("name", ENCODINGS)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(value=tensors())
def test_shapes_are_known_without_memory(name, value):
    way = ways.get(name)
    saving = estimate(way, value)
    if saving is None:
        return
    held = encoded(way, value)
    layout = (list(value.shape), list(value.stride()), value.dtype, *saving.about)
    if name == "sparse" and take_overflows():
        return
    like = way.put(value.to("meta"), *saving.about)
    assert (like.shape, like.dtype) == (held.shape, held.dtype)
    back, like = way.get(held, *layout), way.get(like, *layout)
    assert (like.shape, like.stride(), like.dtype) == (back.shape, back.stride(), back.dtype)


# One is timed on other numbers, the other is for what a single operation makes.
TIMED = [name for name in ENCODINGS if name not in ("sparse", "workspace")]


@pytest.mark.parametrize("name", TIMED)
def test_what_it_runs_can_be_timed(name):
    way = ways.get(name)
    values = (torch.ones(60, 50, dtype=dtype) for dtype in DTYPES)
    value = next(each for each in values if estimate(way, each) is not None)
    put, get = way.signatures(info_of(value), *surroundings(way, value))
    operation, args, kwargs = arguments_of(put)
    expected = encoded(way, args[0])
    reset_noise(1)
    assert torch.equal(bits_of(operation(*args, **kwargs)), bits_of(expected))
    operation, args, kwargs = arguments_of(get)
    assert operation(*args, **kwargs).numel() == value.numel()
    saving = estimate(way, value, (RunCost(1.0, 10), RunCost(2.0, 20)))
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
        saving = way.estimate(unfit, PRODUCER, (), surroundings(way, value)[1])
        assert saving is None or saving.held_bytes < unfit.num_bytes
    backward = OperationInfo(0, "aten.gt.Scalar", Phase.BACKWARD, writes=(0,))
    assert way.estimate(info_of(value), backward) is None
    if way.readers_only:
        assert way.estimate(info_of(torch.ones(999)), PRODUCER) is None
        other = reader("mul", torch.ones(999), torch.ones(999))
        assert way.estimate(info_of(torch.ones(999)), PRODUCER, (), (other,)) is None


@pytest.mark.parametrize("name", TIMED)
def test_what_long_tensors_take_lies_on_a_line(name):
    way = ways.get(name)
    values = (torch.empty(3, 1 << 20, dtype=dtype, device="meta") for dtype in DTYPES)
    value = next(each for each in values if estimate(way, each) is not None)
    signatures = way.signatures(info_of(value), *surroundings(way, value))
    if not way.is_flat:
        assert len(signatures) == 2
        return
    short, _, long, _ = (arguments_of(each)[1][0] for each in signatures)
    assert short.numel() < long.numel() < value.numel()
    costs = (RunCost(1.0, 100), RunCost(2.0, 0), RunCost(8.0, 800), RunCost(16.0, 0))
    saving = estimate(way, value, costs)
    assert (saving.put_ms, saving.get_ms) == (pytest.approx(24.0), pytest.approx(48.0))
    assert (saving.put_bytes, saving.get_bytes) == (2400, 0)


# What is lossy: how much -------------------------------------------------------------------------

RELATIVE_ERRORS = {
    "bfloat16": 2**-8, "float16": 2**-11, "float10": 2**-5, "float8-e4m3": 2**-4,
    "float8-e5m2": 2**-3,
}  # fmt: skip
DERIVATIVE_ERRORS = {f"fewbit{bits}": ways.get(f"fewbit{bits}").error for bits in (4, 3, 2, 1)}
STEPS = {"integer8": 255, "integer4": 15, "integer2": 3}
SPECIAL = torch.tensor([math.inf, -math.inf, math.nan])


def there_and_back(way, value):
    return decoded(way, encoded(way, value), value)


def test_every_lossy_encoding_is_held_to_its_error():
    lossy = {name for name in ENCODINGS if ways.get(name).exactness is Exactness.LOSSY}
    assert lossy == {*RELATIVE_ERRORS, *STEPS, *DERIVATIVE_ERRORS, "sketch"}


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


# What serves its readers only --------------------------------------------------------------------

ACTIVATIONS = {
    "gelu": (torch.ops.aten.gelu_backward, ()),
    "silu": (torch.ops.aten.silu_backward, ()),
    "mish": (torch.ops.aten.mish_backward, ()),
    "hardswish": (torch.ops.aten.hardswish_backward, ()),
    "elu": (lambda g, x: torch.ops.aten.elu_backward(g, 1.0, 1.0, 1.0, False, x), None),
    "softplus": (lambda g, x: torch.ops.aten.softplus_backward(g, x, 1.0, 20.0), (1.0, 20.0)),
}


FAMILY = {
    "threshold": (0.0,), "leaky_relu": (0.1, False), "hardsigmoid": (),
}  # fmt: skip


@pytest.mark.parametrize("activation", FAMILY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_bit_is_all_that_a_relus_gradient_needs(activation, dtype):
    value = 3 * torch.randn(300, 257, generator=torch.Generator().manual_seed(0)).to(dtype)
    value[:3, 0] = SPECIAL.to(dtype)
    value[3:8, 0] = torch.tensor([0.0, -0.0, -1.0, 0.5, 3.0], dtype=dtype)
    way, meta = ways.get("sign"), value.to("meta")
    readers = (reader(f"{activation}_backward", meta, meta, *FAMILY[activation]),)
    saving = way.estimate(info_of(value), PRODUCER, (), readers)
    assert saving.held_bytes == -(-value.numel() // 8)
    held = way.put(value, *saving.about)
    layout = (list(value.shape), list(value.stride()), value.dtype)
    gradient = torch.randn(value.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    run = getattr(torch.ops.aten, f"{activation}_backward")
    expected = run(gradient, value, *FAMILY[activation])
    back = way.get(held, *layout, *saving.about)
    found = run(gradient, back, *FAMILY[activation])
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_a_bit_is_not_enough_for_another_reader():
    way, value = ways.get("sign"), torch.ones(99, device="meta")
    relu = reader("threshold_backward", value, value, 0)
    other = reader("mul", value, value)
    assert way.estimate(info_of(value), PRODUCER, (), (relu, other)) is None
    assert way.estimate(info_of(value), PRODUCER, (), (relu, relu)) is not None
    two = reader("threshold_backward", value, value, 1.0)
    assert way.estimate(info_of(value), PRODUCER, (), (relu, two)) is None


def few_bits(name, activation, value):
    run, extra = ACTIVATIONS[activation]
    meta = value.to("meta")
    args = (meta, 1.0, 1.0, 1.0, False, meta) if extra is None else (meta, meta, *extra)
    way, readers = ways.get(name), (reader(f"{activation}_backward", *args),)
    (about, site) = way.estimate(info_of(value), PRODUCER, (), readers).about
    held = way.put(value, about, site)
    back = way.get(held, list(value.shape), list(value.stride()), value.dtype, about, site)
    gradient = torch.randn(value.shape, generator=torch.Generator().manual_seed(2))
    return run(gradient.to(value.dtype), back), run(gradient.to(value.dtype), value)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", DERIVATIVE_ERRORS)
@pytest.mark.parametrize("shift", [0.0, -2.0])
def test_few_bits_are_near_the_derivative(name, activation, shift):
    value = torch.randn(300, 257, generator=torch.Generator().manual_seed(0)) + shift
    found, exact = few_bits(name, activation, value)
    share = 2.9 if shift else 1.2  # derivatives that are small make errors large beside them
    if activation == "hardswish":  # its derivative jumps
        share *= 1.5
    assert (found - exact).norm() <= share * DERIVATIVE_ERRORS[name] * exact.norm()


def test_intervals_are_the_best_there_are():
    from legroom.ways._fewbit import _cut

    values = torch.randn(9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def error(firsts):
        ends = [*firsts[1:], 9]
        parts = [values[a:b] for a, b in zip(firsts, ends, strict=True)]
        return sum((part - part.mean()).square().sum() for part in parts)

    best = min(error([0, a, b]) for a in range(1, 9) for b in range(a + 1, 9))
    assert error(_cut(values, 3)) == pytest.approx(best.item())


def test_what_is_not_a_number_is_seen_and_infinities_do_no_harm():
    value = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    value[7] = math.inf
    found, _ = few_bits("fewbit4", "silu", value)
    assert found.isfinite().all()
    value[9] = math.nan
    found, _ = few_bits("fewbit4", "silu", value)
    assert found.isnan().all()


def test_intervals_follow_the_numbers(monkeypatch):
    value = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    few_bits("fewbit2", "gelu", value)
    found, exact = few_bits("fewbit2", "gelu", 0.2 * value - 1)
    error = (found - exact).norm()
    few_bits("fewbit2", "gelu", value)
    monkeypatch.setattr("legroom.ways._fewbit._MOVED", math.inf)
    found, exact = few_bits("fewbit2", "gelu", 0.2 * value - 1)
    assert error < 0.5 * (found - exact).norm()


def test_a_sketch_is_right_on_average():
    way = ways.get("sketch")
    value = torch.randn(512, generator=torch.Generator().manual_seed(0))
    reset_noise(5)
    draws = torch.stack([decoded(way, way.put(value), value) for _ in range(4000)])
    assert ((draws.mean(0) - value).abs() <= 5 * draws.std(0) / 4000**0.5).all()
    error = (draws - value).norm(dim=1).mean() / value.norm()
    assert error == pytest.approx(way.error, rel=0.05)


def test_a_sketch_is_for_products_of_two_different_tensors():
    way, value = ways.get("sketch"), torch.ones(64, 64, device="meta")
    square = OperationInfo(
        1, "aten.mm.default", Phase.BACKWARD, (0,),
        signature=signature_of(torch.ops.aten.mm.default, (value, value)),
    )  # fmt: skip
    assert way.estimate(info_of(value), PRODUCER, (), (square,)) is None
    assert estimate(way, value) is not None


# Indices ------------------------------------------------------------------------------------------

WINDOWS = [
    (2, (2, 3, 10, 12), {"kernel_size": 2}),
    (2, (2, 3, 11, 13), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (2, (1, 2, 16, 15), {"kernel_size": (3, 2), "stride": (1, 2), "dilation": (2, 3)}),
    (2, (1, 1, 40, 40), {"kernel_size": 16, "stride": 1, "padding": 8}),
    (3, (2, 2, 7, 9, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
]


@pytest.mark.parametrize(("num_dims", "shape", "window"), WINDOWS)
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
def test_a_poolings_indices_come_back(num_dims, shape, window, last):
    value = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if last:
        layout = torch.channels_last if num_dims == 2 else torch.channels_last_3d
        value = value.to(memory_format=layout)
    pool = getattr(torch.ops.aten, f"max_pool{num_dims}d_with_indices").default
    full = {"kernel_size": 1, "stride": [], "padding": 0, "dilation": 1} | window
    args = [[each] if isinstance(each, int) else list(each) for each in full.values()]
    _, indices = pool(value, *args)
    producer = OperationInfo(
        0, str(pool), Phase.FORWARD, writes=(5, 0), signature=signature_of(pool, (value, *args))
    )
    way = ways.get("offsets")
    saving = way.estimate(info_of(indices), producer)
    bits = 4 if math.prod(_pair(window["kernel_size"], num_dims)) <= 16 else 8
    assert saving.held_bytes == -(-indices.numel() * bits // 8)
    held = way.put(indices, *saving.about)
    assert held.untyped_storage().nbytes() == saving.held_bytes
    layout = (list(indices.shape), list(indices.stride()), indices.dtype, *saving.about)
    back = way.get(held, *layout)
    assert torch.equal(back, indices)
    assert back.stride() == indices.stride()


def _pair(value, num_dims):
    return (value,) * num_dims if isinstance(value, int) else value


@pytest.mark.parametrize(
    ("name", "writes"),
    [
        ("aten.max.dim", (0, 7)),  # whole numbers, whose maxima these are
        ("aten.sort.default", (0, 7)),
        ("aten.max_pool2d_with_indices.default", (0, 7)),
        ("aten.max.other", (0,)),  # the larger of two whole numbers
        ("aten.maximum.default", (7, 0)),
    ],
)
def test_values_beside_indices_are_left_alone(name, writes):
    way, value = ways.get("offsets"), torch.zeros(100, dtype=torch.int64)
    signature = signature_of(name, (torch.empty(10, 10, device="meta"), 0))
    made = OperationInfo(0, name, Phase.FORWARD, writes=writes, signature=signature)
    assert way.estimate(info_of(value), made) is None


def test_indices_of_unknown_range_are_left_alone():
    way, value = ways.get("offsets"), torch.zeros(100, dtype=torch.int64)
    assert way.estimate(info_of(value), PRODUCER) is None
    wide = signature_of(torch.ops.aten.max.dim, (torch.empty(1 << 17, device="meta"), 0))
    made = OperationInfo(0, "aten.max.dim", Phase.FORWARD, writes=(7, 0), signature=wide)
    assert way.estimate(info_of(value), made) is None
