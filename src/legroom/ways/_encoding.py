"""Ways that hold a tensor in another form: encoded after its last use in forward, decoded later.

In goes a tensor that lies densely in memory, in whatever order of dimensions; the encoded form is
one flat tensor. Encoding and decoding are operations of PyTorch's under the name `legroom`, so that
they are timed, captured and compiled like any other. See Note [Encodings].
"""

# Note [Encodings]
# 1. An encoding sees elements in the order in which they lie in memory: what comes back has the
#    strides that went in, because kernels may round otherwise with others.
# 2. Both operations write in place where they can and look at numbers. Compilers leave them as they
#    are. Inductor could fuse them, but takes 68 ns to pack a truth value on a CPU, and these 0.2.
#    Its kernels for numbers are 1.5 to 4 times faster than these, and keep whole tensors alive for
#    longer than was planned: a GPT-2 planned for 133 MiB took 225.
# 3. An encoding never fails on values. Where it cannot tell beforehand how much it holds, it does
#    not apply.
# 4. What it takes is measured on small tensors of two lengths; time and scratch memory of longer
#    ones lie on the line through both. So a model of many shapes takes no longer to plan.
# 5. Some must know how a tensor was made, or what reads it (`about`); what some give back is good
#    for nothing but that (`readers_only`).

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from legroom.capture import LIBRARY, OperationInfo, TensorInfo, signature_of
from legroom.ways._way import AbstractWay, RunCost, Saving

_PUT = "(Tensor value) -> Tensor"
_GET = "(Tensor held, int[] size, int[] stride, ScalarType dtype) -> Tensor"
_LENGTHS = (1 << 17, 1 << 20)
"""Of tensors that encodings are timed on, in elements; what is shorter is timed itself."""
_ALIKE = 1 << 10
"""Lengths that leave the same remainder are padded alike."""


def define(
    name: str,
    put: Callable[..., torch.Tensor],
    get: Callable[..., torch.Tensor],
    *,
    num_held: Callable[..., int],
    held_dtype: torch.dtype = torch.uint8,
    about: str = "",
) -> tuple[Any, Any]:
    """Define the two operations of an encoding, `legroom::<name>_put` and `legroom::<name>_get`.

    Args:
        num_held: How many elements `put` returns, of what it takes; see Note [Encodings], rule 2.
        held_dtype: Their type.
        about: Further arguments of both, as in a schema: `", int[] window"`.
    """

    def held_like(value: torch.Tensor, *about: Any) -> torch.Tensor:
        return value.new_empty(num_held(value, *about), dtype=held_dtype)

    for suffix, schema, eager, without_memory in (
        ("put", _PUT, put, held_like),
        ("get", _GET, get, _given_back_like),
    ):
        LIBRARY.define(f"{name}_{suffix}{schema.replace(')', about + ')')}")
        LIBRARY.impl(f"{name}_{suffix}", eager, "CompositeExplicitAutograd")
        LIBRARY.impl(f"{name}_{suffix}", without_memory, "Meta")
    of_legroom = torch.ops.legroom
    return getattr(of_legroom, f"{name}_put").default, getattr(of_legroom, f"{name}_get").default


def _given_back_like(
    held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, *about: Any
) -> torch.Tensor:
    return held.new_empty_strided(size, stride, dtype=dtype)


def within(value: torch.Tensor, largest: float, *, infinity: float | None = None) -> torch.Tensor:
    """Numbers no larger than the largest that can be held; infinities stay, or become another.

    An infinity in place of a number would make every gradient after it worthless.
    """
    kept = value if infinity is None else infinity
    return torch.where(value.isinf(), kept, value.clamp(-largest, largest))


