"""Two linear layers with an activation between them as one operation that never holds the middle.

In go rows and the layers' weights; out comes `down(activation(up(rows)))`, or with a gate
`down(activation(gate(rows)) * up(rows))`. See Note [Chunks of rows].
"""

# Note [Chunks of rows]
# 1. The middle of such a block is some four times as wide as what goes in, and plain it is held two
#    to four times. Rows do not depend on one another, so it is made for some rows at a time and
#    dropped; what goes in is held, and nothing else.
# 2. Backward makes the middle of each chunk once more: one product more than the six that a plain
#    block takes, and two more than nine with a gate.
# 3. Gradients of weights are added up over the chunks in place, narrow types in float32. To the
#    memory of the chunks that adds part of one.
# 4. A chunk has as few rows as a product runs well with: what there is in memory of the middle is a
#    few buffers of that size, made once and written over.
# 5. Two operations that PyTorch knows, so that torch.compile and plans see one thing each.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula

from legroom.capture import LIBRARY
from legroom.errors import UsageError
from legroom.layers._pointwise import POINTWISE, named_activation

_ROWS, _ROWS_ELSEWHERE = 256, 1024
"""Of a chunk on a CPU, where more run no faster; and on other devices, where nobody measured."""
_PARTS = 4
"""Of a chunk's size, in which products of narrow types are made and become float32."""


def rows_at_a_time(device: torch.device) -> int:
    """How many rows a chunk has; see Note [Chunks of rows], rule 4."""
    return _ROWS if device.type == "cpu" else _ROWS_ELSEWHERE


def chunked_mlp(  # noqa: PLR0913 - three layers
    value: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    *,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    gate_bias: torch.Tensor | None = None,
    activation: str = "gelu",
) -> torch.Tensor:
    """`F.linear(activation(F.linear(value, up)), down)` without holding what is between.

    Args:
        value: What the block reads, `(..., width)`.
        up: The first layer's weight, `(hidden, width)`.
        down: The last layer's weight, `(out, hidden)`.
        gate: A second weight like `up`: then the activation is of the gate, times what `up` gives.
        activation: Its name; see `legroom.layers.POINTWISE`.

    Raises:
        UsageError: Shapes or types do not fit together, or there is no such activation.

    Cost: `up` and `gate` are computed once more. Saves: everything as wide as `hidden` but a chunk.
    """
    _check(value, (up, gate, down), (up_bias, gate_bias, down_bias), activation)
    operands = [value, up, up_bias, gate, gate_bias, down, down_bias]
    if torch.is_autocast_enabled(value.device.type) and value.dtype is not torch.float64:
        narrow = torch.get_autocast_dtype(value.device.type)
        operands = [None if each is None else each.to(narrow) for each in operands]
    rows, *weights = operands
    assert rows is not None, "bug in legroom: an input that is none"
    made: torch.Tensor = torch.ops.legroom.chunked_mlp(
        rows.reshape(-1, value.shape[-1]), *weights, activation
    )
    return made.view(*value.shape[:-1], len(down))


