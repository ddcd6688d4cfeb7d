"""Operations of our own into which joint graphs are taken apart; PyTorch knows them as `legroom::`.

Each does with PyTorch's kernels what the operation did that it stands for, bit for bit. See Note
[Taken apart].
"""

# Note [Taken apart]
# 1. A dropout draws random numbers and multiplies. Apart, what it returns can be made again from
#    the mask by a multiplication; as one operation, only by drawing the numbers again.
# 2. On CUDA one kernel does both and draws its numbers otherwise: there it stays whole.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY: Any = torch.library.Library("legroom", "DEF")  # type: ignore[no-untyped-call]
"""Where our operations are defined; they go when it does."""


def _dropout_mask(value: torch.Tensor, kept: float) -> torch.Tensor:
    return torch.empty_like(value, dtype=torch.bool).bernoulli_(kept)


def _apply_mask(value: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return value.mul(mask).mul_(scale)


LIBRARY.define(
    "dropout_mask(Tensor value, float kept) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
LIBRARY.impl("dropout_mask", _dropout_mask, "CompositeExplicitAutograd")
LIBRARY.define("apply_mask(Tensor value, Tensor mask, float scale) -> Tensor")
LIBRARY.impl("apply_mask", _apply_mask, "CompositeExplicitAutograd")


def _dropout(value: torch.Tensor, p: float, train: bool | None) -> Any:
    if train is False or value.device.type != "cpu":
        return NotImplemented
    kept = 1.0 - p
    mask = torch.ops.legroom.dropout_mask(value, kept)
    return torch.ops.legroom.apply_mask(value, mask, 1.0 / kept if kept else 0.0), mask


def _dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    """Eager multiplies with a mask that it has scaled, rounded to the gradient's own type.

    PyTorch's operation, which stands for it in a joint graph, rounds once, at the end. In float32
    the bits are the same.
    """
    if grad.dtype in (torch.float32, torch.float64):
        return NotImplemented
    return grad * (mask.to(grad.dtype) * scale)


TAKEN_APART: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_dropout.default: _dropout,
    torch.ops.aten.native_dropout_backward.default: _dropout_backward,
}
"""What AOTAutograd does in place of an operation."""
