"""Hold a tensor with fewer bits for each number, rounded after its last use in forward.

Forward computes with all of them; only backward sees what was rounded. See Note [Fewer bits].
"""

# Note [Fewer bits]
# 1. Numbers beyond the largest that the narrower type has become that one: an infinity would make
#    every gradient after it infinite or not a number. Infinities themselves stay what they are;
#    in e4m3, which has none, they are not a number.
# 2. Encoding goes block by block, so that nothing of the tensor's own size is needed meanwhile.
# 3. Ten bits are a sign, five of exponent and four of fraction, the first ten of a float16. Eight
#    of each number lie in one part, two in another, four numbers to a byte.

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch.nn.functional import pad

from legroom.capture import TensorInfo, in_memory_order
from legroom.ways._encoding import AbstractEncoding, define, within
from legroom.ways._way import Exactness

_BLOCK = 1 << 16
_LARGEST_OF_TEN_BITS = 63488.0  # (2 - 1/16) * 2**15


def _widened(
    held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return held.to(dtype).as_strided(size, stride)


def _define(name: str, kept: torch.dtype) -> tuple[Any, Any]:
    """The two operations for a type of PyTorch's, block by block."""
    narrow = functools.partial(
        within,
        largest=torch.finfo(kept).max,
        infinity=math.nan if kept is torch.float8_e4m3fn else None,
    )

    def put(value: torch.Tensor) -> torch.Tensor:
        flat = in_memory_order(value)
        held = torch.empty(flat.shape, dtype=kept, device=flat.device)
        for block, out in zip(flat.split(_BLOCK), held.split(_BLOCK), strict=True):  # type: ignore[no-untyped-call]
            out.copy_(narrow(block))
        return held

    return define(name, put, _widened, num_held=torch.numel, held_dtype=kept)


def _put_ten_bits(value: torch.Tensor) -> torch.Tensor:
    flat = in_memory_order(value)
    count = flat.numel()
    held = torch.empty(_num_bytes(count, 10), dtype=torch.uint8, device=flat.device)
    for start in range(0, count, _BLOCK):
        codes = _ten_bits(flat[start : start + _BLOCK])
        held[start : start + codes.numel()] = codes & 0xFF
        packed = _two_bits_packed(codes >> 8)
        first = count + start // 4
        held[first : first + packed.numel()] = packed
    return held


def _get_ten_bits(
    held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    count = math.prod(size)
    low, packed = held[:count].to(torch.int32), held[count:].to(torch.int32)
    places = torch.arange(0, 8, 2, dtype=torch.int32, device=held.device)
    high = ((packed.unsqueeze(1) >> places) & 3).view(-1)[:count]
    halves = ((low | (high << 8)) << 6).to(torch.int16).view(torch.float16)
    return halves.to(dtype).as_strided(size, stride)


def _ten_bits(value: torch.Tensor) -> torch.Tensor:
    """The first ten bits of each number as a float16, rounded to the nearest, to even in a tie."""
    halves = within(value, _LARGEST_OF_TEN_BITS).to(torch.float16)
    bits = halves.view(torch.int16).to(torch.int32) & 0xFFFF
    rounded = (bits + 31 + ((bits >> 6) & 1)) >> 6
    return torch.where(halves.isfinite(), rounded, bits >> 6)


def _two_bits_packed(codes: torch.Tensor) -> torch.Tensor:
    rows = pad(codes, (0, -codes.numel() % 4)).view(-1, 4)
    places = torch.arange(0, 8, 2, dtype=torch.int32, device=codes.device)
    return (rows << places).sum(1).to(torch.uint8)


def _num_bytes(count: int, num_bits: int) -> int:
    """Whole bytes lie in one part, what is left of each number in another."""
    return count * (num_bits // 8) + -(-count * (num_bits % 8) // 8)


class _AbstractFloat(AbstractEncoding):
    """A floating-point tensor with fewer bits.

    Attributes:
        num_bits: Of one number.
    """

    exactness = Exactness.LOSSY
    num_bits: ClassVar[int]

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to floating-point numbers that have more bits."""
        dtype: Any = getattr(torch, tensor.dtype)
        if not dtype.is_floating_point or 8 * dtype.itemsize <= cls.num_bits:
            return None
        return _num_bytes(tensor.num_bytes // dtype.itemsize, cls.num_bits)


@final
class BFloat16(_AbstractFloat):
    """The range of float32 with eight bits of precision."""

    name = "bfloat16"
    summary = "hold numbers as bfloat16: the range of float32, two or three decimal digits"
    origin = "Gist (delayed precision reduction)"
    costs = "half the bytes of float32; each off by at most one part in 256"
    when = "The first lossy way to try: it takes numbers of any size."
    not_with = "Tensors that have no more bits already, as under autocast; masks and whole numbers."
    error = 0.0017
    num_bits = 16
    put, get = _define("bfloat16", torch.bfloat16)


@final
class Float16(_AbstractFloat):
    """Three decimal digits, up to 65504."""

    name = "float16"
    summary = "hold numbers as float16: three decimal digits, up to 65504"
    origin = "Gist (delayed precision reduction)"
    costs = "half the bytes of float32; each off by at most one part in 2048"
    when = (
        "Where numbers are below 65504, which those of most activations are: it has three "
        "more bits of precision than `bfloat16`, in the same bytes."
    )
    not_with = (
        "Tensors that have no more bits already, as under autocast; masks and whole numbers. "
        "Larger numbers become 65504."
    )
    error = 0.00021
    num_bits = 16
    put, get = _define("float16", torch.float16)


@final
class Float10(_AbstractFloat):
    """One sign, five bits of exponent, four of fraction."""

    name = "float10"
    summary = "hold numbers with ten bits: one and a half decimal digits, up to 63488"
    origin = "Gist (10-bit floating point)"
    costs = "under a third of the bytes of float32; each off by at most one part in 32"
    when = "Between 16 and 8 bits, where gradients are off too far with 8."
    not_with = (
        "Tensors that have no more bits already, as under autocast; masks and whole numbers. "
        "Larger numbers become 63488."
    )
    error = 0.0133
    num_bits = 10
    put, get = define(
        "float10",
        _put_ten_bits,
        _get_ten_bits,
        num_held=lambda value: _num_bytes(value.numel(), 10),
    )


@final
class Float8Wide(_AbstractFloat):
    """Five bits of exponent, two of fraction."""

    name = "float8-e5m2"
    summary = "hold numbers with eight bits, five of exponent and two of fraction"
    origin = "Gist (8-bit floating point)"
    costs = "a quarter of the bytes of float32; each off by at most one part in 8"
    when = "A quarter of the bytes where numbers differ in size by many orders."
    not_with = (
        "Tensors that have no more bits already, as under autocast; masks and whole numbers. "
        "Larger numbers become 57344."
    )
    error = 0.053
    num_bits = 8
    put, get = _define("float8_e5m2", torch.float8_e5m2)


@final
class Float8Fine(_AbstractFloat):
    """Four bits of exponent, three of fraction."""

    name = "float8-e4m3"
    summary = "hold numbers with eight bits, four of exponent and three of fraction, up to 448"
    origin = "Gist (8-bit floating point)"
    costs = "a quarter of the bytes of float32; each off by at most one part in 16"
    when = "A quarter of the bytes where numbers are below 448; twice as exact as `float8-e5m2`."
    not_with = (
        "Tensors that have no more bits already, as under autocast; masks and whole numbers. "
        "Larger numbers become 448, infinities what is not a number."
    )
    error = 0.027
    num_bits = 8
    put, get = _define("float8_e4m3", torch.float8_e4m3fn)
