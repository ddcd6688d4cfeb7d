"""Losses whose one number drags the memory of all its terms along, and those of ours that do not.

In goes a joint graph, which is changed. See Note [Losses].
"""

# Note [Losses]
# 1. Some losses are computed term by term into what they return, which then shrinks to one number
#    and keeps its memory: a mean square of a gigabyte lives as long as somebody holds the loss.
#    (Seen on torch 2.13; fake tensors do not show it.)
# 2. A copy of the number has its bits and four bytes: operations of ours return that.

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from legroom.capture._operations import FUNCTIONAL, LIBRARY

aten = torch.ops.aten

_NONE = 0
_MEAN = 1


def _loss(value: Tensor, target: Tensor, reduction: int = _MEAN, *_: Any, **__: Any) -> Tensor:
    """What such a loss returns, in as much memory as its terms take."""
    shape = torch.broadcast_shapes(value.shape, target.shape)  # type: ignore[no-untyped-call]
    terms = value.new_empty(shape, dtype=torch.result_type(value, target))
    return terms if reduction == _NONE else terms.as_strided((), ())


def _weighed_loss(
    value: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    return _loss(value, target, reduction)


LARGE_LOSSES: dict[Any, Callable[..., Tensor]] = {
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.soft_margin_loss.default: _loss,
    aten.binary_cross_entropy.default: _weighed_loss,
}
"""What holds more than it shows, and what it makes, told on tensors without values."""


def _define(func: Any) -> Any:
    """The operation with a copy of its number as result."""
    name = f"{func._schema.name.removeprefix('aten::')}_number"
    LIBRARY.define(name + str(func._schema).removeprefix(func._schema.name))
    LIBRARY.impl(name, lambda *args: func(*args).clone(), "CompositeExplicitAutograd")
    made = getattr(torch.ops.legroom, name).default
    FUNCTIONAL[made] = func
    return made


_NUMBERS = {func: _define(func) for func in LARGE_LOSSES}


def copy_losses(joint: fx.GraphModule) -> None:
    """Let such losses return a copy of their number; see Note [Losses], rule 2."""
    for node in joint.graph.nodes:
        value = node.meta.get("val")
        if node.target in _NUMBERS and isinstance(value, Tensor) and not value.dim():
            node.target = _NUMBERS[node.target]
            with value.fake_mode if isinstance(value, FakeTensor) else contextlib.nullcontext():
                node.meta["val"] = torch.empty_like(value)
