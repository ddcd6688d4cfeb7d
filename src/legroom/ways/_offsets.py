"""Hold indices with as few bits as they need: PyTorch keeps 64 for each.

A pooling's index is a place in its input, but which window it lies in is known: what is left is the
place within the window. Other indices are below a number that the operation's arguments tell.
"""

# Note [Offsets]
# 1. What the operations are told (`about`): how many bits a code has, 4, 8 or 16; then, for each
#    dimension of a window: the input's size, the kernel, stride, padding and dilation. Nothing
#    after the bits means that codes are the indices themselves.
# 2. Four bits: the first half of the codes lies in the low halves of the bytes, the second in the
#    high ones.
# 3. Encoding goes by outermost rows (images), so that nothing of the indices' size is needed.

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch.nn.functional import pad

from legroom.capture import OperationInfo, TensorInfo, in_memory_order
from legroom.ways._encoding import AbstractEncoding, define
from legroom.ways._way import Exactness

_PER_DIMENSION = 5
_POOLINGS = {
    "aten.max_pool2d_with_indices.default": 2,
    "aten.max_pool3d_with_indices.default": 3,
}
_ALONG_ONE = ("aten.max.dim", "aten.min.dim", "aten.median.dim", "aten.sort.default",
              "aten.sort.stable", "aten.topk.default", "aten.kthvalue.default",
              "aten.cummax.default", "aten.cummin.default")  # fmt: skip
_INDEX_ALONE = ("aten.argmax.default", "aten.argmin.default")
_IN_A_PLANE = {
    "aten.adaptive_max_pool2d.default": 2,
    "aten.adaptive_max_pool3d.default": 3,
    "aten.fractional_max_pool2d.default": 2,
    "aten.fractional_max_pool3d.default": 3,
}
_CODE = {4: torch.uint8, 8: torch.uint8, 16: torch.int16}


def _windows(about: Sequence[int]) -> list[Sequence[int]]:
    """Size, kernel, stride, padding and dilation of each dimension."""
    return [about[first : first + _PER_DIMENSION] for first in range(1, len(about), _PER_DIMENSION)]


def _first_places(shape: Sequence[int], about: Sequence[int], device: Any) -> list[torch.Tensor]:
    """For each dimension, where each window begins, as a tensor that broadcasts over the shape."""
    found = []
    windows = _windows(about)
    for number, (_, _, stride, padding, _) in enumerate(windows):
        dim = len(shape) - len(windows) + number
        places = torch.arange(shape[dim], device=device) * stride - padding
        found.append(places.view(-1, *[1] * (len(shape) - dim - 1)))
    return found


def _codes(value: torch.Tensor, about: Sequence[int]) -> torch.Tensor:
    """Codes of indices, in their shape."""
    if not _windows(about):
        return value
    code, rest = torch.zeros_like(value), value
    firsts = _first_places(value.shape, about, value.device)
    weight = 1
    for (size, kernel, _, _, dilation), first in zip(
        reversed(_windows(about)), reversed(firsts), strict=True
    ):
        within = torch.div(rest % size - first, dilation, rounding_mode="floor")
        code = code + within * weight
        rest = torch.div(rest, size, rounding_mode="floor")
        weight *= kernel
    return code


def _indices(codes: torch.Tensor, shape: Sequence[int], about: Sequence[int]) -> torch.Tensor:
    """Indices again, 64 bits each."""
    codes = codes.to(torch.int64)
    if about[0] == 16:
        codes = codes & 0xFFFF
    if not _windows(about):
        return codes
    index = torch.zeros_like(codes)
    firsts = _first_places(shape, about, codes.device)
    weight = 1
    for (size, kernel, _, _, dilation), first in zip(
        reversed(_windows(about)), reversed(firsts), strict=True
    ):
        within = codes % kernel
        codes = torch.div(codes, kernel, rounding_mode="floor")
        index = index + (first + within * dilation) * weight
        weight *= size
    return index


def _packed(codes: torch.Tensor, num_bits: int) -> torch.Tensor:
    if num_bits != 4:
        return codes.view(torch.uint8)
    halves = pad(codes, (0, codes.numel() % 2)).view(2, -1)
    return halves[0] | (halves[1] << 4)


def _unpacked(held: torch.Tensor, count: int, num_bits: int) -> torch.Tensor:
    if num_bits != 4:
        return held.view(_CODE[num_bits])
    return torch.cat([held & 15, held >> 4])[:count]


