"""Hold what an activation's gradient needs of its input with one to four bits for each element.

The gradient is the incoming one times the derivative at the input. Input is cut into 2 to 16
intervals, on each of which the derivative is taken to be constant; what is held says which interval
each element lies in. Given back is a place in that interval at which the derivative has this very
value, so that PyTorch's own operation computes the gradient. See Note [Few bits].
"""

# Note [Few bits]
# 1. Where the intervals lie is worked out from a sample of the tensor, so that the squared error of
#    the derivative is as small as that many intervals can make it (dynamic programming, exact for
#    the sample's quantiles). It is kept for each place in the model and worked out anew when mean
#    or spread have moved.
# 2. The derivative is found by running the operation that reads the tensor, with gradients of one:
#    any operation on elements will do that is linear in the gradient, whoever wrote the activation.
# 3. What comes back is good for those operations only (`readers_only`).
# 4. Bits lie in planes: the lowest of all elements, then the next. Before them lie the places that
#    are given back. If anything in the tensor is not a number, all of them are not.

from __future__ import annotations

import functools
import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from legroom.capture import (
    LIBRARY,
    OperationInfo,
    TensorInfo,
    call_with,
    in_memory_order,
    real_tensors,
    tensors_of,
    without_sizes,
)
from legroom.ways._bits import num_packed, pack, unpack
from legroom.ways._encoding import AbstractEncoding, define
from legroom.ways._way import Exactness

_BLOCK = 1 << 16
_SAMPLE = 4096
_QUANTILES = 256
_MOVED = 0.1
"""So much of the spread may mean and spread move before intervals are worked out anew."""
_MOST_PLACES = 4096
_BACKWARD = tuple(
    f"aten.{name}_backward"
    for name in ("gelu", "silu", "mish", "softplus", "elu", "hardswish", "hardsigmoid",
                 "leaky_relu", "hardtanh", "threshold", "sigmoid", "tanh")
)  # fmt: skip
_FUSED = "legroom.fused"


# Intervals ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _gradient_of(reader: str) -> tuple[Any, int]:
    """An operation's signature without sizes, and the place of the input among its tensors."""
    signature, place = json.loads(reader)
    return signature, place


def derivative(reader: str, values: torch.Tensor) -> torch.Tensor:
    """The derivative at some values, as the operation that reads them has it; see Note, rule 2."""
    signature, place = _gradient_of(reader)
    return _run(signature, place, values, 1.0)


def _run(signature: str, place: int, values: torch.Tensor, gradient: float) -> torch.Tensor:
    def operand(number: int, dtype: torch.dtype) -> torch.Tensor:
        if number == place:
            return values.to(dtype)
        if dtype is torch.bool:
            return torch.ones_like(values, dtype=torch.bool)
        return torch.full_like(values, gradient, dtype=dtype)

    result: torch.Tensor = call_with(signature, operand)
    return result.to(torch.float64)


