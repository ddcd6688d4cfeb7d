"""What `legroom::fused` returns has the bits of the operations it stands for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legroom.capture import _fused
from legroom.capture._fused import FUSED, FUSIBLE, run_into, run_whole
from legroom.capture._program import Place, Step, write_program
from legroom.meter import PeakGauge

SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 1.0, 3e38)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COUNT = 64 * 40 + 37
aten = torch.ops.aten


def bits_of(value):
    flat = value.contiguous().view(-1)
    # A NaN is a NaN: which one depends on the order of a multiplication's operands.
    flat = torch.where(flat.isnan(), torch.full_like(flat, float("nan")), flat)
    return flat.view(torch.uint8) if flat.numel() else flat


def numbers(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    drawn = torch.randn(shape, generator=generator) * 2
    flat = drawn.view(-1)
    chosen = torch.rand(flat.shape, generator=generator) < 0.3
    special = torch.tensor(SPECIAL)
    drawn_special = special[torch.randint(len(SPECIAL), flat.shape, generator=generator)]
    flat.copy_(torch.where(chosen, drawn_special, flat))
    return drawn.to(dtype)


def arguments_for(operation, dtype):
    """Operands of an operation, by its schema; numbers where it wants numbers."""
    name, args = str(operation), []
    is_logical = any(word in name for word in ("bitwise", "logical"))
    for place, argument in enumerate(operation._schema.arguments):
        kind = str(argument.type)
        if argument.kwarg_only:
            break
        if argument.name in ("mask", "condition") or (is_logical and kind == "Tensor"):
            args.append(numbers(COUNT, torch.bool, place))
        elif kind == "Tensor":
            args.append(numbers(COUNT, dtype, place))
        elif argument.name == "alpha":
            break
        else:
            args.append(True if is_logical else 0.75)
    return args


def each_operation():
    for operation in FUSIBLE:
        for dtype in DTYPES:
            kwargs = {"dtype": dtype} if operation is aten._to_copy.default else {}
            yield operation, arguments_for(operation, dtype), kwargs


def test_the_result_does_not_depend_on_where_an_element_lies():
    wrong = set()
    for operation, args, kwargs in each_operation():
        whole = operation(*args, **kwargs)
        for start in (1, 3, 8, 77):
            parts = [arg[start:] if isinstance(arg, torch.Tensor) else arg for arg in args]
            if not torch.equal(bits_of(operation(*parts, **kwargs)), bits_of(whole[start:])):
                wrong.add((str(operation), args[0].dtype))
    assert not wrong


def test_it_can_write_over_what_it_reads():
    wrong = set()
    for operation, args, kwargs in each_operation():
        expected = operation(*args, **kwargs)
        for place, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and arg.dtype is expected.dtype:
                out = arg.clone()
                over = [out if number == place else each for number, each in enumerate(args)]
                FUSIBLE[operation].write(*over, out=out, **kwargs)
                if not torch.equal(bits_of(out), bits_of(expected)):
                    wrong.add((str(operation), arg.dtype))
    assert not wrong


BINARY = [aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.div.Tensor]
UNARY = [aten.neg.default, aten.relu.default, aten.tanh.default, aten.exp.default]
FULL = (3, 5, 4)


@st.composite
def calls(draw):
    """A program of random operations, tensors of fitting shapes, and how they lie in memory."""
    is_broadcast = draw(st.booleans())
    # One of these is broadcast along rows, or one along columns: what one cut can serve.
    choices = [[(5, 4), (1, 5, 4), (3, 1, 1)], [(4,), (3, 5, 1), (1, 1, 4)]]
    pool = [FULL, (), *draw(st.sampled_from(choices))] if is_broadcast else [FULL, ()]
    order = (0, 1, 2) if is_broadcast else draw(st.permutations(range(3)))
    shapes = [FULL, *draw(st.lists(st.sampled_from(pool), max_size=4))]
    dtypes = [draw(st.sampled_from((torch.float32, torch.bfloat16))) for _ in shapes]
    tensors = []
    for seed, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        value = numbers(shape, dtype, seed)
        if shape == FULL:
            inverse = [order.index(each) for each in range(3)]
            value = value.permute(order).contiguous().permute(inverse)
        tensors.append(value)
    values, steps = list(tensors), []
    for _ in range(draw(st.integers(2, 9))):
        places = [place for place, value in enumerate(values) if value.shape == FULL]
        first = draw(st.sampled_from(places))
        if draw(st.booleans()):
            operation, args = draw(st.sampled_from(UNARY)), (Place(first),)
        else:
            other = draw(st.one_of(st.integers(0, len(values) - 1).map(Place), st.floats(-2, 2)))
            pair = (Place(first), other)
            is_turned = isinstance(other, Place) and draw(st.booleans())
            operation = draw(st.sampled_from(BINARY))
            args = pair[::-1] if is_turned else pair
        read = [values[each.number] if isinstance(each, Place) else each for each in args]
        values.append(operation(*read))
        steps.append(Step(operation, args, {}, values[-1].dtype))
    return tensors, write_program(steps)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(call=calls(), block=st.sampled_from([1, 3, 7, 16, 1000]))
def test_a_program_has_the_bits_of_its_operations(call, block):
    tensors, program = call
    before = [each.clone() for each in tensors]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fused, "_BLOCK", block)
        patch.setattr(_fused, "kernel_of", lambda *args: None)
        fused = FUSED(tensors, program)
    whole = run_whole(tensors, program)
    assert (fused.shape, fused.dtype, fused.stride()) == (whole.shape, whole.dtype, whole.stride())
    assert torch.equal(bits_of(fused), bits_of(whole))
    assert all(torch.equal(bits_of(a), bits_of(b)) for a, b in zip(tensors, before, strict=True))
    meta = FUSED([each.to("meta") for each in tensors], program)
    assert (meta.shape, meta.dtype, meta.stride()) == (whole.shape, whole.dtype, whole.stride())


def test_nothing_in_between_fills_memory():
    count = 8 * _fused._BLOCK
    steps = [Step(aten.mul.Tensor, (Place(0), 2.0), {}, torch.float32)]
    steps += [Step(aten.add.Tensor, (Place(n), Place(0)), {}, torch.float32) for n in range(1, 9)]
    program = write_program(steps)
    value = torch.randn(count)
    peaks = []
    for run in (lambda: torch.empty(count), lambda: FUSED([value], program)):
        gauge = PeakGauge(torch.device("cpu"))
        assert gauge.start()
        run()
        peaks.append(gauge.stop().peak_bytes)
    assert peaks[1] - peaks[0] <= 4 * _fused._BLOCK + 64  # and a few numbers


def test_empty_tensors_have_empty_results():
    program = write_program([
        Step(aten.neg.default, (Place(0),), {}, torch.float32),
        Step(aten.exp.default, (Place(1),), {}, torch.float32),
    ])  # fmt: skip
    assert FUSED([torch.empty(0, 4)], program).shape == (0, 4)


@pytest.mark.parametrize("block", [1 << 17, 64])
def test_operands_that_are_all_broadcast_make_a_whole(block, monkeypatch):
    monkeypatch.setattr(_fused, "_BLOCK", block)
    monkeypatch.setattr(_fused, "_SMALLEST_BLOCK", min(block, 1 << 12))
    column, row = numbers((3, 7, 1, 16), torch.float32, 1), numbers((3, 1, 5, 16), torch.float32, 2)
    bias = numbers((16,), torch.float32, 3)
    program = write_program(
        [
            Step(aten.add.Tensor, (Place(0), Place(1)), {}, torch.float32),
            Step(aten.add.Tensor, (Place(3), Place(2)), {}, torch.float32),
            Step(aten.tanh.default, (Place(4),), {}, torch.float32),
        ]
    )
    given = [column, row, bias]
    made = FUSED(given, program)
    assert made.shape == (3, 7, 5, 16)
    assert made.is_contiguous()
    assert torch.equal(bits_of(made), bits_of(torch.tanh(column + row + bias)))
    like = FUSED([each.to("meta") for each in given], program)
    assert (like.shape, like.stride()) == (made.shape, made.stride())


def test_shapes_that_were_seen_are_not_broadcast_again(monkeypatch):
    program = write_program([Step(aten.add.Tensor, (Place(0), Place(1)), {}, torch.float32)])
    counted = []
    original = torch.broadcast_shapes
    monkeypatch.setattr(
        torch, "broadcast_shapes", lambda *shapes: counted.append(shapes) or original(*shapes)
    )
    _fused._broadcast.cache_clear()
    for _ in range(3):
        FUSED([torch.ones(5, 7), torch.ones(1, 7)], program)
    assert len(counted) == 1


@pytest.mark.parametrize(
    ("operand", "named"),
    [
        (torch.ones(6, 4, dtype=torch.float64), "float64"),
        (torch.ones(1, 4), r"operand that is torch.float32 \(1, 4\)"),
        (torch.ones(4, 6).t(), r"strides \(1, 6\)"),
    ],
)
def test_nothing_else_than_what_was_captured_is_written_into(operand, named):
    program = write_program([Step(aten.add.Tensor, (Place(0), Place(1)), {}, torch.float32)])
    value = torch.arange(24.0).view(6, 4)
    with pytest.raises(AssertionError, match=f"bug in legroom: .*{named}"):
        run_into([value, operand], program, 1)
    fitting = torch.ones(6, 4)
    written = run_into([value, fitting], program, 1)
    assert written.data_ptr() == fitting.data_ptr()
    assert torch.equal(written, value + 1)
