"""Hold on which side of a bound each element lies, where a gradient asks for nothing else.

A ReLU's gradient is the incoming one where the output is above zero. What is given back is a
stand-in: one number where the element was within the bounds, another where it was not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from legroom.capture import OperationInfo, TensorInfo, in_memory_order, tensors_of
from legroom.ways._bits import num_packed, pack, unpack
from legroom.ways._encoding import AbstractEncoding, define
from legroom.ways._way import Exactness

_BLOCK = 1 << 18


def _is_outside(value: torch.Tensor, lower: float, upper: float, nan_is_inside: bool) -> Any:
    """As PyTorch's gradients ask; they differ in what becomes of what is not a number."""
    if nan_is_inside:
        return (value <= lower) if upper == math.inf else (value <= lower) | (value >= upper)
    return ~(value > lower) if upper == math.inf else ~((value > lower) & (value < upper))


def _put(value: torch.Tensor, lower: float, upper: float, nan_is_inside: bool) -> torch.Tensor:
    flat = in_memory_order(value)
    held = torch.empty(num_packed(flat.numel()), dtype=torch.uint8, device=flat.device)
    for first in range(0, flat.numel(), _BLOCK):
        outside = _is_outside(flat[first : first + _BLOCK], lower, upper, nan_is_inside)
        bits = pack(outside.view(torch.uint8))
        held[first // 8 : first // 8 + bits.numel()] = bits
    return held


def _stand_ins(lower: float, upper: float) -> tuple[float, float]:
    """Something within the bounds, and something that is not."""
    return (lower + 1.0 if upper == math.inf else (lower + upper) / 2), lower


def _get(
    held: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    lower: float,
    upper: float,
    nan_is_inside: bool,
) -> torch.Tensor:
    inside, outside = _stand_ins(lower, upper)
    flat = torch.empty(math.prod(size), dtype=dtype, device=held.device)
    for first in range(0, flat.numel(), _BLOCK):
        out = flat[first : first + _BLOCK]
        bits = unpack(held[first // 8 : (first + _BLOCK) // 8])
        out.copy_(bits[: out.numel()]).mul_(outside - inside).add_(inside)
    return flat.as_strided(size, stride)


def _threshold(args: list[Any]) -> tuple[float, float, bool]:
    """`threshold_backward(grad, self, threshold)`."""
    return float(args[2]), math.inf, True


def _leaky_relu(args: list[Any]) -> tuple[float, float, bool]:
    """`leaky_relu_backward(grad, self, negative_slope, self_is_result)`."""
    return 0.0, math.inf, False


def _hardsigmoid(args: list[Any]) -> tuple[float, float, bool]:
    """`hardsigmoid_backward(grad, self)`."""
    return -3.0, 3.0, False


# Not hardtanh: what becomes of what is not a number depends on where in memory it lies.
_BOUNDS: dict[str, Callable[[list[Any]], tuple[float, float, bool]]] = {
    "aten.threshold_backward": _threshold,
    "aten.leaky_relu_backward": _leaky_relu,
    "aten.hardsigmoid_backward": _hardsigmoid,
}


@final
class Sign(AbstractEncoding):
    """A bit for each element of what a ReLU, or one of its family, keeps."""

    name = "sign"
    summary = "hold a bit for each element of what a ReLU keeps, where nothing else reads it"
    exactness = Exactness.BITWISE
    origin = "Gist (binarize)"
    costs = "a thirty-second of the bytes of float32; a pass in forward, another in backward"
    when = (
        "For a ReLU whose result goes into a pooling, together with `shape-only`, or is added to "
        "something, and for what goes into a leaky ReLU or a hard sigmoid."
    )
    not_with = (
        "Tensors that another gradient is handed: that of a linear layer or a convolution behind "
        "the ReLU, of a pooling without `shape-only`, or of operations that are fused with it. "
        "Nothing can be made again from what comes back."
    )
    readers_only = True
    put, get = define(
        "sign",
        _put,
        _get,
        about=", float lower, float upper, bool nan_is_inside",
        num_held=lambda value, *about: num_packed(value.numel()),
    )

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to floating-point numbers."""
        dtype: Any = getattr(torch, tensor.dtype)
        is_number = dtype.is_floating_point and tensor.num_bytes > 0
        return num_packed(tensor.num_bytes // dtype.itemsize) if is_number else None

    @classmethod
    def about(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[Any, ...] | None:
        """The bounds, where all readers have the same."""
        found = {_bounds(tensor, reader) for reader in readers}
        return found.pop() if len(found) == 1 else None


def _bounds(tensor: TensorInfo, reader: OperationInfo) -> tuple[float, float, bool] | None:
    of_arguments = _BOUNDS.get(reader.name.rpartition(".")[0])
    if of_arguments is None or not reader.signature:
        return None
    if len(tensors_of(reader.signature)) != 2 or reader.reads[1:] != (tensor.index,):
        return None  # it is the gradient, or something else besides
    _, args, _ = json.loads(reader.signature)
    return of_arguments(args)
