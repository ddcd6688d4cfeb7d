"""A dropout that keeps one bit for each element."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from legroom.capture import in_memory_order
from legroom.ways import pack_bits, unpack_bits


class _DropoutInBits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, p: float) -> torch.Tensor:
        output: torch.Tensor
        if value.device.type == "cpu":
            mask = torch.ops.legroom.dropout_mask(value, 1.0 - p)
            output = torch.ops.legroom.apply_mask(value, mask, 1.0 - p)
        else:  # one kernel, with random numbers of its own
            output, mask = torch.native_dropout(value, p, True)
        ctx.save_for_backward(pack_bits(in_memory_order(mask).view(torch.uint8)))
        ctx.layout = (mask.shape, mask.stride())
        ctx.kept = 1.0 - p
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (bits,) = ctx.saved_tensors
        mask = unpack_bits(bits).view(torch.bool).as_strided(*ctx.layout)
        return torch.ops.legroom.apply_mask(gradient, mask, ctx.kept), None


@final
class Dropout(nn.Dropout):
    """Like `nn.Dropout`, bit for bit, but keeps its mask with one bit for each element.

    PyTorch keeps a whole number for each on a CPU. Under torch.compile and `legroom.fit` it is
    PyTorch's own, and the plan decides.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Some elements are zero, the others larger for it."""
        suits = (
            self.training
            and 0.0 < self.p < 1.0
            and torch.is_grad_enabled()
            and input.requires_grad
            and input.numel() > 0
            and not torch.compiler.is_compiling()
        )
        if not suits:
            return super().forward(input)
        result: torch.Tensor = _DropoutInBits.apply(input, self.p)  # type: ignore[no-untyped-call]
        if self.inplace:
            input.copy_(result)
        return result
