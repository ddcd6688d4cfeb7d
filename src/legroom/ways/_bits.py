"""Hold a mask with one bit for each element, eight times less than PyTorch does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

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


def _put(value: torch.Tensor) -> torch.Tensor:
    flat = in_memory_order(value).view(torch.uint8)
    if flat.numel() % 8:
        flat = pad(flat, (0, -flat.numel() % 8))
    return (flat.view(torch.int64) * _GATHER).bitwise_right_shift_(56).to(torch.uint8)


def _put_functional(value: torch.Tensor) -> torch.Tensor:
    flat = in_memory_order(value).to(torch.uint8)
    rows = pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=value.device)
    return (rows << places).sum(1, dtype=torch.uint8)


def _get(
    held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    words = held.to(torch.int64).mul_(_COPIES).bitwise_and_(_ONE_EACH)
    flat = words.view(torch.uint8).clamp_(max=1).view(torch.bool)
    return flat.as_strided(size, stride)


def _get_functional(
    held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=held.device)
    flat = ((held.unsqueeze(1) >> places) & 1).to(torch.bool).view(-1)
    return flat.as_strided(size, stride)


@final
class Bits(AbstractEncoding):
    """A truth value is a bit; PyTorch keeps a byte."""

    name = "bits"
    summary = "hold a mask (of dropout, of a comparison) with one bit for each element"
    exactness = Exactness.BITWISE
    origin = "Gist (binarize), Tempo"
    costs = "an eighth of the bytes; a pass over them in forward, another in backward"
    put, get = define(
        "bits", _put, _get, functional_put=_put_functional, functional_get=_get_functional
    )

    @classmethod
    def held_bytes(cls, tensor: TensorInfo) -> int | None:
        """Applies to truth values."""
        return -(-tensor.num_bytes // 8) if tensor.dtype == "bool" else None
