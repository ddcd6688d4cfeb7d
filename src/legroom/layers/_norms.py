"""Norms that keep their output, which the next layer keeps anyway, instead of their input.

The normalised input is the output less the bias, over the weight. See Note [Norms].
"""

# Note [Norms]
# 1. Weight and bias are PyTorch's own, by name and meaning: a saved model fits both ways.
# 2. Where a weight is near nothing, the output says nothing about the input. Before each forward
#    pass that keeps the output the weights are looked at: if the smallest is less than a hundredth
#    of the largest weight or bias, the input is kept, as PyTorch does.
# 3. PyTorch's own gradient is used, of the normalised input, whose mean is 0 and deviation 1.
# 4. Under torch.compile and `legroom.fit` they are PyTorch's own: a plan keeps the input and makes
#    the output again, which is the same bytes, and the same bits.

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from legroom.errors import UsageError

_SMALLEST = 0.01
_ACTIVATIONS = ("identity", "leaky_relu", "elu")


def _tells(weight: torch.Tensor | None, bias: torch.Tensor | None) -> bool:
    """Whether outputs tell what inputs were; see Note [Norms], rule 2."""
    if weight is None:
        return True
    largest = weight.abs().amax()
    if bias is not None:
        largest = torch.maximum(largest, bias.abs().amax())
    return bool(weight.abs().amin() >= _SMALLEST * largest)


def _keeps_output(
    value: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> bool:
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and value.is_floating_point()
        and value.numel() > 0
        and (weight is None or weight.dtype is value.dtype)
        and _tells(weight, bias)
    )


def _per_channel(value: torch.Tensor, num_dims: int) -> torch.Tensor:
    return value.view(1, -1, *[1] * (num_dims - 2))


def _normalised(
    output: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """What the weight was multiplied with."""
    value = output.clone() if bias is None else output - bias
    return value if weight is None else value.div_(weight)


class _LayerNormFromOutput(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, weight: Any, bias: Any, shape: Any, eps: float
    ) -> Any:
        output, _, deviation = torch.native_layer_norm(value, shape, weight, bias, eps)
        ctx.save_for_backward(output, deviation, weight, bias)
        ctx.shape = shape
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        output, deviation, weight, bias = ctx.saved_tensors
        value = _normalised(output, weight, bias)
        wanted = [True, weight is not None, bias is not None]
        to_value, to_weight, to_bias = torch.ops.aten.native_layer_norm_backward(
            gradient, value, ctx.shape, torch.zeros_like(deviation), torch.ones_like(deviation),
            weight, bias, wanted,
        )  # fmt: skip
        return to_value.mul_(deviation), to_weight, to_bias, None, None


@final
class LayerNorm(nn.LayerNorm):
    """Like `nn.LayerNorm`, but keeps its output instead of its input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The norm over the last dimensions."""
        if not _keeps_output(input, self.weight, self.bias):
            return super().forward(input)
        shape = list(self.normalized_shape)
        result: torch.Tensor = _LayerNormFromOutput.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, shape, self.eps
        )
        return result


class _RMSNormFromOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: Any, dims: Any, eps: float) -> Any:
        deviation = value.square().mean(dims, keepdim=True).add_(eps).rsqrt_()
        output = value * deviation
        if weight is not None:
            output *= weight
        ctx.save_for_backward(output, deviation, weight)
        ctx.dims = dims
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        output, deviation, weight = ctx.saved_tensors
        value = _normalised(output, weight, None)
        others = [dim for dim in range(value.dim()) if dim - value.dim() not in ctx.dims]
        to_weight = None if weight is None else (gradient * value).sum(others)
        inner = gradient if weight is None else gradient * weight
        shared = (inner * value).mean(ctx.dims, keepdim=True)
        return value.mul_(shared).neg_().add_(inner).mul_(deviation), to_weight, None, None


@final
class RMSNorm(nn.RMSNorm):
    """Like `nn.RMSNorm`, but keeps its output instead of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm over the last dimensions."""
        if not _keeps_output(x, self.weight, None):
            return super().forward(x)
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        dims = tuple(range(-len(self.normalized_shape), 0))
        result: torch.Tensor = _RMSNormFromOutput.apply(x, self.weight, dims, eps)  # type: ignore[no-untyped-call]
        return result


