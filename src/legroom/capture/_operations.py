"""Operations of our own into which joint graphs are taken apart; PyTorch knows them as `legroom::`.

Each does with PyTorch's kernels what the operation did that it stands for, bit for bit. See Note
[Taken apart].
"""

# Note [Taken apart]
# 1. A dropout draws random numbers and multiplies. Apart, what it returns can be made again from
#    the mask by a multiplication; as one operation, only by drawing the numbers again.
# 2. Eager PyTorch on a CPU divides the mask by the share that is kept, in the tensor's own type,
#    and multiplies with that. `aten.native_dropout`, which stands for it in a joint graph,
#    multiplies with the inverse: at every fourth probability (0.04, 0.053) other bits.
# 3. Its gradient is given the inverse. The share is what a person may have written down, to twelve
#    digits, if that has this inverse.
# 4. On CUDA one kernel does it all and draws its numbers otherwise: there it stays whole.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY: Any = torch.library.Library("legroom", "DEF")  # type: ignore[no-untyped-call]
"""Where our operations are defined; they go when it does."""


def _dropout_mask(value: torch.Tensor, kept: float) -> torch.Tensor:
    return torch.empty_like(value, dtype=torch.bool).bernoulli_(kept)


def _apply_mask(value: torch.Tensor, mask: torch.Tensor, kept: float) -> torch.Tensor:
    scaled = mask.to(value.dtype).div_(kept)
    return scaled.mul_(value) if scaled.stride() == value.stride() else value * scaled


LIBRARY.define(
    "dropout_mask(Tensor value, float kept) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
LIBRARY.impl("dropout_mask", _dropout_mask, "CompositeExplicitAutograd")
LIBRARY.define("apply_mask(Tensor value, Tensor mask, float kept) -> Tensor")
LIBRARY.impl("apply_mask", _apply_mask, "CompositeExplicitAutograd")
APPLY_MASK: Any = torch.ops.legroom.apply_mask.default


def _apply_mask_functional(value: torch.Tensor, mask: torch.Tensor, kept: float) -> torch.Tensor:
    return value * (mask.to(value.dtype) / kept)


FUNCTIONAL: dict[Any, Callable[..., Any]] = {
    APPLY_MASK: _apply_mask_functional,
}
"""By operation of ours, what Inductor traces instead: nothing is written in place."""


def _dropout(value: torch.Tensor, p: float, train: bool | None) -> Any:
    if train is False or p >= 1 or value.device.type != "cpu":
        return NotImplemented
    kept = 1.0 - p
    mask = torch.ops.legroom.dropout_mask(value, kept)
    return torch.ops.legroom.apply_mask(value, mask, kept), mask


def _dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    if scale <= 0 or grad.device.type != "cpu":
        return NotImplemented
    return torch.ops.legroom.apply_mask(grad, mask, _kept(scale))


def _kept(scale: float) -> float:
    """See Note [Taken apart], rule 3."""
    written = 1.0 - round(1.0 - 1.0 / scale, 12)
    return written if written > 0 and 1.0 / written == scale else 1.0 / scale


TAKEN_APART: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_dropout.default: _dropout,
    torch.ops.aten.native_dropout_backward.default: _dropout_backward,
}
"""What AOTAutograd does in place of an operation."""