def _put(value: torch.Tensor, about: Sequence[int]) -> torch.Tensor:
    codes = torch.empty_like(value, dtype=_CODE[about[0]])
    if value.dim():
        for row, out in zip(value.split(1), codes.split(1), strict=True):  # type: ignore[no-untyped-call]
            out.copy_(_codes(row, about))
    else:
        codes.copy_(_codes(value, about))
    return _packed(in_memory_order(codes), about[0])


def _get(
    held: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    about: Sequence[int],
) -> torch.Tensor:
    codes = _unpacked(held, math.prod(size), about[0]).as_strided(size, stride)
    index = torch.empty_strided(size, stride, dtype=dtype, device=held.device)
    if not size:
        return index.copy_(_indices(codes, size, about))
    for row, out in zip(codes.split(1), index.split(1), strict=True):  # type: ignore[no-untyped-call]
        out.copy_(_indices(row, row.shape, about))
    return index


@final
class Offsets(AbstractEncoding):
    """Indices as places within a window, or just with fewer bits; see Note [Offsets]."""

    name = "offsets"
    summary = "hold indices (of poolings, of maxima) with 4, 8 or 16 bits instead of 64"
    exactness = Exactness.BITWISE
    origin = "Gist (pooling indices)"
    costs = "4 to 16 times fewer bytes; some passes over them in forward and in backward"
    when = (
        "For max poolings, and for maxima, sorts and the like along a dimension: PyTorch "
        "keeps 64 bits for each index."
    )
    not_with = (
        "Indices that the program hands in (of lookups and gathers), and those that need more"
        " than 16 bits."
    )
    is_flat = False
    put, get = define(
        "offsets",
        _put,
        _get,
        about=", int[] about",
        num_held=lambda value, about: -(-value.numel() * about[0] // 8),
    )

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to indices."""
        is_index = tensor.dtype == "int64" and tensor.num_bytes
        return -(-math.prod(tensor.shape) * about[0][0] // 8) if is_index else None

    @classmethod
    def about(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[Any, ...] | None:
        """From the arguments of what made them; values beside indices may be as large as any."""
        name, shape = producer.name, _shape_of_first(producer)
        place = 0 if name in _INDEX_ALONE else 1
        if shape is None or producer.writes[place : place + 1] != (tensor.index,):
            return None
        if name in _POOLINGS:
            return _of_window(producer, shape, _POOLINGS[name])
        if name in _IN_A_PLANE:
            return _below(math.prod(shape[-_IN_A_PLANE[name] :]))
        if name in (*_ALONG_ONE, *_INDEX_ALONE):
            # Where no dimension is named, the index counts all elements, and is one number only.
            return _below(max(shape, default=1)) if math.prod(tensor.shape) > 1 else None
        return None


def _shape_of_first(producer: OperationInfo) -> list[int] | None:
    """Shape of an operation's first argument; None where that is not known."""
    if not producer.signature:
        return None
    _, args, _ = json.loads(producer.signature)
    first = args[0] if args else None
    return first["t"][0] if isinstance(first, dict) and "t" in first else None


def _below(end: int) -> tuple[Any, ...] | None:
    num_bits = next((bits for bits in (4, 8, 16) if end <= 1 << bits), None)
    return None if num_bits is None else ((num_bits,),)


def _of_window(producer: OperationInfo, shape: list[int], num_dims: int) -> tuple[Any, ...] | None:
    _, args, _ = json.loads(producer.signature)
    given = [args[place] if len(args) > place else None for place in range(1, 5)]
    kernel = _each(given[0], num_dims, 1)
    stride = _each(given[1], num_dims, 1) if given[1] else kernel
    padding, dilation = _each(given[2], num_dims, 0), _each(given[3], num_dims, 1)
    bits = _below(math.prod(kernel))
    if bits is None:
        return None
    about = list(bits[0])
    for number, size in enumerate(shape[-num_dims:]):
        about += [size, kernel[number], stride[number], padding[number], dilation[number]]
    return (tuple(about),)


def _each(value: Any, num_dims: int, default: int) -> list[int]:
    """A number for each dimension; PyTorch takes one for all."""
    values = [value] if isinstance(value, int) else list(value or [default])
    return values * num_dims if len(values) == 1 else values
