"""Compiled kernels have the bits of the operations they stand for, or there is none."""

import itertools
import shutil

import pytest
import torch

from legroom.capture import _fused, _kernels
from legroom.capture._fused import FUSED, FUSIBLE, run_whole
from legroom.capture._program import Place, Step, write_program
from tests.unit.capture.test_fused import arguments_for, aten, bits_of, numbers

pytestmark = pytest.mark.skipif(
    shutil.which("c++") is None, reason="no C++ compiler on this machine"
)
COMPILED_TYPES = (torch.float32, torch.float64)


@pytest.fixture
def only_kernels(monkeypatch):
    """Fails where a program would run block by block."""

    def fail(*args):
        raise AssertionError("not compiled")

    monkeypatch.setattr(_fused, "_run_in_blocks", fail)


def program_of(operation, args, **kwargs):
    """The tensors among the arguments, the program of that one operation, and its result."""
    places, tensors = [], []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            places.append(Place(len(tensors)))
            tensors.append(arg)
        else:
            places.append(arg)
    result = operation(*args, **kwargs)
    steps = [Step(operation, tuple(places), kwargs, result.dtype)]
    return tensors, write_program(steps), result


def test_every_form_has_the_bits_of_its_operation(only_kernels):
    wrong = []
    for operation in (*_kernels._FORMS, *_kernels._CONTRACTED):
        assert operation in FUSIBLE
        for dtype in COMPILED_TYPES:
            tensors, program, expected = program_of(operation, arguments_for(operation, dtype))
            if not torch.equal(bits_of(FUSED(tensors, program)), bits_of(expected)):
                wrong.append((str(operation), dtype))
    assert not wrong


def test_small_powers_have_the_bits_of_pow(only_kernels):
    value = numbers((1000,), torch.float32, 0)
    for exponent in (2.0, 3.0, 2, 3):
        tensors, program, expected = program_of(aten.pow.Tensor_Scalar, [value, exponent])
        assert torch.equal(bits_of(FUSED(tensors, program)), bits_of(expected))


def test_types_are_converted_alike(only_kernels):
    types = (torch.float32, torch.float64, torch.bool)
    for source, target in itertools.product(types, types):
        value = numbers((1000,), source, 0)
        tensors, program, expected = program_of(aten._to_copy.default, [value], dtype=target)
        assert torch.equal(bits_of(FUSED(tensors, program)), bits_of(expected))


@pytest.mark.parametrize("threads", [1, 3])
def test_every_way_to_broadcast(only_kernels, threads):
    shape = (6, 50, 1000)
    given = [
        numbers(shape, torch.float32, 0),
        numbers((1000,), torch.float32, 1),
        numbers((6, 50, 1), torch.float32, 2),
        numbers((), torch.float32, 3),
    ]
    steps = [
        Step(aten.mul.Tensor, (Place(0), Place(1)), {}, torch.float32),
        Step(aten.add.Tensor, (Place(4), Place(2)), {}, torch.float32),
        Step(aten.sub.Tensor, (Place(3), Place(5)), {}, torch.float32),
        Step(aten.div.Tensor, (Place(6), 3.7), {}, torch.float32),
    ]
    program = write_program(steps)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = FUSED(given, program)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(bits_of(made), bits_of(run_whole(given, program)))


def test_channels_last_is_one_loop(only_kernels):
    value = numbers((4, 8, 9, 10), torch.float32, 0).to(memory_format=torch.channels_last)
    program = write_program([
        Step(aten.neg.default, (Place(0),), {}, torch.float32),
        Step(aten.mul.Tensor, (Place(1), Place(0)), {}, torch.float32),
    ])  # fmt: skip
    made = FUSED([value], program)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(bits_of(made), bits_of(run_whole([value], program)))


@pytest.mark.parametrize(
    ("operation", "args", "dtype"),
    [
        (aten.tanh.default, (Place(0),), torch.float32),  # not defined to the last bit
        (aten.pow.Tensor_Scalar, (Place(0), 2.5), torch.float32),
        (aten.neg.default, (Place(0),), torch.bfloat16),
        (aten.add.Tensor, (Place(0), Place(0)), torch.int64),
    ],
)
def test_what_is_not_written_down_runs_block_by_block(operation, args, dtype):
    value = torch.ones(100, dtype=dtype)
    program = write_program([Step(operation, args, {}, dtype)])
    assert _kernels.kernel_of(program, [value, value]) is None
    assert torch.equal(FUSED([value], program), run_whole([value], program))


def test_a_compiler_that_fails_makes_nothing_wrong(monkeypatch, tmp_path):
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken && exit 0\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("LEGROOM_CACHE_DIR", str(tmp_path / "cache"))
    for function in (_kernels._find_compiler, _kernels._kernel):
        function.cache_clear()
    try:
        value = torch.randn(100)
        program = write_program([Step(aten.neg.default, (Place(0),), {}, torch.float32)])
        assert _kernels.kernel_of(program, [value, value]) is None
        assert torch.equal(FUSED([value], program), -value)
        assert not list((tmp_path / "cache" / "kernels").iterdir())
    finally:
        for function in (_kernels._find_compiler, _kernels._kernel):
            function.cache_clear()


def test_kernels_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("LEGROOM_KERNELS", "off")
    _kernels._find_compiler.cache_clear()
    try:
        assert _kernels.kernel_compiler() is None
    finally:
        _kernels._find_compiler.cache_clear()
