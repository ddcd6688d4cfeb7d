"""Activations that keep their output and one bit for each element, instead of their input.

The output is what the next layer keeps anyway. GELU, SiLU and Mish fall to a minimum and rise from
there: with the side of it that an input lay on, the derivative is a function of the output. See
Note [From the output].
"""

# Note [From the output]
# 1. On either side the derivative is a smooth function of t, the root of the output's height above
#    the minimum; around the minimum the output itself says little about the input. A table of it,
#    evenly spaced in t, is interpolated. Beyond the table the derivative is its last entry.
# 2. What rounding the output to float32 loses is felt at the minimum alone, where the derivative is
#    off by some 1e-4; for numbers around zero the gradient is off by 1e-6 of its norm.
# 3. In other types it would be more (bfloat16) or the table too coarse (float64): there, and for
#    tensors with gaps in memory, the input is kept as PyTorch does.
# 4. Under torch.compile and `legroom.fit` it is PyTorch's own: a plan keeps the input and makes the
#    output again, which is the same bytes, and the same bits.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, final

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from legroom.capture import in_memory_order, real_tensors
from legroom.ways import pack_bits, unpack_bits

_ENTRIES = 1 << 15
_FARTHEST = 12.0
"""Inputs up to here are in the table; float32 outputs beyond are the input, or nothing."""
_BLOCK = 1 << 16

_Function = Callable[[torch.Tensor], torch.Tensor]
_ACTIVATIONS: dict[str, _Function] = {
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
}


def _tables(name: str) -> tuple[float, float, tuple[tuple[float, torch.Tensor], ...]]:
    """See `_made_tables`; real ones, whoever asks first, and whatever the types of the program."""
    with real_tensors():
        return _made_tables(name)


@functools.cache
def _made_tables(name: str) -> tuple[float, float, tuple[tuple[float, torch.Tensor], ...]]:
    """Where the minimum is, how low, and for either side the last t and the derivative's table."""
    activation = _ACTIVATIONS[name]
    grid = torch.linspace(-_FARTHEST, _FARTHEST, 1 << 21, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        heights = activation(grid)
        (slopes,) = torch.autograd.grad(heights.sum(), grid)
    grid, heights = grid.detach(), heights.detach()
    place = int(heights.argmin())
    lowest = heights[place]
    sides = []
    for heights_there, slopes_there in (
        (heights[: place + 1].flip(0), slopes[: place + 1].flip(0)),
        (heights[place:], slopes[place:]),
    ):
        roots = (heights_there - lowest).clamp(min=0).sqrt()
        last = float(roots[-1])
        wanted = torch.linspace(0, last, _ENTRIES, dtype=torch.float64)
        after = torch.searchsorted(roots, wanted).clamp(1, len(roots) - 1)
        before = after - 1
        share = (wanted - roots[before]) / (roots[after] - roots[before]).clamp(min=1e-300)
        found = torch.lerp(slopes_there[before], slopes_there[after], share.clamp(0, 1))
        found[0] = 0.0
        sides.append((last, found.to(torch.float32)))
    return float(grid[place]), float(lowest), tuple(sides)


def _derivative(output: torch.Tensor, is_right: torch.Tensor, name: str) -> torch.Tensor:
    """Of a flat block, from its output and the side of the minimum that each input lay on."""
    _, lowest, sides = _tables(name)
    roots = output.nan_to_num(0.0).sub_(lowest).clamp_(min=0).sqrt_()
    found = []
    for last, table in sides:
        places = roots.mul((_ENTRIES - 1) / last).clamp_(max=_ENTRIES - 1.001)
        whole = places.floor()
        number = whole.to(torch.int32)
        there = table.to(output.device)
        below = torch.index_select(there, 0, number)
        above = torch.index_select(there, 0, number + 1)
        found.append(torch.lerp(below, above, places.sub_(whole)))
    slopes = torch.where(is_right, found[1], found[0])
    return torch.where(output.isnan(), output, slopes)


class _FromOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, name: str) -> torch.Tensor:
        output = _ACTIVATIONS[name](value)
        where, _, _ = _tables(name)
        bits = pack_bits(in_memory_order(value > where).view(torch.uint8))
        ctx.save_for_backward(output, bits)
        ctx.function = name
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        output, bits = ctx.saved_tensors
        made = torch.empty_like(output)
        source, into = in_memory_order(output), in_memory_order(made)
        for first in range(0, source.numel(), _BLOCK):
            block = slice(first, first + _BLOCK)
            sides = unpack_bits(bits[first // 8 : (first + _BLOCK) // 8]).view(torch.bool)
            part = source[block]
            into[block] = _derivative(part, sides[: part.numel()], ctx.function)
        return made.mul_(gradient), None


def _apply(name: str, value: torch.Tensor) -> torch.Tensor:
    """See Note [From the output], rules 3 and 4."""
    suits = (
        value.dtype is torch.float32
        and value.numel() > 0
        and torch.is_grad_enabled()
        and value.requires_grad
        and not torch.compiler.is_compiling()
        and _is_dense(value)
    )
    if not suits:
        return _ACTIVATIONS[name](value)
    result: torch.Tensor = _FromOutput.apply(value, name)  # type: ignore[no-untyped-call]
    return result


def _is_dense(value: torch.Tensor) -> bool:
    """Whether its elements lie in memory without gaps, each once, in whatever order."""
    expected = 1
    extents = zip(value.stride(), value.shape, strict=True)
    for stride, size in sorted(each for each in extents if each[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class _Activation(nn.Module):
    """An activation that keeps its output and a bit for each element.

    Attributes:
        function: Its name here.
    """

    function: ClassVar[str]

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """The activation of each element."""
        return _apply(self.function, value)


@final
class GELU(nn.Module):
    """Like `nn.GELU`, but keeps its output and a bit for each element instead of its input.

    The bit says on which side of the minimum the input lay; gradients are off by 1e-6 or so of
    their norm. float32 only: other types are PyTorch's own.

    Args:
        approximate: `"none"` or `"tanh"`.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """The activation of each element."""
        return _apply("gelu" if self.approximate == "none" else "gelu_tanh", value)

    def extra_repr(self) -> str:
        """As `nn.GELU` has it."""
        return f"approximate={self.approximate!r}"


@final
class SiLU(_Activation):
    """Like `nn.SiLU`, but keeps its output and a bit for each element instead of its input."""

    function = "silu"


@final
class Mish(_Activation):
    """Like `nn.Mish`, but keeps its output and a bit for each element instead of its input."""

    function = "mish"


class _SoftplusFromOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, beta: float, threshold: float) -> torch.Tensor:
        output = functional.softplus(value, beta, threshold)
        ctx.save_for_backward(output)
        ctx.beta = beta
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (output,) = ctx.saved_tensors
        return output.mul(-ctx.beta).expm1_().neg_().mul_(gradient), None, None


@final
class Softplus(nn.Softplus):
    """Like `nn.Softplus`, but keeps its output instead of its input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The activation of each element."""
        if torch.compiler.is_compiling():
            return super().forward(input)
        result: torch.Tensor = _SoftplusFromOutput.apply(input, self.beta, self.threshold)  # type: ignore[no-untyped-call]
        return result
