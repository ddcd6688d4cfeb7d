"""Backward operations that are handed a tensor of which they read the shape only."""

from __future__ import annotations

from typing import final

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

    @classmethod
    def reads(cls, operation: OperationInfo, graph: Graph) -> tuple[int, ...] | None:
        """Applies to pooling's backward operations."""
        name = operation.name.rpartition(".")[0]
        unread = _UNREAD_ARGUMENT.get(name)
        if unread is None or unread >= len(operation.reads):
            return None
        return operation.reads[:unread] + operation.reads[unread + 1 :]
