"""Several operations on the same elements as one, carried out block by block.

In go tensors and a program: which of PyTorch's operations to apply to their elements, in which
order; out comes the last one's result. `legroom::fused` runs it in one loop that was compiled, or
on blocks that stay in the cache with PyTorch's own kernels. Either way what comes out has the same
bits, and nothing in between fills memory. See Note [Fused].
"""

# Note [Fused]
# 1. The first tensor given has the shape and the strides of the result. The others have them too,
#    or are broadcast to it; then the result is contiguous, and its dimensions fall into at most
#    four runs of each of which every tensor has all, or only ones. Where all are broadcast, as a
#    column and a row that are added, the result is contiguous too.
# 2. Only operations are fused whose result for an element depends on nothing but that element's
#    operands. PyTorch takes eight or more at once and what is left over one by one; sigmoid, gelu,
#    and the gradients of gelu and silu then round otherwise, and the larger of 0.0 and -0.0 is
#    another. They stay what they are.
# 3. Blocks are for processors with caches: on other devices nothing is fused.

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from legroom.capture._kernels import kernel_of
from legroom.capture._operations import APPLY_MASK, FUNCTIONAL, LIBRARY
from legroom.capture._program import Place, read_program

_BLOCK = 1 << 17
"""Elements of a block at most: a few such tensors are what a core's caches hold."""
_FEWEST_BLOCKS = 8
"""So that what lies in between is small beside the result."""
_SMALLEST_BLOCK = 1 << 12
_MOST_RUNS = 4

_Writer = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Fusible:
    """How an operation on elements can be part of a fused one.

    Attributes:
        write: Writes the operation's result into the tensor handed in as `out`, which may be one
            of its operands.
        is_costly: Whether running it again takes longer than reading its result.
        is_several: Whether it goes through memory several times, so that even alone it gains.
    """

    write: _Writer
    is_costly: bool = False
    is_several: bool = False


def _gradient(overload: Any) -> _Writer:
    def write(*args: Any, out: torch.Tensor) -> Any:
        return overload(*args, grad_input=out)

    return write


def _copied(value: torch.Tensor, *, out: torch.Tensor, **kwargs: Any) -> Any:
    return out.copy_(value)


def _masked(value: torch.Tensor, mask: torch.Tensor, kept: float, *, out: torch.Tensor) -> Any:
    return torch.mul(value, mask.to(out.dtype).div_(kept), out=out)


def _fusible() -> dict[Any, Fusible]:
    aten: Any = torch.ops.aten
    cheap: dict[Any, _Writer] = {
        aten._to_copy.default: _copied,
        aten.pow.Tensor_Scalar: aten.pow.Tensor_Scalar_out,
        aten.where.self: aten.where.self_out,
        aten.masked_fill.Scalar: aten.masked_fill.Scalar_out,
        aten.rsub.Scalar: aten.rsub.Scalar_out,
        aten.addcmul.default: aten.addcmul.out,
    }
    for packet in (aten.neg, aten.abs, aten.relu, aten.logical_not, aten.bitwise_not, aten.clamp,
                   aten.clamp_min, aten.clamp_max):  # fmt: skip
        cheap[packet.default] = packet.out
    for packet in (aten.add, aten.sub, aten.mul, aten.div):
        cheap[packet.Tensor] = packet.out
        cheap[packet.Scalar] = packet.Scalar_out
    for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.bitwise_and,
                   aten.bitwise_or):  # fmt: skip
        cheap[packet.Tensor] = packet.Tensor_out
        cheap[packet.Scalar] = packet.Scalar_out
    for packet in (aten.threshold_backward, aten.tanh_backward, aten.sigmoid_backward):
        cheap[packet.default] = _gradient(packet.grad_input)
    costly = {
        packet.default: packet.out
        for packet in (aten.exp, aten.expm1, aten.log, aten.log1p, aten.sqrt, aten.reciprocal,
                       aten.sin, aten.cos, aten.tanh, aten.erf)
    }  # fmt: skip
    made = {operation: Fusible(write) for operation, write in cheap.items()}
    made |= {operation: Fusible(write, is_costly=True) for operation, write in costly.items()}
    made[APPLY_MASK] = Fusible(_masked, is_several=True)
    return made


