"""What a preset is: a recipe of the literature, as choices on our graph.

In goes a search (with its problem); out come choices that the recipe would make. The simulator
judges them as it judges the solvers' own, so a plan is never worse than a preset.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import ClassVar

from legroom import ways
from legroom.plan._problem import Choice
from legroom.plan._search import Search
from legroom.ways import Exactness


class AbstractPreset(abc.ABC):
    """One recipe.

    Attributes:
        name: As in tables and `legroom plan`'s output.
        summary: What it keeps, in a clause.
        origin: Where it comes from.
        costs: What it costs, in a clause.
        when: What it is for, in sentences.
        not_with: What it does not apply to, in sentences.
        uses: Names of the ways that it is made of; without them it does not apply.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    origin: ClassVar[str]
    costs: ClassVar[str] = ""
    when: ClassVar[str] = ""
    not_with: ClassVar[str] = ""
    uses: ClassVar[tuple[str, ...]] = ("remake", "replay")

    @classmethod
    def exactness(cls) -> Exactness:
        """What must be allowed for it: that of the least exact way that it uses."""
        return max((ways.get(name).exactness for name in cls.uses), key=list(Exactness).index)

    @classmethod
    @abc.abstractmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """The recipe's choices, its usual one first; none where it does not apply."""
