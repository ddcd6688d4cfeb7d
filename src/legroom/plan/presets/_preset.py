"""What a preset is: a recipe of the literature, as choices on our graph.

In goes a search (with its problem); out come choices that the recipe would make. The simulator
judges them as it judges the solvers' own, so a plan is never worse than a preset.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import ClassVar

from legroom.plan._problem import Choice
from legroom.plan._search import Search


class AbstractPreset(abc.ABC):
    """One recipe.

    Attributes:
        name: As in tables and `legroom plan`'s output.
        summary: What it keeps, in a clause.
        origin: Where it comes from.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    origin: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """The recipe's choices, its usual one first; none where it does not apply."""
