"""Hold a mask with one bit for each element, eight times less than PyTorch does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch.nn.functional import pad

from legroom.capture import TensorInfo, in_memory_order
from legroom.ways._encoding import AbstractEncoding, define
from legroom.ways._way import Exactness

# Eight truth values, a byte each, are one number of 64 bits. One multiplication moves bit 8i to bit
# 56 + i, without a carry; another copies a byte into all eight, and a mask leaves one bit in each.
_GATHER = 0x0102040810204080
_COPIES = 0x0101010101010101
_ONE_EACH = 0x8040201008040201 - (1 << 64)


def num_packed(count: int) -> int:
    """Bytes of so many bits."""
    return -(-count // 8)


def pack(flat: torch.Tensor) -> torch.Tensor:
    """Eight bytes that are 0 or 1 as one; the last ones filled up with zeros."""
    if flat.numel() % 8:
        flat = pad(flat, (0, -flat.numel() % 8))
    return (flat.view(torch.int64) * _GATHER).bitwise_right_shift_(56).to(torch.uint8)


def unpack(held: torch.Tensor) -> torch.Tensor:
    """Bytes that are 0 or 1 again, eight for each."""
    words = held.to(torch.int64).mul_(_COPIES).bitwise_and_(_ONE_EACH)
    return words.view(torch.uint8).clamp_(max=1)


def _put(value: torch.Tensor) -> torch.Tensor:
    return pack(in_memory_order(value).view(torch.uint8))


def _get(
    held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return unpack(held).view(torch.bool).as_strided(size, stride)


@final
class Bits(AbstractEncoding):
    """A truth value is a bit; PyTorch keeps a byte."""

    name = "bits"
    summary = "hold a mask (of dropout, of a comparison) with one bit for each element"
    exactness = Exactness.BITWISE
    origin = "Gist (binarize), Tempo"
    costs = "an eighth of the bytes; a pass over them in forward, another in backward"
    when = "For the masks of dropouts, comparisons and `torch.where`."
    not_with = "Masks of floating-point numbers: they are numbers like any other."
    put, get = define("bits", _put, _get, num_held=lambda value: num_packed(value.numel()))

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to truth values."""
        return num_packed(tensor.num_bytes) if tensor.dtype == "bool" else None
