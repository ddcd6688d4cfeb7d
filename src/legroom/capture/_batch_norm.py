"""Batch norm in two: what is summed up over a channel, and what is done to each element.

In goes a batch norm as autograd knows it; out come `legroom::batch_statistics` and a multiplication
and addition, with the bits of PyTorch's own. See Note [Batch norm].
"""

# Note [Batch norm]
# 1. In two, what a batch norm returns is made again from its input in one pass that fuses with the
#    ReLU and the sum behind it; as one operation, only by summing up every channel again.
# 2. PyTorch adds up a channel number after number, each sum waiting for the one before. Several
#    channels side by side wait for each other's no longer: the same sums, in a third of the time.
# 3. What PyTorch computes in which type, and where it contracts, is not written down anywhere. So
#    all of it is tried on numbers first; if a bit differs, or there is no compiler, batch norm
#    stays whole. So it does where it is not contiguous: then its sums depend on the threads.

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from legroom.capture._kernels import compiled, in_parts
from legroom.capture._operations import FUNCTIONAL, LIBRARY
from legroom.capture._real import real_tensors

_SIDE_BY_SIDE = 8
_SOURCE = """\
template <int L> static void sum_up(
    long n, long channels, long width, long first, double eps,
    const float* value, float* mean, float* inverse, float* squares) {
  double sum[L];
  float middle[L];
  for (int l = 0; l < L; ++l) sum[l] = 0;
  for (long b = 0; b < n; ++b) {
    const float* p = value + (b * channels + first) * width;
    for (long i = 0; i < width; ++i)
      for (int l = 0; l < L; ++l) sum[l] += (double)p[l * width + i];
  }
  for (int l = 0; l < L; ++l) {
    middle[l] = (float)(sum[l] / (double)(n * width));
    sum[l] = 0;
  }
  for (long b = 0; b < n; ++b) {
    const float* p = value + (b * channels + first) * width;
    for (long i = 0; i < width; ++i)
      for (int l = 0; l < L; ++l) {
        const float off = p[l * width + i] - middle[l];
        sum[l] += (double)(off * off);
      }
  }
  for (int l = 0; l < L; ++l) {
    const float all = (float)sum[l];
    mean[first + l] = middle[l];
    squares[first + l] = all;
    inverse[first + l] = (float)(1 / __builtin_sqrt((double)(all / (float)(n * width)) + eps));
  }
}
extern "C" void run(long first, long last, long n, long width, void** p) {
  const float* value = (const float*)p[0];
  float *mean = (float*)p[1], *inverse = (float*)p[2], *squares = (float*)p[3];
  const long channels = *(const long*)p[4];
  const double eps = *(const double*)p[5];
  long c = first;
  for (; c + %d <= last; c += %d)
    sum_up<%d>(n, channels, width, c, eps, value, mean, inverse, squares);
  for (; c < last; ++c) sum_up<1>(n, channels, width, c, eps, value, mean, inverse, squares);
}
"""

Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""By channel: the mean, one over the standard deviation, the sum of the squares around the mean."""


@functools.cache
def _kernel() -> Any:
    return compiled(_SOURCE % ((_SIDE_BY_SIDE,) * 3))


def _batch_statistics(value: torch.Tensor, eps: float) -> Statistics:
    batch, channels = value.shape[:2]
    run = _kernel()
    assert run is not None, "bug in legroom: taken apart without a kernel"
    found = _empty_statistics(value, eps)
    width = value.numel() // (batch * channels)
    num_channels, epsilon = ctypes.c_long(channels), ctypes.c_double(eps)
    pointers = (ctypes.c_void_p * 6)(
        *(each.data_ptr() for each in (value, *found)),
        ctypes.addressof(num_channels),
        ctypes.addressof(epsilon),
    )

    def run_part(first: int, last: int) -> None:
        run(first, last, batch, width, pointers)

    in_parts(run_part, channels, value.numel())
    return found


def _empty_statistics(value: torch.Tensor, eps: float) -> Statistics:
    mean, inverse, squares = (value.new_empty(value.shape[1]) for _ in range(3))
    return mean, inverse, squares


def _statistics_for_inductor(value: torch.Tensor, eps: float) -> Statistics:
    dims = [place for place in range(value.dim()) if place != 1]
    variance, mean = torch.var_mean(value, dims, correction=0)
    count = value.numel() // value.shape[1]
    return mean, torch.rsqrt(variance + eps), variance * count


LIBRARY.define("batch_statistics(Tensor value, float eps) -> (Tensor, Tensor, Tensor)")
LIBRARY.impl("batch_statistics", _batch_statistics, "CPU")
LIBRARY.impl("batch_statistics", _empty_statistics, "Meta")
FUNCTIONAL[torch.ops.legroom.batch_statistics.default] = _statistics_for_inductor


# Taking it apart ---------------------------------------------------------------------------------


def _in_two(
    value: torch.Tensor,
    scale: tuple[torch.Tensor | None, torch.Tensor | None],
    running: Sequence[torch.Tensor],
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """What a batch norm in training returns; with running statistics also what becomes of them."""
    mean, inverse, squares = torch.ops.legroom.batch_statistics(value, eps)
    weight, bias = scale
    factor = inverse if weight is None else inverse * weight
    start = torch.zeros_like(mean) if bias is None else bias
    offset = torch.addcmul(start, mean, factor, value=-1)
    shape = [1, value.shape[1]] + [1] * (value.dim() - 2)
    normal = torch.addcmul(offset.view(shape), value, factor.view(shape))
    if not running:
        return normal, mean, inverse
    old_mean, old_variance = running
    variance = squares / (value.numel() // value.shape[1] - 1)
    new_mean = mean * momentum + old_mean * (1 - momentum)
    new_variance = torch.add(old_variance * (1 - momentum), variance, alpha=momentum)
    return normal, mean, inverse, new_mean, new_variance


def _take_apart(*given: Any) -> Any:
    """With running statistics among what is given, or without."""
    *tensors, is_training, momentum, eps = given
    if not is_training or not _is_known(tensors):
        return NotImplemented
    value, weight, bias, *running = tensors
    return _in_two(value, (weight, bias), running, momentum, eps)


def _is_known(given: Sequence[torch.Tensor | None]) -> bool:
    """Whether this batch norm is one that is written down here; see Note [Batch norm], rule 3."""
    tensors = [each for each in given if each is not None]
    value = tensors[0]
    return (
        all(each.device.type == "cpu" and each.is_contiguous() for each in tensors)
        and {each.dtype for each in tensors} == {torch.float32}
        and value.dim() > 2
        and value.shape[0] > 0
        and value.shape[1] > 1
        and value.numel() > value.shape[0] * value.shape[1]
        and _has_the_bits()
    )


@functools.cache
def _has_the_bits() -> bool:
    if _kernel() is None:
        return False
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return 3 * torch.randn(shape, generator=generator) + 1

    with real_tensors(), torch.no_grad():
        return all(
            _is_same(draw(*shape), draw(4, shape[1]), momentum)
            for shape in ((5, 19, 7, 9), (3, 33, 50), (2, 8, 3, 4, 5))
            for momentum in (0.1, 0.03, 0.5)
        )


def _is_same(value: torch.Tensor, by_channel: torch.Tensor, momentum: float) -> bool:
    weight, bias, running_mean, any_sign = by_channel
    running = (running_mean, any_sign.abs())
    for scale in ((weight, bias), (None, None)):
        mean, variance = (each.clone() for each in running)
        theirs = torch.native_batch_norm(
            value, scale[0], scale[1], mean, variance, True, momentum, 1e-5
        )
        ours = _in_two(value, scale, running, momentum, 1e-5)
        if not all(map(torch.equal, ours, (*theirs, mean, variance))):
            return False
    return True


BATCH_NORMS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._native_batch_norm_legit_functional.default: _take_apart,
    torch.ops.aten._native_batch_norm_legit.no_stats: _take_apart,
}
"""What AOTAutograd does in place of a batch norm."""
