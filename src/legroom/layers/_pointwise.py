"""Activations by name, computed and differentiated in memory that is there already.

In go tensors to read from and to write into; nothing of their size is made. To add one, add a line
to the table: blocks in chunks, the rewrite that finds them and the tests pick it up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.nn import functional

from legroom.errors import UsageError
from legroom.layers._known import known_function

_aten: Any = torch.ops.aten
_QUICK = 1.702


@final
@dataclass(frozen=True, slots=True)
class Pointwise:
    """A function of single elements.

    Attributes:
        function: The same as PyTorch has it; tells whether something computes it.
        compute: Writes the function of the first tensor into the second, which may be the same.
        chain: Multiplies the first tensor, a gradient, with the derivative at the second, in place.
            The second may be overwritten.
    """

    function: Callable[[torch.Tensor], torch.Tensor]
    compute: Callable[[torch.Tensor, torch.Tensor], Any]
    chain: Callable[[torch.Tensor, torch.Tensor], Any]


def _quick_gelu(value: torch.Tensor) -> torch.Tensor:
    return value * torch.sigmoid(_QUICK * value)


def _compute_quick_gelu(value: torch.Tensor, into: torch.Tensor) -> None:
    torch.mul(value, _QUICK, out=into)
    _aten.silu_(into).div_(_QUICK)


def _chain_quick_gelu(gradient: torch.Tensor, value: torch.Tensor) -> None:
    _aten.silu_backward.grad_input(gradient, value.mul_(_QUICK), grad_input=gradient)


def _compute_squared(value: torch.Tensor, into: torch.Tensor) -> None:
    torch.clamp(value, min=0, out=into).square_()


def _gelu(approximate: str) -> Pointwise:
    return Pointwise(
        functools.partial(functional.gelu, approximate=approximate),
        lambda value, into: _aten.gelu.out(value, approximate=approximate, out=into),
        lambda gradient, value: _aten.gelu_backward.grad_input(
            gradient, value, approximate=approximate, grad_input=gradient
        ),
    )


POINTWISE: dict[str, Pointwise] = {
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "silu": Pointwise(
        functional.silu,
        lambda value, into: _aten.silu.out(value, out=into),
        lambda gradient, value: _aten.silu_backward.grad_input(
            gradient, value, grad_input=gradient
        ),
    ),
    "quick_gelu": Pointwise(_quick_gelu, _compute_quick_gelu, _chain_quick_gelu),
    "mish": Pointwise(
        functional.mish,
        lambda value, into: _aten.mish.out(value, out=into),
        lambda gradient, value: gradient.copy_(_aten.mish_backward(gradient, value)),
    ),
    "relu": Pointwise(
        functional.relu,
        lambda value, into: torch.clamp(value, min=0, out=into),
        lambda gradient, value: _aten.threshold_backward.grad_input(
            gradient, value, 0, grad_input=gradient
        ),
    ),
    "relu_squared": Pointwise(
        lambda value: functional.relu(value).square(),
        _compute_squared,
        lambda gradient, value: gradient.mul_(value.clamp_(min=0).mul_(2)),
    ),
    "leaky_relu": Pointwise(
        functional.leaky_relu,
        lambda value, into: _aten.leaky_relu.out(value, 0.01, out=into),
        lambda gradient, value: _aten.leaky_relu_backward.grad_input(
            gradient, value, 0.01, False, grad_input=gradient
        ),
    ),
    "elu": Pointwise(
        functional.elu,
        lambda value, into: _aten.elu.out(value, out=into),
        lambda gradient, value: _aten.elu_backward.grad_input(
            gradient, 1, 1, 1, False, value, grad_input=gradient
        ),
    ),
    "softplus": Pointwise(
        functional.softplus,
        lambda value, into: _aten.softplus.out(value, out=into),
        lambda gradient, value: _aten.softplus_backward.grad_input(
            gradient, value, 1, 20, grad_input=gradient
        ),
    ),
    "tanh": Pointwise(
        torch.tanh,
        lambda value, into: torch.tanh(value, out=into),
        lambda gradient, value: _aten.tanh_backward.grad_input(
            gradient, value.tanh_(), grad_input=gradient
        ),
    ),
    "sigmoid": Pointwise(
        torch.sigmoid,
        lambda value, into: torch.sigmoid(value, out=into),
        lambda gradient, value: _aten.sigmoid_backward.grad_input(
            gradient, value.sigmoid_(), grad_input=gradient
        ),
    ),
}
"""By the name that our operations are told."""


def pointwise_name(compute: Callable[[torch.Tensor], Any]) -> str | None:
    """The name of what something computes of every element; None where the table has no such."""
    return known_function(compute, ((name, each.function) for name, each in POINTWISE.items()))


def named_activation(given: str | Callable[[torch.Tensor], Any]) -> str:
    """The name of an activation that is given by name, as a function or as a module.

    Raises:
        UsageError: It is none of the table.
    """
    name = given if isinstance(given, str) else pointwise_name(given)
    if name is None or name not in POINTWISE:
        what = repr(given) if isinstance(given, str) else getattr(given, "__name__", repr(given))
        raise UsageError(
            f"activation {what} is none that is known; expected one of {', '.join(POINTWISE)}, or "
            "what computes the same"
        )
    return name
