"""Hold a tensor as small integers: where each number lies between the least and largest nearby.

In goes a floating-point tensor, out come codes of 8, 4 or 2 bits and two numbers for each group.
Rounding is random, so that on average nothing is off. See Note [Integers].
"""

# Note [Integers]
# 1. A group is 256 numbers that lie one after the other in memory. Its codes count steps from its
#    least number; the largest code is its largest number.
# 2. A number between two steps becomes either, the nearer the likelier: the mean of what comes back
#    is the number itself, and so is the mean of a gradient that is linear in it (ActNN).
# 3. The random numbers are ours: the program's generators do not move. Groups share them, 64 in a
#    row have their own, which leaves the mean of each as it is.
# 4. A group with infinities, or with what is not a number, has three codes less and a step below
#    zero, which says so. With two bits that leaves one code: the middle of its finite numbers.
# 5. Half of everything is counted, because the distance from the least number to the largest can be
#    beyond float32.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch

from legroom.capture import LIBRARY, TensorInfo, in_memory_order
from legroom.ways._encoding import AbstractEncoding, define, within
from legroom.ways._way import Exactness

_GROUP = 256
_OWN_NOISE = 64
_ROWS = 256
"""Groups that are worked on at once."""
_SPECIAL = (-math.inf, math.inf, math.nan)
_LARGEST_HALF = torch.finfo(torch.float32).max / 2
_GENERATORS: dict[torch.device, torch.Generator] = {}


def reset_noise(seed: int | None = None) -> None:
    """Begin the random numbers of rounding anew; from the program's seed if none is given."""
    _GENERATORS.clear()
    if seed is not None:
        _GENERATORS[torch.device("cpu")] = torch.Generator().manual_seed(seed)


def _noise(value: torch.Tensor) -> torch.Tensor:
    generator = _GENERATORS.get(value.device)
    if generator is None:
        generator = torch.Generator(value.device).manual_seed(torch.initial_seed())
        _GENERATORS[value.device] = generator
    return torch.rand(_OWN_NOISE, _GROUP, device=value.device, generator=generator)


def _no_noise(value: torch.Tensor) -> torch.Tensor:
    return torch.empty(_OWN_NOISE, _GROUP, device=value.device)


LIBRARY.define("rounding_noise(Tensor value) -> Tensor")
LIBRARY.impl("rounding_noise", _noise, "CompositeExplicitAutograd")
LIBRARY.impl("rounding_noise", _no_noise, "Meta")


def rows_of(flat: torch.Tensor) -> torch.Tensor:
    """Groups of numbers, the last one filled up with its last number."""
    missing = -flat.numel() % _GROUP
    if missing:
        flat = torch.cat([flat, flat[-1:].expand(missing)])
    if flat.dtype is torch.float64:
        flat = within(flat, torch.finfo(torch.float32).max)
    return flat.view(-1, _GROUP).to(torch.float32)


