"""A batch norm in two has every bit of PyTorch's own, or stays whole."""

import shutil

import pytest
import torch
from torch import nn

from legroom.capture import _batch_norm, _kernels
from legroom.capture._batch_norm import BATCH_NORMS
from tests.unit.capture.test_step_capture import capture_of

aten = torch.ops.aten
WITH = aten._native_batch_norm_legit_functional.default
WITHOUT = aten._native_batch_norm_legit.no_stats
SPECIAL = (float("inf"), float("nan"), 1e-40, -0.0, 3e38)

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None, reason="no C++ compiler on this machine"
)


def arguments(*shape, momentum=0.1, is_training=True):
    value = 5 * torch.randn(shape) - 2
    weight, bias, mean = torch.randn(3, shape[1])
    return value, weight, bias, mean, torch.rand(shape[1]), is_training, momentum, 1e-5


def same_bits(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(mine.nan_to_num(7.0), their.nan_to_num(7.0))
        and torch.equal(mine.isnan(), their.isnan())
        and mine.stride() == their.stride()
        for mine, their in zip(ours, theirs, strict=True)
    )


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 2, 2), (16, 33, 5, 7), (1, 9, 40), (3, 8, 2, 3, 4)])
@pytest.mark.parametrize("momentum", [0.0, 0.037])
def test_all_that_it_returns_has_the_bits_of_pytorch(shape, momentum):
    given = arguments(*shape, momentum=momentum)
    assert same_bits(BATCH_NORMS[WITH](*given), WITH(*given))
    value, weight, bias, _, _, *rest = given
    for scale in ((weight, bias), (None, None), (weight, None)):
        theirs = WITHOUT(value, *scale, *rest)
        assert same_bits(BATCH_NORMS[WITHOUT](value, *scale, *rest), theirs)


@needs_compiler
@pytest.mark.parametrize("special", SPECIAL)
def test_special_values_stay_what_they_are(special):
    given = arguments(4, 10, 6, 6)
    given[0][1, 3, 2, 2] = special
    given[1][2] = special
    assert same_bits(BATCH_NORMS[WITH](*given), WITH(*given))


@needs_compiler
def test_threads_change_no_bit():
    given = arguments(8, 40, 30, 30)
    expected = WITH(*given)
    torch.set_num_threads(3)
    assert same_bits(BATCH_NORMS[WITH](*given), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.to(memory_format=torch.channels_last),
        lambda value: value[:, ::2],
        lambda value: value[:, :, 0, 0],
        lambda value: value[..., :1, :1].contiguous(),
        lambda value: value.double(),
        lambda value: value.bfloat16(),
        lambda value: value[:0],
    ],
)
def test_what_pytorch_sums_up_otherwise_stays_whole(change):
    value = change(arguments(4, 10, 6, 6)[0])
    assert BATCH_NORMS[WITHOUT](value, None, None, True, 0.1, 1e-5) is NotImplemented


def test_in_evaluation_it_stays_whole():
    assert BATCH_NORMS[WITH](*arguments(4, 10, 6, 6, is_training=False)) is NotImplemented


def test_without_a_compiler_it_stays_whole(monkeypatch):
    monkeypatch.setattr(_kernels, "_find_compiler", lambda: None)
    _batch_norm._kernel.cache_clear()
    _batch_norm._has_the_bits.cache_clear()
    try:
        assert BATCH_NORMS[WITH](*arguments(4, 10, 6, 6)) is NotImplemented
    finally:
        _batch_norm._kernel.cache_clear()
        _batch_norm._has_the_bits.cache_clear()


def test_other_bits_than_pytorch_s_are_noticed(monkeypatch):
    """A PyTorch that computes otherwise: nothing is taken apart."""
    other = _batch_norm._SOURCE.replace("(double)(off * off)", "(double)off * (double)off")
    assert other != _batch_norm._SOURCE
    monkeypatch.setattr(_batch_norm, "_SOURCE", other)
    _batch_norm._kernel.cache_clear()
    _batch_norm._has_the_bits.cache_clear()
    try:
        assert not _batch_norm._has_the_bits()
    finally:
        _batch_norm._kernel.cache_clear()
        _batch_norm._has_the_bits.cache_clear()


@needs_compiler
def test_norm_and_relu_are_one_pass():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3))
    graph = capture_of(net, x=torch.randn(4, 3, 24, 24)).planned
    names = [op.name for op in graph.operations]
    assert "legroom.batch_statistics.default" in names
    assert "aten.relu.default" not in names
    assert not any("batch_norm_legit" in name for name in names)
    shape = (4, 8, 22, 22)
    forward = [op for op in graph.operations if op.is_forward and op.writes]
    made = [op.name for op in forward if graph.tensors[op.writes[0]].shape == shape]
    assert made == ["aten.convolution.default", "legroom.fused.default"]