FUSIBLE: dict[Any, Fusible] = _fusible()
"""The operations that can be part of a fused one; see Note [Fused], rule 2."""


def runs_of(shape: Sequence[int], others: Iterable[Sequence[int]]) -> tuple[int, ...] | None:
    """Where runs of dimensions end, of each of which every other shape has all, or only ones.

    See Note [Fused], rule 1. None where there are more than four, or a shape does not fit.
    """
    padded = [(1,) * (len(shape) - len(other)) + tuple(other) for other in others]
    ends: list[int] = []
    last: tuple[bool, ...] | None = None
    for place, size in enumerate(shape):
        if any(other[place] not in (1, size) for other in padded):
            return None
        if size == 1:
            continue  # part of whatever run it lies in
        which = tuple(other[place] == size for other in padded)
        if last is not None and which != last:
            ends.append(place)
        last = which
    ends.append(len(shape))
    return tuple(ends) if len(ends) <= _MOST_RUNS else None


def run_whole(given: Sequence[torch.Tensor], program: str) -> torch.Tensor:
    """What a program returns, one operation after the other."""
    values = list(given)
    for step in read_program(program):
        args = (values[arg.number] if isinstance(arg, Place) else arg for arg in step.args)
        values.append(step.operation(*args, **step.kwargs))
    return values[-1]


def _run(given: list[torch.Tensor], program: str) -> torch.Tensor:
    result = _empty_of_shape(given, program, _broadcast(*(each.shape for each in given)))
    return _write(given, program, result)


def run_into(given: list[torch.Tensor], program: str, place: int) -> torch.Tensor:
    """What a program returns, in the memory of one of those given, which it has the layout of.

    Capture has seen to that; where something else comes, what is written would be wrong numbers.
    """
    result, like = given[place], given[0]
    dtype, shape = read_program(program)[-1].dtype, _broadcast(*(each.shape for each in given))
    # See Note [Fused], rule 1. Where a dimension has one element, its stride means nothing.
    is_laid_out = result.is_contiguous() if like.shape != shape else _steps(result) == _steps(like)
    is_fit = result.dtype is dtype and result.shape == shape and is_laid_out
    assert is_fit, (
        f"bug in legroom: {dtype} {tuple(shape)} is to be written into an operand that is "
        f"{result.dtype} {tuple(result.shape)} with strides {result.stride()}"
    )
    return _write(given, program, result, place)


def _write(
    given: list[torch.Tensor], program: str, result: torch.Tensor, place: int | None = None
) -> torch.Tensor:
    if not result.numel():
        return result
    if all(is_alike(each, result) for each in given if each.dim()):
        cut = [in_memory_order(each) if each.dim() else each for each in (*given, result)]
    else:
        ends = runs_of(result.shape, [each.shape for each in given])
        assert ends is not None, "bug in legroom: what was fused cannot be broadcast"
        cut = [_in_runs(each, result.dim(), ends) for each in (*given, result)]
    kernel = kernel_of(program, cut, place)
    if kernel is not None:
        kernel(cut)
    else:
        _run_in_blocks(program, cut)
    return result