@functools.lru_cache(maxsize=256)
def _is_linear(reader: str) -> bool:
    """Whether the operation multiplies its gradient with something that depends on the input."""
    signature, place = _gradient_of(reader)
    values = torch.linspace(-6, 6, 97)
    try:
        with real_tensors():
            once, twice = (_run(signature, place, values, each) for each in (1.0, 2.0))
            nothing = _run(signature, place, values, 0.0)
    except (RuntimeError, TypeError, ValueError):
        return False
    same_shape = once.shape == values.shape
    return bool(same_shape and torch.allclose(twice, 2 * once) and not nothing.any())


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Where intervals end, and what is given back for each; and of which sample."""

    table: torch.Tensor
    mean: float
    spread: float

    def suits(self, mean: float, spread: float) -> bool:
        allowed = _MOVED * self.spread
        return abs(mean - self.mean) <= allowed and abs(spread - self.spread) <= allowed


_KNOWN: OrderedDict[tuple[Any, ...], _Intervals] = OrderedDict()


def _table(value: torch.Tensor, reader: str, site: str, num_bits: int) -> torch.Tensor:
    """Ends of the intervals but the last, infinity, and the place that stands for each."""
    flat = in_memory_order(value)
    sample = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].to(torch.float64)
    sample = sample[sample.isfinite()]
    if not sample.numel():
        sample = torch.zeros(1, dtype=torch.float64, device=flat.device)
    mean, spread = sample.mean().item(), sample.std(correction=0).item()
    key = (reader, site, num_bits, flat.device)
    known = _KNOWN.get(key)
    if known is None or not known.suits(mean, spread):
        made = _intervals(sample.cpu(), reader, 1 << num_bits).to(flat.device)
        known = _KNOWN[key] = _Intervals(made, mean, spread)
        if len(_KNOWN) > _MOST_PLACES:
            _KNOWN.popitem(last=False)
    table = known.table
    return torch.where(_has_nan(flat), math.nan, table)


def _has_nan(flat: torch.Tensor) -> torch.Tensor:
    """Whether anything is not a number; a sum tells, and is wrong only where infinities meet."""
    return flat.sum(dtype=torch.float32 if flat.itemsize < 8 else None).isnan()


def _intervals(sample: torch.Tensor, reader: str, number: int) -> torch.Tensor:
    """See Note [Few bits], rule 1."""
    places = torch.quantile(sample, torch.linspace(0, 1, _QUANTILES, dtype=torch.float64))
    slopes = derivative(reader, places).nan_to_num(0.0, 0.0, 0.0)
    firsts = _cut(slopes, number)
    ends, stand_ins = [], []
    for first, end in zip(firsts, [*firsts[1:], _QUANTILES], strict=True):
        inside = places[first:end]
        fine = torch.lerp(inside[0], inside[-1], torch.linspace(0, 1, 129, dtype=torch.float64))
        fine = torch.cat([fine, inside])
        level = slopes[first:end].mean()
        found = derivative(reader, fine).nan_to_num(0.0, 0.0, 0.0)
        stand_ins.append(fine[(found - level).abs().argmin()])
        after = places[end] if end < _QUANTILES else torch.tensor(math.inf)
        ends.append((inside[-1] + after) / 2)
    missing = number - len(ends)
    ends += [torch.tensor(math.inf)] * missing
    stand_ins += [stand_ins[-1]] * missing
    return torch.stack([torch.stack(ends).double(), torch.stack(stand_ins)]).to(torch.float32)


def _cut(values: torch.Tensor, number: int) -> list[int]:
    """Where to begin stretches so that each is as near its mean as can be, in squares."""
    count = len(values)
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    squares = torch.cat([values.new_zeros(1), values.square().cumsum(0)])
    first, end = torch.arange(count + 1).unsqueeze(1), torch.arange(count + 1).unsqueeze(0)
    length = (end - first).clamp(min=1)
    errors = squares[end] - squares[first] - (sums[end] - sums[first]).square() / length
    errors = torch.where(end > first, errors, math.inf)
    best = errors[0]
    begun = []
    for _ in range(min(number, count) - 1):
        totals = best.unsqueeze(1) + errors
        best, where = totals.min(0)
        begun.append(where)
    firsts, at = [], count
    for where in reversed(begun):
        at = int(where[at])
        firsts.append(at)
    return [0, *reversed(firsts)]


LIBRARY.define("fewbit_table(Tensor value, str reader, str site, int num_bits) -> Tensor")
LIBRARY.impl("fewbit_table", _table, "CompositeExplicitAutograd")
LIBRARY.impl(
    "fewbit_table",
    lambda value, reader, site, num_bits: value.new_empty(2, 1 << num_bits, dtype=torch.float32),
    "Meta",
)


# Encoding ----------------------------------------------------------------------------------------


def _num_table_bytes(num_bits: int) -> int:
    return 4 << num_bits


def _define(num_bits: int) -> tuple[Any, Any]:
    in_front = _num_table_bytes(num_bits)

    def codes_of(flat: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """How many intervals end before each number: faster than to search for them."""
        flat = flat.to(torch.float32)
        codes = (flat > table[0, 0]).to(torch.uint8)
        for number in range(1, (1 << num_bits) - 1):
            codes = codes + (flat > table[0, number])
        return codes

    def put(value: torch.Tensor, reader: str, site: str) -> torch.Tensor:
        flat = in_memory_order(value)
        table = torch.ops.legroom.fewbit_table(value, reader, site, num_bits)
        width = num_packed(flat.numel())
        held = torch.empty(in_front + num_bits * width, dtype=torch.uint8, device=flat.device)
        held[:in_front] = table[1].view(torch.uint8)
        planes = held[in_front:].view(num_bits, width)
        for first in range(0, flat.numel(), _BLOCK):
            codes = codes_of(flat[first : first + _BLOCK], table)
            for number in range(num_bits):
                bits = pack((codes >> number) & 1)
                planes[number, first // 8 : first // 8 + bits.numel()] = bits
        return held

    def get(
        held: torch.Tensor,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        reader: str,
        site: str,
    ) -> torch.Tensor:
        places = held[:in_front].view(torch.float32).to(dtype)
        planes = held[in_front:].view(num_bits, -1)
        flat = torch.empty(math.prod(size), dtype=dtype, device=held.device)
        for first in range(0, flat.numel(), _BLOCK):
            part = planes[:, first // 8 : (first + _BLOCK) // 8]
            codes = unpack(part[0])
            for number in range(1, num_bits):
                codes = codes | (unpack(part[number]) << number)
            out = flat[first : first + _BLOCK]
            torch.index_select(places, 0, codes[: out.numel()].to(torch.int32), out=out)
        return flat.as_strided(size, stride)

    return define(
        f"fewbit{num_bits}",
        put,
        get,
        about=", str reader, str site",
        num_held=lambda value, reader, site: in_front + num_bits * num_packed(value.numel()),
    )


class _AbstractFewBit(AbstractEncoding):
    """An activation's input with few bits; see Note [Few bits].

    Attributes:
        num_bits: Of one number.
    """

    exactness = Exactness.LOSSY
    origin = "few-bit backward (Novikov et al. 2023)"
    when = (
        "For inputs of activations (GELU, SiLU, Mish, softplus, tanh, …) that backward reads "
        "for nothing but the activation's gradient."
    )
    not_with = (
        "Tensors that anything but the gradients of one activation reads, or that something "
        "is made again from; masks and whole numbers."
    )
    readers_only = True
    num_bits: ClassVar[int]

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to floating-point numbers, if it makes them fewer bytes."""
        dtype: Any = getattr(torch, tensor.dtype)
        if not dtype.is_floating_point:
            return None
        count = tensor.num_bytes // dtype.itemsize
        held_bytes = _num_table_bytes(cls.num_bits) + cls.num_bits * num_packed(count)
        return held_bytes if held_bytes < tensor.num_bytes else None

    @classmethod
    def about(
        cls, tensor: TensorInfo, producer: OperationInfo, readers: tuple[OperationInfo, ...]
    ) -> tuple[Any, ...] | None:
        """Applies where the same activation's gradient is all that reads the tensor."""
        found = {_as_activation(tensor, reader) for reader in readers}
        if len(found) != 1:
            return None
        (reader,) = found
        if reader is None or not _is_linear(reader):
            return None
        return reader, f"{producer.piece}.{producer.node}"


