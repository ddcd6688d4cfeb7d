"""The gradient of a ReLU from its input instead of its output: both have the same sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import fx

from legroom.capture import Graph, OperationInfo
from legroom.variants._variant import AbstractVariant
from legroom.ways import Exactness


@final
class ReluFromInput(AbstractVariant):
    """`threshold_backward` asks where the tensor is above zero; the input answers as well."""

    name = "relu-from-input"
    summary = "a ReLU's gradient from its input, where that is kept anyway"
    exactness = Exactness.BITWISE
    origin = "Gist, Echo (gradients from whichever of input and output is kept)"
    costs = "nothing"
    when = "Where backward reads a ReLU's input anyway, so that its output need not be there."
    not_with = "ReLUs whose output another operation of backward reads: it is there then."

    @classmethod
    def reads(cls, operation: OperationInfo, graph: Graph) -> tuple[int, ...] | None:
        """Applies where the threshold is zero and the tensor was made by a ReLU."""
        if not operation.name.startswith("aten.threshold_backward") or len(operation.reads) != 2:
            return None
        gradient, output = operation.reads
        made_by = graph.tensors[output].producer
        if made_by < 0:
            return None
        relu = graph.operations[made_by]
        if not relu.name.startswith("aten.relu.default") or not relu.reads:
            return None
        return gradient, relu.reads[0]

    @classmethod
    def emit(cls, graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """The same operation on the ReLU's input, seen through the same views."""
        gradient, output, threshold = node.args
        assert isinstance(gradient, fx.Node), "bug in legroom: a gradient that is no node"
        views: list[fx.Node] = []
        while isinstance(output, fx.Node) and output.target is not torch.ops.aten.relu.default:
            views.append(output)
            output = output.args[0]
        assert isinstance(output, fx.Node), "bug in legroom: a ReLU's gradient without a ReLU"
        seen = value(output.all_input_nodes[0])
        for view in reversed(views):
            seen = graph.call_function(view.target, (seen, *view.args[1:]), dict(view.kwargs))  # type: ignore[arg-type]
        return graph.call_function(node.target, (value(gradient), seen, threshold))  # type: ignore[arg-type]