class AbstractEncoding(AbstractWay):
    """A way that holds a tensor in another form.

    Attributes:
        put: The operation that encodes: of a tensor, and of what `about` says.
        get: The operation that decodes: of what is held, size, strides and type, and the same.
        readers_only: See `Saving`.
        is_flat: Whether what it takes depends on nothing but how many elements there are.
    """

    put: ClassVar[Any]
    get: ClassVar[Any]
    readers_only: ClassVar[bool] = False
    is_flat: ClassVar[bool] = True

    @classmethod
    @abc.abstractmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Bytes of the encoded form, given what `about` says; None where it does not apply."""

    @classmethod
    def about(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[Any, ...] | None:
        """What the operations are told beside the tensor; None where that cannot be found out."""
        return ()

    @classmethod
    def _applies(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[int, tuple[Any, ...]] | None:
        """Bytes held and what to tell, where the encoding applies."""
        if not producer.is_forward or not is_dense(tensor):
            return None
        about = cls.about(tensor, producer, readers)
        held_bytes = None if about is None else cls.held_bytes(tensor, about)
        return None if held_bytes is None or about is None else (held_bytes, about)

    @classmethod
    def signatures(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        readers: tuple[OperationInfo, ...] = (),
    ) -> tuple[str, ...]:
        """Of encoding and decoding, for each of the lengths; see Note [Encodings], rule 4."""
        found = cls._applies(tensor, producer, readers)
        if found is None:
            return ()
        _, about = found
        shapes: list[tuple[int, ...]] = [(length,) for length in cls._lengths(tensor)]
        if not shapes:
            shapes = [(math.prod(tensor.shape),) if cls.is_flat else tensor.shape]
        return tuple(
            each for shape in shapes for each in _signatures(cls, shape, tensor.dtype, about)
        )

    @classmethod
    def _lengths(cls, tensor: TensorInfo) -> tuple[int, ...]:
        """Lengths to time instead of the tensor's own; none where that is short."""
        count = math.prod(tensor.shape)
        if not cls.is_flat or count <= _LENGTHS[0]:
            return ()
        return tuple(length + count % _ALIKE for length in _LENGTHS)

    @classmethod
    def estimate(
        cls,
        tensor: TensorInfo,
        producer: OperationInfo,
        costs: tuple[RunCost, ...] = (),
        readers: tuple[OperationInfo, ...] = (),
    ) -> Saving | None:
        """Nothing is known of what it takes where `costs` are missing."""
        found = cls._applies(tensor, producer, readers)
        if found is None:
            return None
        held_bytes, about = found
        put, get = costs[:2] or (RunCost(), RunCost())
        if len(costs) > 2:
            lengths, count = cls._lengths(tensor), math.prod(tensor.shape)
            put = on_the_line(costs[0::2], lengths, count)
            get = on_the_line(costs[1::2], lengths, count)
        return Saving(
            held_bytes=held_bytes,
            put_ms=put.ms,
            get_ms=get.ms,
            put_bytes=put.workspace_bytes,
            get_bytes=get.workspace_bytes,
            readers_only=cls.readers_only,
            about=about,
        )


@functools.lru_cache(maxsize=4096)
def _signatures(
    way: type[AbstractEncoding], shape: tuple[int, ...], dtype_name: str, about: tuple[Any, ...]
) -> tuple[str, str]:
    """Of encoding and decoding a tensor; a model has many that are alike."""
    dtype = getattr(torch, dtype_name)
    value = torch.empty(shape, dtype=dtype, device="meta")
    layout = (list(value.shape), list(value.stride()), dtype)
    held = way.put(value, *about)
    return (
        signature_of(way.put, (value, *about)),
        signature_of(way.get, (held, *layout, *about)),
    )


def on_the_line(costs: Sequence[RunCost], lengths: Sequence[int], count: int) -> RunCost:
    """What a longer tensor takes, from two that were measured."""
    (short, long), (few, many) = costs, lengths
    share = (count - many) / (many - few)
    return RunCost(
        ms=long.ms + share * max(0.0, long.ms - short.ms),
        workspace_bytes=long.workspace_bytes
        + round(share * max(0, long.workspace_bytes - short.workspace_bytes)),
    )


def is_dense(tensor: TensorInfo) -> bool:
    """Whether the storage holds the tensor's elements and nothing else."""
    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        return False
    return math.prod(tensor.shape) * dtype.itemsize == tensor.num_bytes
