"""What a variant is: another formula for a backward operation, which needs other tensors.

In goes a backward operation with the graph around it; out comes what it would read instead, or
None where the formula does not apply.
"""

from __future__ import annotations

import abc

from legroom.capture import Graph, OperationInfo
from legroom.ways import AbstractTechnique


class AbstractVariant(AbstractTechnique):
    """One family of backward formulas; a description and a pure rule, without state."""

    @classmethod
    @abc.abstractmethod
    def reads(cls, operation: OperationInfo, graph: Graph) -> tuple[int, ...] | None:
        """What the operation reads under this formula; None where it does not apply."""
