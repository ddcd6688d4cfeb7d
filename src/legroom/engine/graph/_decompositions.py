"""Formulas that Inductor is given in place of its own, for what operations take in memory.

In goes an operation with its arguments, as `make_fx` traces it; out comes what it is spelled out
as, or `NotImplemented`: then it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from legroom.capture import real_tensors

_aten = torch.ops.aten
_MEAN = 1
"""As `reduction` in PyTorch's operations."""


def _view(value: torch.Tensor, size: list[int]) -> Any:
    """A view where there can be one; some of Inductor's decompositions leave other strides."""
    with real_tensors():
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        try:
            like.view(size)
        except (RuntimeError, ValueError):
            is_possible = False
        else:
            is_possible = True
    if is_possible:
        return NotImplemented
    return value.clone(memory_format=torch.contiguous_format).view(size)


def _nll_loss_backward(
    gradient: torch.Tensor,
    log_probabilities: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> Any:
    """A comparison for each element, which fuses with whatever reads it.

    PyTorch's own writes -1 into zeros. That has memory of the logits' size, which Inductor does not
    write the gradient of the logits into: one copy of them more than eager kernels need.
    """
    dim = 0 if log_probabilities.dim() < 2 else 1
    is_counted = target != ignore_index
    each = gradient / total_weight if reduction == _MEAN else gradient
    if weight is not None:
        each = each * weight[torch.where(is_counted, target, 0)]
    each = torch.where(is_counted, each, 0).unsqueeze(dim)
    shape = [1] * log_probabilities.dim()
    shape[dim] = log_probabilities.shape[dim]
    classes = torch.arange(shape[dim], device=target.device).view(shape)
    return torch.where(classes == target.unsqueeze(dim), -each, 0)


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    _aten.view.default: _view,
    _aten.nll_loss_backward.default: _nll_loss_backward,
    _aten.nll_loss2d_backward.default: _nll_loss_backward,
}
