"""Hold a bit for each element and the elements that are not zero, where few enough are not.

In goes a tensor of which it was measured how many elements are not zero; out come a bitmap and
those elements, in room for so many. See Note [Sparse].
"""

# Note [Sparse]
# 1. Zero is what has no bit set: a negative zero is held like any other number.
# 2. There is room for a fixed share of the elements, somewhat more than was measured: so what is
#    held has a size that can be planned. A tensor with more of them than that is held as it is,
#    and counted: the engine sees it and plans again with what is true by then.
# 3. How long it takes depends on the numbers: longest where half of them are zero, since then no
#    processor guesses where the next one lies. So it is timed on some with as many zeros.

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, final

import torch

from legroom.capture import LIBRARY, OperationInfo, TensorInfo, in_memory_order, signature_of
from legroom.ways._bits import pack, unpack
from legroom.ways._encoding import AbstractEncoding, define, on_the_line
from legroom.ways._way import Exactness, RunCost, Saving

_BLOCK = 1 << 16
_BITS_OF = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROOM = 1.05
"""Batches differ: so many times more than was measured."""
_STEPS = 32
"""Shares of the elements are multiples of this, so that there are not too many to time."""
_WORTH = 0.85
"""Above this share of the bytes it is not worth the time."""
_without_room: list[int] = []
"""Elements of tensors for which there was none."""


def take_overflows() -> int:
    """How many tensors had no room since this was last asked."""
    found = len(_without_room)
    _without_room.clear()
    return found


def density_of(value: torch.Tensor) -> float | None:
    """The share of elements that are not zero; None for what cannot be held sparsely."""
    if not value.is_floating_point() or value.dtype.itemsize not in _BITS_OF or not value.numel():
        return None
    found = torch.count_nonzero(_bits_of(in_memory_order(value)))
    return float(found) / value.numel()


