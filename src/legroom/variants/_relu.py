"""The gradient of a ReLU from its input instead of its output: both have the same sign."""

from __future__ import annotations

from typing import final

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
        if not relu.name.startswith("aten.relu.") or not relu.reads:
            return None
        return gradient, relu.reads[0]
