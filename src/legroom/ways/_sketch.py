"""Hold a matrix product's operand as a random projection of it, which is right on average.

In go 256 numbers that lie one after the other, out come 64: sums of all of them with random signs.
Giving back multiplies by the same signs, drawn from the same seed again. What comes back is very
noisy, each number by twice its size, but its mean is right, and so is that of a gradient which is
linear in it: of a weight, that adds up many. See Note [Sketch].
"""

# Note [Sketch]
# 1. A group g of 256 becomes S'g, with signs S (256 by 64) over 8, the root of 64; S S'g comes
#    back. S S' has ones on its diagonal and elsewhere numbers whose mean is 0.
# 2. What reads it must be linear in it: a matrix product, a convolution's gradient. Anything else
#    would be wrong on average too.
# 3. The seed lies with the numbers held, so that signs need no memory between.
# 4. Infinities and what is not a number make the group that they are in not a number.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch

from legroom.capture import LIBRARY, OperationInfo, TensorInfo, in_memory_order, tensors_of
from legroom.ways._encoding import AbstractEncoding, define
from legroom.ways._integer import rows_of
from legroom.ways._way import Exactness

_GROUP, _KEPT = 256, 64
_BLOCK = 256
"""Groups that are worked on at once."""
_LINEAR = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.convolution_backward")


def _signs(seed: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(seed.device).manual_seed(int(seed.view(torch.int64)))
    bits = torch.randint(2, (_GROUP, _KEPT), generator=generator, device=seed.device)
    return (bits * 2 - 1).to(torch.float32) / math.sqrt(_KEPT)


def _no_signs(seed: torch.Tensor) -> torch.Tensor:
    return torch.empty(_GROUP, _KEPT, device=seed.device)


def _seed(value: torch.Tensor) -> torch.Tensor:
    """Eight bytes; from the random numbers of rounding, so that the program's stay as they are."""
    drawn: torch.Tensor = torch.ops.legroom.rounding_noise(value)[0, :2]
    return (drawn * (1 << 24)).to(torch.int32).view(torch.uint8)


LIBRARY.define("sketch_signs(Tensor seed) -> Tensor")
LIBRARY.impl("sketch_signs", _signs, "CompositeExplicitAutograd")
LIBRARY.impl(
    "sketch_signs", lambda seed: seed.new_empty(_GROUP, _KEPT, dtype=torch.float32), "Meta"
)


def _num_held(count: int) -> int:
    """The seed, and the sums of each group."""
    return 8 + -(-count // _GROUP) * _KEPT * 4


def _put(value: torch.Tensor) -> torch.Tensor:
    flat = in_memory_order(value)
    num_groups = -(-flat.numel() // _GROUP)
    held = torch.empty(_num_held(flat.numel()), dtype=torch.uint8, device=flat.device)
    held[:8] = _seed(flat)
    signs = torch.ops.legroom.sketch_signs(held[:8])
    sums = held[8:].view(torch.float32).view(num_groups, _KEPT)
    for first in range(0, num_groups, _BLOCK):
        rows = rows_of(flat[first * _GROUP : (first + _BLOCK) * _GROUP])
        sums[first : first + _BLOCK] = rows @ signs
    return held


def _get(
    held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    signs = torch.ops.legroom.sketch_signs(held[:8]).t()
    sums = held[8:].view(torch.float32).view(-1, _KEPT)
    flat = torch.empty(math.prod(size), dtype=dtype, device=held.device)
    for first in range(0, sums.shape[0], _BLOCK):
        out = flat[first * _GROUP : (first + _BLOCK) * _GROUP]
        out.copy_((sums[first : first + _BLOCK] @ signs).view(-1)[: out.numel()])
    return flat.as_strided(size, stride)


@final
class Sketch(AbstractEncoding):
    """A random projection; see Note [Sketch]."""

    name = "sketch"
    summary = "hold a matrix product's operand as a random projection, a quarter as long"
    exactness = Exactness.LOSSY
    origin = "randomized matrix multiplication (few-bit backward, linear layers)"
    costs = "a quarter of the bytes of float32; right on average, and extremely noisy"
    when = (
        "For experiments with operands of matrix products and convolutions, where gradients "
        "of weights may be extremely noisy. Name it: beside `float8-e4m3`, which is as small "
        "and far more exact, plans leave it out."
    )
    not_with = (
        "Tensors that anything but matrix products and gradients of convolutions reads, or "
        "that something is made again from."
    )
    error = 2.0
    readers_only = True
    put, get = define("sketch", _put, _get, num_held=lambda value: _num_held(value.numel()))

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to floating-point numbers, if it makes them fewer bytes."""
        dtype: Any = getattr(torch, tensor.dtype)
        if not dtype.is_floating_point or not tensor.num_bytes:
            return None
        held_bytes = _num_held(tensor.num_bytes // dtype.itemsize)
        return held_bytes if held_bytes < tensor.num_bytes else None

    @classmethod
    def about(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[Any, ...] | None:
        """Applies where whatever reads the tensor is linear in it."""
        return () if readers and all(map(_is_linear, readers)) else None


def _is_linear(reader: OperationInfo) -> bool:
    """A product of something with itself is not: it has more operands than tensors."""
    if reader.name.rpartition(".")[0] not in _LINEAR or not reader.signature:
        return False
    return len(tensors_of(reader.signature)) == len(reader.reads)
