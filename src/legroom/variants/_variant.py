"""What a variant is: another formula for a backward operation, which needs other tensors.

In goes a backward operation with the graph around it; out comes what it would read instead, or
None where the formula does not apply.
"""

from __future__ import annotations

import abc
from typing import ClassVar

from legroom.capture import Graph, OperationInfo
from legroom.ways import Exactness


class AbstractVariant(abc.ABC):
    """One family of backward formulas; a description and a pure rule, without state.

    Attributes:
        name: As in `legroom plan --without NAME`.
        summary: What it does, in a clause.
        exactness: How close to plain PyTorch its results are.
        origin: Where it comes from: systems of the literature.
        costs: What it costs, in a clause.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    exactness: ClassVar[Exactness]
    origin: ClassVar[str]
    costs: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def reads(cls, operation: OperationInfo, graph: Graph) -> tuple[int, ...] | None:
        """What the operation reads under this formula; None where it does not apply."""