def _as_activation(tensor: TensorInfo, reader: OperationInfo) -> str | None:
    """What says which derivative it takes of the tensor; None where it does something else."""
    name = reader.name.rpartition(".")[0]
    if not reader.signature or (name not in _BACKWARD and name != _FUSED):
        return None
    given = tensors_of(reader.signature)
    count = math.prod(tensor.shape)
    if len(given) != len(reader.reads) or any(math.prod(each[0]) != count for each in given):
        return None
    if sum(each[2] != "bool" for each in given) != 2:
        return None
    place = reader.reads.index(tensor.index)
    return json.dumps([without_sizes(reader.signature), place])


@final
class FewBit4(_AbstractFewBit):
    """16 values of the derivative."""

    name = "fewbit4"
    summary = "hold an activation's input with 4 bits, the derivative's best 16 values"
    costs = "an eighth of the bytes of float32; the derivative off by some hundredths"
    error = 0.037
    num_bits = 4
    put, get = _define(4)


@final
class FewBit3(_AbstractFewBit):
    """Eight values of the derivative."""

    name = "fewbit3"
    summary = "hold an activation's input with 3 bits, the derivative's best 8 values"
    costs = "under a tenth of the bytes of float32; the derivative off by some hundredths"
    error = 0.065
    num_bits = 3
    put, get = _define(3)


@final
class FewBit2(_AbstractFewBit):
    """Four values of the derivative."""

    name = "fewbit2"
    summary = "hold an activation's input with 2 bits, the derivative's best 4 values"
    costs = "a sixteenth of the bytes of float32; the derivative off by a tenth"
    error = 0.133
    num_bits = 2
    put, get = _define(2)


@final
class FewBit1(_AbstractFewBit):
    """Two values of the derivative."""

    name = "fewbit1"
    summary = "hold an activation's input with 1 bit, the derivative's best 2 values"
    costs = "a thirty-second of the bytes of float32; the derivative off by a quarter"
    error = 0.292
    num_bits = 1
    put, get = _define(1)
