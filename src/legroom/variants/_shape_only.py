"""Backward operations that are handed a tensor of which they read the shape only."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import fx

from legroom.capture import Graph, OperationInfo
from legroom.variants._variant import AbstractVariant
from legroom.ways import Exactness

_UNREAD_ARGUMENT = {
    "aten.max_pool2d_with_indices_backward": 1,
    "aten.max_pool3d_with_indices_backward": 1,
    "aten.avg_pool2d_backward": 1,
    "aten.avg_pool3d_backward": 1,
    "aten._adaptive_avg_pool2d_backward": 1,
    "aten._adaptive_avg_pool3d_backward": 1,
}
"""The place, among the tensors read, of the argument whose values do not matter."""


@final
class ShapeOnly(AbstractVariant):
    """Pooling's gradient needs the size of pooling's input, not its values."""

    name = "shape-only"
    summary = "pooling's gradient without pooling's input, of which it reads the shape only"
    exactness = Exactness.BITWISE
    origin = "Gist (pooling keeps its indices), Echo (FIgnoreInputs)"
    costs = "nothing"
    when = "For max and average poolings over two and three dimensions."
    not_with = (
        "Inputs that do not lie contiguously (channels last): their memory is taken for as "
        "long as the gradient is computed."
    )

    @classmethod
    def reads(cls, operation: OperationInfo, graph: Graph) -> tuple[int, ...] | None:
        """Applies to pooling's backward operations."""
        name = operation.name.rpartition(".")[0]
        unread = _UNREAD_ARGUMENT.get(name)
        if unread is None or unread >= len(operation.reads):
            return None
        return operation.reads[:unread] + operation.reads[unread + 1 :]

    @classmethod
    def emit(cls, graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """The same operation on something that has the shape and one element of memory."""
        name = str(node.target).rpartition(".")[0]
        place = _UNREAD_ARGUMENT[name]
        unread = node.args[place]
        assert isinstance(unread, fx.Node), "bug in legroom: an unread argument that is no node"
        shaped = unread.meta["val"]
        like = {"dtype": shaped.dtype, "device": shaped.device}
        if shaped.is_contiguous():
            one = graph.call_function(
                torch.ops.aten.empty.memory_format, ([1] * shaped.dim(),), like
            )
            wide = graph.call_function(torch.ops.aten.expand.default, (one, list(shaped.shape)))
        else:  # the operation also reads the layout, which takes all the memory to imitate
            layout = (list(shaped.shape), list(shaped.stride()))
            wide = graph.call_function(torch.ops.aten.empty_strided.default, layout, like)
        args = [
            wide if index == place else value(arg) if isinstance(arg, fx.Node) else arg
            for index, arg in enumerate(node.args)
        ]
        return graph.call_function(node.target, tuple(args), dict(node.kwargs))  # type: ignore[arg-type]
