"""What a rewrite is: the same mathematics, written so that less has to be kept.

In goes a graph as TorchDynamo captured it, before there is a backward; it is changed. Capture and
engine do this alike, so that the plan is about what runs.
"""

from __future__ import annotations

import abc
from typing import ClassVar

from torch import fx

from legroom.ways import AbstractTechnique


class AbstractRewrite(AbstractTechnique):
    """One family of changes to captured graphs; a description and a rule, without state.

    Attributes:
        costs_time: Whether a step takes longer with it. Then it is done where no plan fits without
            it, or where it is asked for by name; see Note [Reserve] in `legroom.plan`.
    """

    costs_time: ClassVar[bool] = False

    @classmethod
    @abc.abstractmethod
    def apply(cls, graph: fx.GraphModule) -> list[str]:
        """Change the graph; returns sentences on what it found and could not change, or only half.

        Nodes tell the shape of their results in `meta["example_value"]`.
        """