def _run_in_blocks(program: str, cut: list[torch.Tensor]) -> None:
    schedule = _schedule_of(program, len(cut) - 1)
    result = cut[-1]
    num_rows, *width = result.shape
    if len(width) > 1 and math.prod(width) > _BLOCK:
        for row in range(num_rows):
            _run_in_blocks(program, [_row_of(each, row) for each in cut])
        return
    height = min(num_rows, max(1, _block_size(result.numel()) // math.prod(width)))
    starts = range(0, num_rows, height)
    blocks = [
        torch.split(each, height)
        if each.dim() and each.shape[0] == num_rows
        else (each,) * len(starts)
        for each in cut
    ]
    buffers = [
        torch.empty((height, *width), dtype=each, device=result.device) for each in schedule.buffers
    ]
    for *operands, out in zip(*blocks, strict=True):
        if out.shape[0] < height:
            buffers = [each[: out.shape[0]] for each in buffers]
        schedule.run(operands, out, buffers)


def _row_of(value: torch.Tensor, row: int) -> torch.Tensor:
    """One of the first run's, or the only one."""
    return value[row if value.shape[0] > 1 else 0] if value.dim() else value


def _block_size(count: int) -> int:
    return min(_BLOCK, max(_SMALLEST_BLOCK, count // _FEWEST_BLOCKS))


def _empty_result(given: list[torch.Tensor], program: str) -> torch.Tensor:
    shape = torch.broadcast_shapes(*(each.shape for each in given))  # type: ignore[no-untyped-call]
    return _empty_of_shape(given, program, shape)


@functools.lru_cache(maxsize=4096)
def _broadcast(*shapes: torch.Size) -> torch.Size:
    """torch's, which takes longer than a small tensor's kernel; for sizes that are numbers."""
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return shape


def _empty_of_shape(given: list[torch.Tensor], program: str, shape: torch.Size) -> torch.Tensor:
    like = given[0]
    dtype = read_program(program)[-1].dtype
    if shape != like.shape:
        return torch.empty(shape, dtype=dtype, device=like.device)
    return torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=like.device)


def is_alike(value: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether two tensors have the same shape and lie in memory in the same order."""
    return value.shape == result.shape and value.stride() == result.stride()


def _steps(value: torch.Tensor) -> list[int]:
    pairs = zip(value.shape, value.stride(), strict=True)
    return [stride for size, stride in pairs if size != 1]


def in_memory_order(value: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor as they lie in memory, without a copy."""
    return value.as_strided((value.numel(),), (1,), value.storage_offset())


def _in_runs(value: torch.Tensor, num_dims: int, ends: Sequence[int]) -> torch.Tensor:
    """With one dimension for each run of dimensions."""
    if not value.dim():
        return value
    sizes = (1,) * (num_dims - value.dim()) + tuple(value.shape)
    starts = (0, *ends[:-1])
    return value.reshape(
        [math.prod(sizes[start:end]) for start, end in zip(starts, ends, strict=True)]
    )


@dataclass(frozen=True, slots=True)
class _Schedule:
    """A program with a buffer for each result; one serves again when nothing reads it any more.

    Attributes:
        calls: What writes, its arguments, and the number of the buffer; -1 for the result.
        buffers: The types of the buffers.
    """

    calls: tuple[tuple[_Writer, tuple[Any, ...], dict[str, Any], int], ...]
    buffers: tuple[torch.dtype, ...]

    def run(
        self, operands: Sequence[torch.Tensor], out: torch.Tensor, buffers: Sequence[torch.Tensor]
    ) -> None:
        """Carry it out on one block."""
        values = [*operands]
        for write, args, kwargs, number in self.calls:
            written = out if number < 0 else buffers[number]
            read = [values[arg.number] if type(arg) is Place else arg for arg in args]
            write(*read, out=written, **kwargs)
            values.append(written)


@functools.lru_cache(maxsize=4096)
def _schedule_of(program: str, num_given: int) -> _Schedule:
    steps = read_program(program)
    last_read = {place: number for number, step in enumerate(steps) for place in step.reads()}
    buffers: list[torch.dtype] = []
    free: list[int] = []
    buffer_of: dict[int, int] = {}
    calls = []
    for number, step in enumerate(steps):
        for place in set(step.reads()):
            if place >= num_given and last_read[place] == number:
                free.append(buffer_of[place])
        chosen = -1
        if number < len(steps) - 1:
            chosen = next((each for each in free if buffers[each] is step.dtype), len(buffers))
            if chosen < len(buffers):
                free.remove(chosen)
            else:
                buffers.append(step.dtype)
            buffer_of[num_given + number] = chosen
        calls.append((FUSIBLE[step.operation].write, step.args, step.kwargs, chosen))
    return _Schedule(tuple(calls), tuple(buffers))


LIBRARY.define("fused(Tensor[] given, str program) -> Tensor")
LIBRARY.impl("fused", _run, "CPU")
LIBRARY.impl("fused", _empty_result, "Meta")
FUSED: Any = torch.ops.legroom.fused.default
FUNCTIONAL[FUSED] = run_whole
