"""Ways that hold a tensor in another form: encoded after its last use in forward, decoded later.

In goes a tensor that lies densely in memory, in whatever order of dimensions; the encoded form is
one flat tensor. Encoding and decoding are operations of PyTorch's under the name `legroom`, so that
they are timed, captured and compiled like any other. See Note [Encodings].
"""

# Note [Encodings]
# 1. An encoding sees elements in the order in which they lie in memory: what comes back has the
#    strides that went in, because kernels may round otherwise with others.
# 2. What runs eagerly writes in place where it can; a second, functional form of the same thing is
#    what Inductor traces.
# 3. An encoding never fails on values. Where it cannot tell beforehand how much it holds, it does
#    not apply.

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from legroom.capture import FUNCTIONAL, LIBRARY, OperationInfo, TensorInfo, signature_of
from legroom.ways._way import AbstractWay, RunCost, Saving

_PUT = "(Tensor value) -> Tensor"
_GET = "(Tensor held, int[] size, int[] stride, ScalarType dtype) -> Tensor"


def define(
    name: str,
    put: Callable[[torch.Tensor], torch.Tensor],
    get: Callable[[torch.Tensor, Sequence[int], Sequence[int], torch.dtype], torch.Tensor],
    *,
    functional_put: Callable[..., torch.Tensor] | None = None,
    functional_get: Callable[..., torch.Tensor] | None = None,
) -> tuple[Any, Any]:
    """Define the two operations of an encoding, `legroom::<name>_put` and `legroom::<name>_get`."""
    made = []
    for suffix, schema, eager, functional in (
        ("put", _PUT, put, functional_put),
        ("get", _GET, get, functional_get),
    ):
        LIBRARY.define(f"{name}_{suffix}{schema}")
        LIBRARY.impl(f"{name}_{suffix}", eager, "CompositeExplicitAutograd")
        operation = getattr(torch.ops.legroom, f"{name}_{suffix}").default
        FUNCTIONAL[operation] = functional or eager
        made.append(operation)
    return made[0], made[1]


def within(value: torch.Tensor, largest: float, *, infinity: float | None = None) -> torch.Tensor:
    """Numbers no larger than the largest that can be held; infinities stay, or become another.

    An infinity in place of a number would make every gradient after it worthless.
    """
    kept = value if infinity is None else infinity
    return torch.where(value.isinf(), kept, value.clamp(-largest, largest))


class AbstractEncoding(AbstractWay):
    """A way that holds a tensor in another form.

    Attributes:
        put: The operation that encodes.
        get: The operation that decodes.
    """

    put: ClassVar[Any]
    get: ClassVar[Any]

    @classmethod
    @abc.abstractmethod
    def held_bytes(cls, tensor: TensorInfo) -> int | None:
        """Bytes of the encoded form; None where the encoding does not apply."""

    @classmethod
    def _bytes_held(cls, tensor: TensorInfo, producer: OperationInfo) -> int | None:
        applies = producer.is_forward and _is_dense(tensor)
        return cls.held_bytes(tensor) if applies else None

    @classmethod
    def signatures(cls, tensor: TensorInfo, producer: OperationInfo) -> tuple[str, ...]:
        """Of encoding and decoding."""
        if cls._bytes_held(tensor, producer) is None:
            return ()
        dtype = getattr(torch, tensor.dtype)
        value = torch.empty(tensor.shape, dtype=dtype, device="meta")
        held = cls.put(value)
        return (
            signature_of(cls.put, (value,)),
            signature_of(cls.get, (held, list(value.shape), list(value.stride()), dtype)),
        )

    @classmethod
    def estimate(
        cls, tensor: TensorInfo, producer: OperationInfo, costs: tuple[RunCost, ...] = ()
    ) -> Saving | None:
        """Nothing is known of what it takes where `costs` are missing."""
        held_bytes = cls._bytes_held(tensor, producer)
        if held_bytes is None:
            return None
        put, get = costs or (RunCost(), RunCost())
        return Saving(
            held_bytes=held_bytes,
            put_ms=put.ms,
            get_ms=get.ms,
            put_bytes=put.workspace_bytes,
            get_bytes=get.workspace_bytes,
        )


def _is_dense(tensor: TensorInfo) -> bool:
    """Whether the storage holds the tensor's elements and nothing else."""
    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        return False
    return math.prod(tensor.shape) * dtype.itemsize == tensor.num_bytes