class _GroupNormFromOutput(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, weight: Any, bias: Any, groups: int, eps: float
    ) -> Any:
        num_rows, num_channels, *places = value.shape
        size = torch.Size(places).numel()
        output, _, deviation = torch.ops.aten.native_group_norm(
            value.contiguous(), weight, bias, num_rows, num_channels, size, groups, eps
        )
        ctx.save_for_backward(output, deviation, weight, bias)
        ctx.sizes = (num_rows, num_channels, size, groups)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        output, deviation, weight, bias = ctx.saved_tensors
        num_dims = output.dim()
        parts = [None if each is None else _per_channel(each, num_dims) for each in (weight, bias)]
        value = _normalised(output, *parts)
        wanted = [True, weight is not None, bias is not None]
        to_value, to_weight, to_bias = torch.ops.aten.native_group_norm_backward(
            gradient.contiguous(), value, torch.zeros_like(deviation), torch.ones_like(deviation),
            weight, *ctx.sizes, wanted,
        )  # fmt: skip
        num_rows, _, _, groups = ctx.sizes
        in_groups = to_value.view(num_rows, groups, -1)
        in_groups *= deviation.view(num_rows, groups, 1)
        return to_value, to_weight, to_bias, None, None


@final
class GroupNorm(nn.GroupNorm):
    """Like `nn.GroupNorm`, but keeps its output instead of its input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The norm over each group of channels."""
        if not _keeps_output(input, self.weight, self.bias):
            return super().forward(input)
        result: torch.Tensor = _GroupNormFromOutput.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.num_groups, self.eps
        )
        return result


class _BatchNormFromOutput(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, weight: Any, bias: Any, state: Any, about: Any
    ) -> torch.Tensor:
        momentum, eps, activation, slope = about
        output: torch.Tensor
        output, _, deviation = torch.ops.aten.native_batch_norm(
            value, weight, bias, *state, True, momentum, eps
        )
        if activation == "leaky_relu":
            functional.leaky_relu_(output, slope)
        elif activation == "elu":
            functional.elu_(output, slope)
        ctx.save_for_backward(output, deviation, weight, bias)
        ctx.about = eps, activation, slope
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        output, deviation, weight, bias = ctx.saved_tensors
        eps, activation, slope = ctx.about
        value = output
        if activation == "leaky_relu":
            gradient = torch.where(output > 0, gradient, gradient * slope)
            value = torch.where(output > 0, output, output / slope)
        elif activation == "elu":
            gradient = torch.where(output > 0, gradient, gradient * (output + slope))
            value = torch.where(output > 0, output, torch.log1p(output / slope))
        parts = [
            None if each is None else _per_channel(each, output.dim()) for each in (weight, bias)
        ]
        value = _normalised(value, *parts)
        wanted = [True, weight is not None, bias is not None]
        to_value, to_weight, to_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, value, weight, None, None, torch.zeros_like(deviation),
            torch.ones_like(deviation), True, eps, wanted,
        )  # fmt: skip
        to_value *= _per_channel(deviation, output.dim())
        return to_value, to_weight, to_bias, None, None


@final
class InPlaceBatchNorm(_BatchNorm):
    """A batch norm and an activation that can be undone, of which only the output is kept.

    Weights, statistics and their names are those of `nn.BatchNorm2d` (or 1d, 3d).

    Args:
        activation: `"identity"`, `"leaky_relu"` or `"elu"`; a ReLU cannot be undone.
        slope: Of the leaky ReLU below zero; what ELU goes down to.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        activation: str = "leaky_relu",
        slope: float | None = None,
    ) -> None:
        if activation not in _ACTIVATIONS:
            raise UsageError(
                f"activation {activation!r} cannot be undone; write {', '.join(_ACTIVATIONS)}"
            )
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.activation = activation
        self.slope = (1.0 if activation == "elu" else 0.01) if slope is None else slope
        if self.slope <= 0:
            raise UsageError(f"slope {self.slope!r} cannot be undone; write a number above 0")

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected two dimensions or more, got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The norm of each channel, and the activation."""
        keeps = self.training and _keeps_output(input, self.weight, self.bias)
        if not keeps:
            return self._activated(super().forward(input))
        self._check_input_dim(input)
        momentum, state = 0.0 if self.momentum is None else self.momentum, (None, None)
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
            state = (self.running_mean, self.running_var)  # type: ignore[assignment]
        about = (momentum, self.eps, self.activation, self.slope)
        result: torch.Tensor = _BatchNormFromOutput.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, state, about
        )
        return result

    def _activated(self, value: torch.Tensor) -> torch.Tensor:
        if self.activation == "leaky_relu":
            return functional.leaky_relu(value, self.slope)
        return functional.elu(value, self.slope) if self.activation == "elu" else value

    def extra_repr(self) -> str:
        """As PyTorch's, with the activation."""
        own = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{own}, activation={self.activation}, slope={self.slope}"