def _bits_of(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(_BITS_OF[flat.dtype.itemsize])


def _num_bitmap_bytes(count: int) -> int:
    """What comes after it must begin at a whole number."""
    return -(-count // 64) * 8


def _num_kept(count: int, share: float) -> int:
    return math.ceil(count * share)


def _num_held(value: torch.Tensor, share: float) -> int:
    count = value.numel()
    return _num_bitmap_bytes(count) + _num_kept(count, share) * value.dtype.itemsize


def _put(value: torch.Tensor, share: float) -> torch.Tensor:
    flat = in_memory_order(value)
    held = torch.empty(_num_held(flat, share), dtype=torch.uint8, device=flat.device)
    bitmap, kept = _parts(held, flat.numel(), flat.dtype)
    end = 0
    for first in range(0, flat.numel(), _BLOCK):
        found = _put_block(flat[first : first + _BLOCK], bitmap, first)
        if end + found.numel() > kept.numel():
            _without_room.append(flat.numel())
            return flat.clone().view(torch.uint8)
        kept[end : end + found.numel()] = found
        end += found.numel()
    return held


def _parts(held: torch.Tensor, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    end = _num_bitmap_bytes(count)
    return held[:end], held[end:].view(dtype)


def _put_block(block: torch.Tensor, bitmap: torch.Tensor, first: int) -> torch.Tensor:
    mask = _bits_of(block) != 0
    bits = pack(mask.view(torch.uint8))
    bitmap[first // 8 : first // 8 + bits.numel()] = bits
    return torch.masked_select(block, mask)


def _get(
    held: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    share: float,
) -> torch.Tensor:
    count = math.prod(size)
    if held.numel() == count * dtype.itemsize:  # there was no room
        return held.view(dtype).clone().as_strided(size, stride)
    bitmap, kept = _parts(held, count, dtype)
    flat = torch.zeros(count, dtype=dtype, device=held.device)
    end = 0
    for first in range(0, count, _BLOCK):
        end += _get_block(bitmap, kept[end:], flat[first : first + _BLOCK], first)
    return flat.as_strided(size, stride)


def _get_block(bitmap: torch.Tensor, kept: torch.Tensor, out: torch.Tensor, first: int) -> int:
    """Writes one block; returns how many of what was kept it took."""
    bits = bitmap[first // 8 : (first + _BLOCK) // 8]
    mask = unpack(bits)[: out.numel()].view(torch.bool)
    out.masked_scatter_(mask, kept)
    return int(mask.sum())


def _trial(value: torch.Tensor, share: float) -> torch.Tensor:
    """Both ways, block by block, for normally distributed numbers; see Note [Sparse], rule 3."""
    flat = in_memory_order(value)
    least = statistics.NormalDist().inv_cdf(min(max(1.0 - share, 0.001), 0.999))
    bitmap = torch.empty(_BLOCK // 8, dtype=torch.uint8, device=flat.device)
    back = torch.zeros_like(flat)
    for first in range(0, flat.numel(), _BLOCK):
        block = flat[first : first + _BLOCK].sub(least).clamp_(min=0)
        found = _put_block(block, bitmap, 0)
        _get_block(bitmap, found, back[first : first + _BLOCK], 0)
    return back


LIBRARY.define("sparse_trial(Tensor value, float share) -> Tensor")
LIBRARY.impl("sparse_trial", _trial, "CompositeExplicitAutograd")
LIBRARY.impl("sparse_trial", lambda value, share: value.new_empty(value.numel()), "Meta")


@final
class Sparse(AbstractEncoding):
    """What is not zero, and where; see Note [Sparse]."""

    name = "sparse"
    summary = "hold a bit for each element and those that are not zero, where few enough are not"
    exactness = Exactness.BITWISE
    origin = "Gist (sparse storage, dense compute), compressing DMA"
    costs = "bytes as many as are not zero, measured on the first batch; some slow passes"
    when = (
        "For results of ReLUs and dropouts that a later layer reads, if what is held stays "
        "below 85 % of the tensor. The first call counts the zeros and the second is planned "
        "with them, where a plan adds time at all."
    )
    not_with = "`legroom plan`, which sees shapes and no numbers, and tensors of whole numbers."
    put, get = define("sparse", _put, _get, about=", float share", num_held=_num_held)

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to numbers of which it was measured that many are zero."""
        (share,) = about
        dtype: Any = getattr(torch, tensor.dtype)
        count = math.prod(tensor.shape)
        held = _num_bitmap_bytes(count) + _num_kept(count, share) * int(dtype.itemsize)
        return held if held <= _WORTH * tensor.num_bytes else None

    @classmethod
    def about(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[Any, ...] | None:
        """The share of elements for which there is room."""
        share = _share(tensor)
        return None if share is None else (share,)

    @classmethod
    def signatures(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        readers: tuple[OperationInfo, ...] = (),
    ) -> tuple[str, ...]:
        """See Note [Sparse], rule 3."""
        found = cls._applies(tensor, producer, readers)
        if found is None:
            return ()
        lengths = cls._lengths(tensor) or (math.prod(tensor.shape),)
        dtype = getattr(torch, tensor.dtype)
        values = [torch.empty(length, dtype=dtype, device="meta") for length in lengths]
        operation = torch.ops.legroom.sparse_trial.default
        return tuple(signature_of(operation, (value, *found[1])) for value in values)

    @classmethod
    def estimate(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        costs: tuple[RunCost, ...] = (),
        readers: tuple[OperationInfo, ...] = (),
    ) -> Saving | None:
        """Half of what both take together is for each."""
        found = cls._applies(tensor, producer, readers)
        if found is None:
            return None
        both = costs[0] if costs else RunCost()
        if len(costs) > 1:
            both = on_the_line(costs, cls._lengths(tensor), math.prod(tensor.shape))
        return Saving(
            held_bytes=found[0],
            put_ms=both.ms / 2,
            get_ms=both.ms / 2,
            put_bytes=both.workspace_bytes,
            get_bytes=both.workspace_bytes,
            about=found[1],
        )


def _share(tensor: TensorInfo) -> float | None:
    """Of the elements, for which there is room; see Note [Sparse], rule 2."""
    if tensor.density is None or not math.prod(tensor.shape):
        return None
    dtype: Any = getattr(torch, tensor.dtype)
    if not dtype.is_floating_point or dtype.itemsize not in _BITS_OF:
        return None
    return min(1.0, math.ceil(tensor.density * _ROOM * _STEPS + 0.5) / _STEPS)
