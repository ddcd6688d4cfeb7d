"""How a tensor lies in memory: which bytes are its own, and a tensor over bytes that came back.

In goes a tensor; out come the address and number of its bytes, or an error that says why it has no
plain ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from legroom.errors import TierError, UsageError
from legroom.units import format_bytes


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Size, strides and type of a tensor that lies densely."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Of all elements."""
        return math.prod(self.size) * self.dtype.itemsize


def layout_of(tensor: torch.Tensor, *, label: str = "") -> Layout:
    """How a tensor lies in memory.

    Raises:
        UsageError: Not densely, or not as plain bytes.
    """
    reason = why_not_plain(tensor)
    if reason:
        raise UsageError(
            f"{named(label)} cannot be put on a tier: {reason}; a tensor that is moved lies "
            "densely in memory.\n  try: put tensor.contiguous() there"
        )
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def why_not_plain(tensor: torch.Tensor) -> str:
    """Why the tensor's bytes are not all that there is to it; empty where they are."""
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}"
    if tensor.is_quantized:
        return "it is quantized"
    if tensor.is_conj() or tensor.is_neg():
        return "it is to be conjugated or negated when it is read"
    if not is_dense(tuple(tensor.shape), tensor.stride()):
        return f"its size is {tuple(tensor.shape)} and its strides are {tensor.stride()}"
    return ""


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill a piece of memory, each byte once."""
    if 0 in size:
        return True
    expected = 1
    for step, count in sorted(zip(stride, size, strict=True)):
        if count == 1:
            continue
        if step != expected:
            return False
        expected *= count
    return True


def new_tensor(layout: Layout, *, label: str, tier: str) -> torch.Tensor:
    """Memory for a tensor to come back to.

    Raises:
        TierError: There is not that much.
    """
    try:
        return torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device="cpu")
    except (RuntimeError, MemoryError) as error:
        raise TierError(
            f"{named(label)} cannot come back from tier {tier!r}: there is no host memory for its "
            f"{format_bytes(layout.num_bytes)}. It is still there.\n"
            "  try: again with less in memory, a smaller batch, or a lower budget"
        ) from error


def relaid(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The tensor's memory with another layout of as many bytes; not a view of the tensor."""
    if (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (
        layout.size,
        layout.stride,
        layout.dtype,
    ):
        return tensor
    bare = torch.empty(0, dtype=layout.dtype, device=tensor.device)
    return bare.set_(tensor.untyped_storage(), 0, layout.size, layout.stride)


def named(label: str) -> str:
    """A tensor in a message."""
    return repr(label) if label else "a tensor"