def _encode(
    rows: torch.Tensor, noise: torch.Tensor, num_bits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, eight bits each, and for each group the halves of its least number and of a step."""
    finite = rows.isfinite()
    halves = torch.where(finite, rows, 0.0) * 0.5
    is_special = ~finite.all(1, keepdim=True)
    least = torch.where(finite, halves, math.inf).amin(1, keepdim=True)
    most = torch.where(finite, halves, -math.inf).amax(1, keepdim=True)
    has_none = least > most
    least, most = torch.where(has_none, 0.0, least), torch.where(has_none, 0.0, most)
    last = 2**num_bits - 1
    last_special = last - len(_SPECIAL)
    if not last_special:
        middle = least + (most - least) * 0.5
        least, most = torch.where(is_special, middle, least), torch.where(is_special, middle, most)
    num_steps = torch.where(is_special, max(last_special, 1), last)
    step = (most - least) / num_steps
    step = torch.where(step > 0, step, 1.0)
    codes = ((halves - least) / step + noise).floor_().clamp_(min=0.0)
    codes = torch.minimum(codes, torch.where(is_special, last_special, last))
    for number, special in enumerate((rows == -math.inf, rows == math.inf, rows.isnan()), start=1):
        codes = torch.where(special, last_special + number, codes)
    about = torch.cat([least, torch.where(is_special, -step, step)], 1)
    return codes.to(torch.uint8), about


def _encode_block(
    rows: torch.Tensor, noise: torch.Tensor, num_bits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, packed, in fewer passes where every number is finite, as almost always."""
    least, most = rows.amin(1, keepdim=True) * 0.5, rows.amax(1, keepdim=True) * 0.5
    if not bool((most - least).isfinite().all()):
        codes, about = _encode(rows, noise, num_bits)
        return _packed(codes, num_bits), about
    last = 2**num_bits - 1
    step = (most - least) / last
    step = torch.where(step > 0, step, 1.0)
    numbers = rows.mul(0.5).sub_(least).div_(step).add_(noise).floor_().clamp_(0.0, last)
    # Whole numbers up to 255 are exact in float32, whose sums are faster than shifts of bytes.
    parts = numbers.view(rows.shape[0], 8 // num_bits, -1)
    packed = parts[:, 0]
    for number in range(1, parts.shape[1]):
        packed = torch.add(packed, parts[:, number], alpha=1 << (number * num_bits))
    return packed.to(torch.uint8), torch.cat([least, step], 1)


def _decode_block(codes: torch.Tensor, about: torch.Tensor, num_bits: int) -> torch.Tensor:
    """The same in fewer passes where every number was finite."""
    least, step = about[:, :1], about[:, 1:]
    if bool((step < 0).any()):
        return _decode(codes, about, num_bits)
    halves = codes.to(torch.float32).mul_(step).add_(least)
    return halves.clamp_(-_LARGEST_HALF, _LARGEST_HALF).mul_(2)


def _decode(codes: torch.Tensor, about: torch.Tensor, num_bits: int) -> torch.Tensor:
    least, step = about[:, :1], about[:, 1:]
    halves = least + codes.to(torch.float32) * step.abs()
    values = halves.clamp(-_LARGEST_HALF, _LARGEST_HALF) * 2
    last_special = 2**num_bits - 1 - len(_SPECIAL)
    for number, special in enumerate(_SPECIAL, start=1):
        values = torch.where((step < 0) & (codes == last_special + number), special, values)
    return values


def _packed(codes: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Several codes in a byte: those of the first part of a group in its lowest bits."""
    parts = codes.view(codes.shape[0], 8 // num_bits, -1)
    made = parts[:, 0]
    for number in range(1, parts.shape[1]):
        made = made | (parts[:, number] << (number * num_bits))
    return made


def _unpacked(packed: torch.Tensor, num_bits: int) -> torch.Tensor:
    parts = [(packed >> shift) & (2**num_bits - 1) for shift in range(0, 8, num_bits)]
    return torch.cat(parts, 1)


def _define(num_bits: int) -> tuple[Any, Any]:
    """The two operations, block by block."""
    width = _GROUP * num_bits // 8

    def parts(held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        num_groups = held.numel() // (width + 8)
        codes, about = held[: num_groups * width], held[num_groups * width :]
        return codes.view(num_groups, width), about.view(torch.float32).view(num_groups, 2)

    def put(value: torch.Tensor) -> torch.Tensor:
        flat = in_memory_order(value)
        num_groups = -(-flat.numel() // _GROUP)
        held = torch.empty(num_groups * (width + 8), dtype=torch.uint8, device=flat.device)
        codes, about = parts(held)
        noise = torch.ops.legroom.rounding_noise(flat)
        noise = noise.repeat(_ROWS // _OWN_NOISE, 1)
        for first in range(0, num_groups, _ROWS):
            rows = rows_of(flat[first * _GROUP : (first + _ROWS) * _GROUP])
            made, numbers = _encode_block(rows, noise[: rows.shape[0]], num_bits)
            codes[first : first + _ROWS] = made
            about[first : first + _ROWS] = numbers
        return held

    def get(
        held: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        codes, about = parts(held)
        flat = torch.empty(math.prod(size), dtype=dtype, device=held.device)
        for first in range(0, codes.shape[0], _ROWS):
            block = slice(first, first + _ROWS)
            values = _decode_block(_unpacked(codes[block], num_bits), about[block], num_bits)
            out = flat[first * _GROUP : (first + _ROWS) * _GROUP]
            out.copy_(values.view(-1)[: out.numel()])
        return flat.as_strided(size, stride)

    def num_held(value: torch.Tensor) -> int:
        return -(-value.numel() // _GROUP) * (width + 8)

    return define(f"integer{num_bits}", put, get, num_held=num_held)


class _AbstractInteger(AbstractEncoding):
    """A floating-point tensor as small integers.

    Attributes:
        num_bits: Of one number.
    """

    exactness = Exactness.LOSSY
    origin = "ActNN (per group, rounded at random), Gist"
    num_bits: ClassVar[int]

    @classmethod
    def held_bytes(cls, tensor: TensorInfo, about: tuple[Any, ...]) -> int | None:
        """Applies to floating-point numbers, if it makes them fewer bytes."""
        dtype: Any = getattr(torch, tensor.dtype)
        if not dtype.is_floating_point or not tensor.num_bytes:
            return None
        num_groups = -(-(tensor.num_bytes // dtype.itemsize) // _GROUP)
        held_bytes = num_groups * (_GROUP * cls.num_bits // 8 + 8)
        return held_bytes if held_bytes < tensor.num_bytes else None


@final
class Integer8(_AbstractInteger):
    """256 steps in each group."""

    name = "integer8"
    summary = "hold numbers as 8-bit integers, with a range for each 256, rounded at random"
    costs = "a quarter of the bytes of float32; right on average"
    when = (
        "A quarter of the bytes with gradients that are right on average: three times as "
        "exact as `float8-e4m3` for numbers that are normally distributed."
    )
    not_with = "Masks and whole numbers."
    error = 0.0091
    num_bits = 8
    put, get = _define(8)


@final
class Integer4(_AbstractInteger):
    """16 steps in each group."""

    name = "integer4"
    summary = "hold numbers as 4-bit integers, with a range for each 256, rounded at random"
    costs = "an eighth of the bytes of float32; right on average, and noisy"
    when = (
        "An eighth of the bytes, where gradients may be noisy; with `max_gradient_error` "
        "plans use it only where that is kept."
    )
    not_with = "Masks and whole numbers."
    error = 0.154
    num_bits = 4
    put, get = _define(4)


@final
class Integer2(_AbstractInteger):
    """Four steps in each group."""

    name = "integer2"
    summary = "hold numbers as 2-bit integers, with a range for each 256, rounded at random"
    costs = "a fourteenth of the bytes of float32; right on average, and very noisy"
    when = (
        "As few bytes as ActNN reaches, where gradients may be very noisy; with "
        "`max_gradient_error` plans use it only where that is kept."
    )
    not_with = (
        "Masks and whole numbers. A group of 256 in which a number is not finite comes back "
        "as the middle of the finite ones."
    )
    error = 0.77
    num_bits = 2
    put, get = _define(2)
