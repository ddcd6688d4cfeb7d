"""What a variant is: another formula for a backward operation, which needs other tensors.

In goes a backward operation with the graph around it; out comes what it would read instead, or
None where the formula does not apply. The engine asks for the formula itself.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

from torch import fx

from legroom.capture import Graph, OperationInfo
from legroom.ways import AbstractTechnique


class AbstractVariant(AbstractTechnique):
    """One family of backward formulas; a description and a pure rule, without state."""

    @classmethod
    @abc.abstractmethod
    def reads(cls, operation: OperationInfo, graph: Graph) -> tuple[int, ...] | None:
        """What the operation reads under this formula; None where it does not apply."""

    @classmethod
    @abc.abstractmethod
    def emit(cls, graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """Write the formula into a backward graph; returns what stands for the operation's result.

        Args:
            graph: The backward graph that is being written.
            node: The operation, in the joint graph.
            value: What stands in `graph` for a node of the joint graph.
        """