@final
class ChunkedMLP(nn.Module):
    """Two linear layers and an activation, or three with a gate, that never hold the middle.

    Args:
        width: Features that go in, and come out.
        hidden: Features in the middle.
        activation: A name, a function or a module that computes one of `POINTWISE`.
        gated: Whether there is a gate, as in Llama's blocks.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: Any = "gelu",
        gated: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.activation = named_activation(activation)
        self.up = nn.Linear(width, hidden, **made)
        self.gate = nn.Linear(width, hidden, **made) if gated else None
        self.down = nn.Linear(hidden, width, **made)

    @classmethod
    def from_linears(
        cls, up: nn.Linear, activation: Any, down: nn.Linear, *, gate: nn.Linear | None = None
    ) -> ChunkedMLP:
        """One that takes these very layers over: their parameters are its own.

        Raises:
            UsageError: Something is no linear layer, they do not fit, or the activation is unknown.
        """
        for each in (up, down, *(() if gate is None else (gate,))):
            if not isinstance(each, nn.Linear):
                raise UsageError(f"expected a torch.nn.Linear, not {type(each).__name__}")
        block = cls(1, 1, activation=activation, device="meta")
        block.up, block.gate, block.down = up, gate, down
        weights = up.weight, None if gate is None else gate.weight, down.weight
        _check(up.weight[:1], weights, (None, None, None), block.activation)
        return block.train(up.training)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """What the layers make of it, one after the other."""
        gate = self.gate
        return chunked_mlp(
            value,
            self.up.weight,
            self.down.weight,
            up_bias=self.up.bias,
            down_bias=self.down.bias,
            gate=None if gate is None else gate.weight,
            gate_bias=None if gate is None else gate.bias,
            activation=self.activation,
        )

    def extra_repr(self) -> str:
        """What is between the layers."""
        return f"activation={self.activation!r}"


def _check(
    value: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor],
    biases: tuple[torch.Tensor | None, ...],
    activation: str,
) -> None:
    named_activation(activation)
    up, gate, down = weights
    is_flat = up.dim() == 2 and down.dim() == 2 and value.dim() > 0
    if not is_flat or value.shape[-1] != up.shape[1] or up.shape[0] != down.shape[1]:
        raise UsageError(
            f"an input of shape {tuple(value.shape)} and weights of shapes {tuple(up.shape)} and "
            f"{tuple(down.shape)} do not fit; expected (..., width), (hidden, width) and "
            "(out, hidden)"
        )
    if gate is not None and gate.shape != up.shape:
        raise UsageError(
            f"a gate of shape {tuple(gate.shape)} does not fit; expected {tuple(up.shape)}"
        )
    for weight, bias in zip(weights, biases, strict=True):
        if bias is not None and (weight is None or bias.shape != weight.shape[:1]):
            needed = "none" if weight is None else tuple(weight.shape[:1])
            raise UsageError(f"a bias of shape {tuple(bias.shape)} does not fit; expected {needed}")
    if not value.is_floating_point():
        raise UsageError(f"an input of {value.dtype} has no gradient; expected real numbers")


# The two operations ------------------------------------------------------------------------------


def _chunks(rows: torch.Tensor) -> Iterator[slice]:
    count = rows_at_a_time(rows.device)
    for start in range(0, len(rows), count):
        yield slice(start, min(start + count, len(rows)))


def _buffer(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(min(len(rows), rows_at_a_time(rows.device)), len(weight))


def _linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, into: torch.Tensor
) -> torch.Tensor:
    if bias is None:
        return torch.mm(rows, weight.t(), out=into)
    return torch.addmm(bias, rows, weight.t(), out=into)


def _forward(
    rows: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor | None,
    gate: torch.Tensor | None,
    gate_bias: torch.Tensor | None,
    *rest: Any,
) -> torch.Tensor:
    down, down_bias, activation = rest
    compute = POINTWISE[activation].compute
    made = _empty_forward(rows, up, up_bias, gate, gate_bias, *rest)
    buffer = _buffer(rows, up)
    gates = None if gate is None else torch.empty_like(buffer)
    for part in _chunks(rows):
        chunk = rows[part]
        hidden = _linear(chunk, up, up_bias, buffer[: len(chunk)])
        if gate is None or gates is None:
            compute(hidden, hidden)
        else:
            opened = _linear(chunk, gate, gate_bias, gates[: len(chunk)])
            compute(opened, opened)
            hidden.mul_(opened)
        _linear(hidden, down, down_bias, made[part])
    return made


class _Sum:
    """A gradient that is added up over chunks; see Note [Chunks of rows], rule 3.

    Args:
        like: What it is the gradient of.
        part_elements: How much may be made beside it at a time.
    """

    def __init__(self, like: torch.Tensor | None, is_wanted: bool, part_elements: int) -> None:
        self._like = like if is_wanted else None
        self._part_elements = part_elements
        if self._like is not None:
            is_exact = self._like.dtype in (torch.float32, torch.float64)
            wide = self._like.dtype if is_exact else torch.float32
            self._total = torch.zeros_like(self._like, dtype=wide)

    def add_rows(self, rows: torch.Tensor) -> None:
        """Add the sum of all rows."""
        if self._like is None:
            return
        is_wide = self._total.dtype is rows.dtype  # otherwise they become so before they are summed
        count = len(rows) if is_wide else -(-len(rows) // _PARTS)
        for start in range(0, len(rows), count):
            self._total += rows[start : start + count].sum(0, dtype=self._total.dtype)

    def add_product(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Add `left.T @ right`."""
        if self._like is None:
            return
        if self._total.dtype is left.dtype:
            self._total.addmm_(left.t(), right)
            return
        count = max(1, self._part_elements // max(1, right.shape[1]))
        for start in range(0, left.shape[1], count):
            part = slice(start, start + count)
            self._total[part] += left[:, part].t() @ right

    def take(self, otherwise: torch.Tensor) -> torch.Tensor:
        """The gradient, which is let go here; an empty tensor where none is wanted."""
        if self._like is None:
            return otherwise.new_empty(0)
        total = self._total.to(self._like.dtype)
        del self._total
        return total


def _backward(
    wanted: list[bool],
    gradient: torch.Tensor,
    rows: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor, ...]:
    gate, gate_bias, down, down_bias, activation = rest
    compute, chain = POINTWISE[activation].compute, POINTWISE[activation].chain
    buffer = _buffer(rows, up)
    other = torch.empty_like(buffer)
    more = [torch.empty_like(buffer) for _ in range(0 if gate is None else 2)]
    weights = (up, up_bias, gate, gate_bias, down, down_bias)
    sums = [
        _Sum(each, needed, buffer.numel()) for each, needed in zip(weights, wanted[1:], strict=True)
    ]
    to_up, to_up_bias, to_gate, to_gate_bias, to_down, to_down_bias = sums
    to_rows = torch.empty_like(rows) if wanted[0] else rows.new_empty(0)
    for part in _chunks(rows):
        chunk, given = rows[part], gradient[part]
        hidden = _linear(chunk, up, up_bias, buffer[: len(chunk)])
        made = other[: len(chunk)]
        to_down_bias.add_rows(given)
        if gate is None:
            compute(hidden, made)
            to_down.add_product(given, made)
            slope = torch.mm(given, down, out=made)
            chain(slope, hidden)
        else:
            before, opened = (each[: len(chunk)] for each in more)
            _linear(chunk, gate, gate_bias, before)
            compute(before, opened)
            torch.mul(hidden, opened, out=made)
            to_down.add_product(given, made)
            torch.mm(given, down, out=made)
            slope = opened.mul_(made)
            chain(made.mul_(hidden), before)
            to_gate_bias.add_rows(made)
            to_gate.add_product(made, chunk)
        to_up_bias.add_rows(slope)
        to_up.add_product(slope, chunk)
        if wanted[0]:
            torch.mm(slope, up, out=to_rows[part])
            if gate is not None:
                to_rows[part].addmm_(made, gate)
    del buffer, other, more
    return (to_rows, *(each.take(rows) for each in sums))


def _empty_forward(rows: torch.Tensor, *rest: Any) -> torch.Tensor:
    down = rest[4]
    return rows.new_empty(len(rows), len(down))


def _empty_backward(
    wanted: list[bool], gradient: torch.Tensor, *operands: Any
) -> tuple[torch.Tensor, ...]:
    rows = operands[0]
    return tuple(
        torch.empty_like(each) if needed and each is not None else rows.new_empty(0)
        for each, needed in zip(operands[:7], wanted, strict=True)
    )


_OPERANDS = (
    "Tensor rows, Tensor up, Tensor? up_bias, Tensor? gate, Tensor? gate_bias, Tensor down, "
    "Tensor? down_bias, str activation"
)
LIBRARY.define(f"chunked_mlp({_OPERANDS}) -> Tensor")
LIBRARY.impl("chunked_mlp", _forward, "CompositeExplicitAutograd")
LIBRARY.impl("chunked_mlp", _empty_forward, "Meta")
LIBRARY.define(
    f"chunked_mlp_backward(bool[] wanted, Tensor gradient, {_OPERANDS}) -> "
    f"({', '.join(['Tensor'] * 7)})"
)
LIBRARY.impl("chunked_mlp_backward", _backward, "CompositeExplicitAutograd")
LIBRARY.impl("chunked_mlp_backward", _empty_backward, "Meta")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    wanted = list(ctx.needs_input_grad[:7])
    made = torch.ops.legroom.chunked_mlp_backward(
        wanted, gradient, *ctx.saved_tensors, ctx.activation
    )
    return (
        *(each if needed else None for each, needed in zip(made, wanted, strict=True)),
        None,
    )


torch.library.register_autograd(
    "legroom::chunked_mlp", _differentiate, setup_context=_keep, lib=LIBRARY
)


# What they cost where they cannot be measured ----------------------------------------------------


def _middle_flops(rows: Any, up: Any, gate: Any) -> int:
    return int(2 * rows[0] * up[0] * up[1] * (1 if gate is None else 2))


@register_flop_formula(torch.ops.legroom.chunked_mlp)
def _forward_flops(rows: Any, up: Any, up_bias: Any, gate: Any, *rest: Any, **_: Any) -> int:
    down = rest[1]
    return _middle_flops(rows, up, gate) + int(2 * rows[0] * down[0] * down[1])


@register_flop_formula(torch.ops.legroom.chunked_mlp_backward)
def _backward_flops(wanted: Any, gradient: Any, rows: Any, *rest: Any, **_: Any) -> int:
    up, gate, down = rest[0], rest[2], rest[4]
    last = int(2 * rows[0] * down[0] * down[1])
    parts = 1 + bool(wanted[0]) + bool(wanted[1])
    return parts * _middle_flops(rows, up, gate) + (1 + bool(wanted[5])) * last
