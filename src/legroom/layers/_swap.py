"""`legroom.swap(model)`: PyTorch's layers replaced by ours, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from legroom.errors import UsageError
from legroom.layers._activations import GELU, Mish, SiLU, Softplus
from legroom.layers._dropout import Dropout
from legroom.layers._known import known_activation
from legroom.layers._norms import GroupNorm, InPlaceBatchNorm, LayerNorm, RMSNorm

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def swap(model: nn.Module) -> list[str]:
    """Replace layers of PyTorch's that keep more than they need by ours; returns their paths.

    GELU, SiLU, Mish, Softplus, layer, RMS, group and batch norms and dropouts. Parameters and
    buffers are the very same objects, so optimizers and saved models fit. An activation that
    somebody wrote as a module of their own is known by what it computes. Layers with hooks and
    subclasses stay as they are.

    Raises:
        UsageError: `model` is no module, or is itself such a layer.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"swap the layers of a module, not of {type(model).__name__}")
    if _like(model) is not None:
        name = type(model).__name__
        raise UsageError(f"{name} has no layers; write legroom.layers.{name} in its place")
    made: dict[nn.Module, nn.Module] = {}
    swapped = []
    for path, module in list(model.named_modules(remove_duplicate=False)):
        ours = made.get(module)
        if ours is None:
            ours = None if any(getattr(module, name) for name in _HOOKS) else _like(module)
        if ours is None:
            continue
        made[module] = ours
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, ours)
        swapped.append(path)
    return swapped


def _like(module: nn.Module) -> nn.Module | None:
    """Ours for a layer of PyTorch's, with its weights; None where there is none."""
    make = _MADE.get(type(module))
    if make is None:
        return _like_somebodys(module)
    ours = make(module)
    for name, parameter in module.named_parameters(recurse=False):
        ours.register_parameter(name, parameter)
    for name, buffer in module.named_buffers(recurse=False):
        ours.register_buffer(
            name, buffer, persistent=name not in module._non_persistent_buffers_set
        )
    ours.training = module.training
    return ours


def _layer_norm(module: Any) -> nn.Module:
    return LayerNorm(
        module.normalized_shape, module.eps, module.elementwise_affine,
        bias=module.bias is not None, device="meta",
    )  # fmt: skip


def _rms_norm(module: Any) -> nn.Module:
    return RMSNorm(module.normalized_shape, module.eps, module.elementwise_affine, device="meta")


def _group_norm(module: Any) -> nn.Module:
    return GroupNorm(
        module.num_groups, module.num_channels, module.eps, module.affine, device="meta"
    )


def _batch_norm(module: Any) -> nn.Module:
    return InPlaceBatchNorm(
        module.num_features, module.eps, module.momentum, module.affine,
        module.track_running_stats, activation="identity",
    )  # fmt: skip


_MADE: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.GELU: lambda module: GELU(module.approximate),
    nn.SiLU: lambda module: SiLU(),
    nn.Mish: lambda module: Mish(),
    nn.Softplus: lambda module: Softplus(module.beta, module.threshold),
    nn.Dropout: lambda module: Dropout(module.p, module.inplace),
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
}
_LIKE: dict[Callable[..., torch.Tensor], Callable[..., nn.Module]] = {
    functional.gelu: GELU,
    functional.silu: SiLU,
    functional.mish: Mish,
}


def _like_somebodys(module: nn.Module) -> nn.Module | None:
    """Ours for a module that computes the same of every element, whatever it is called."""
    has_state = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    is_foreign = not type(module).__module__.startswith(("torch.", "legroom."))
    name = type(module).__name__.lower()
    looks_so = any(part in name for part in ("gelu", "silu", "swish", "mish"))
    if has_state or not is_foreign or not looks_so or list(module.children()):
        return None
    known = known_activation(module)
    if known is None:
        return None
    function, options = known
    ours = _LIKE[function](**options)
    ours.training = module.training
    return ours
