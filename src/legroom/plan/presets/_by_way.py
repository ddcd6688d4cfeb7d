"""Recipes that run nothing again: what backward reads is held in another form where one applies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, final

from legroom.plan._problem import Candidate, Choice
from legroom.plan._search import Search
from legroom.plan.presets._preset import AbstractPreset


class _AbstractEncoded(AbstractPreset):
    """Every tensor in the first form of a list that applies to it.

    Attributes:
        forms: Lists of names of ways, one for each choice.
    """

    forms: ClassVar[tuple[tuple[str, ...], ...]]

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """One for each list of forms that changes anything."""
        whole = search.hold_all()
        for names in cls.forms:
            if not cls._is_complete(search, names):
                continue
            options = tuple(
                _option(candidate, names, held)
                for candidate, held in zip(search.problem.candidates, whole.options, strict=True)
            )
            if options != whole.options:
                yield replace(whole, options=options)

    @classmethod
    def _is_complete(cls, search: Search, names: tuple[str, ...]) -> bool:
        """Whether the form that gives the recipe its name is enabled at all."""
        enabled = {each.way for one in search.problem.candidates for each in one.options}
        return names[-1] in enabled


def _option(candidate: Candidate, names: tuple[str, ...], held: int) -> int:
    if not candidate.late_uses:
        return held
    ways = [option.way for option in candidate.options]
    return next((ways.index(name) for name in names if name in ways), held)


@final
class Gist(_AbstractEncoded):
    """Masks with one bit for each element; the rest as it is."""

    name = "gist"
    summary = "keep everything that backward reads, masks with a bit for each element"
    origin = "Gist 2018, lossless (without its sparse storage)"
    forms = (("bits",),)


@final
class GistLossy(_AbstractEncoded):
    """The same, and numbers with 16, 10 or 8 bits."""

    name = "gist-lossy"
    summary = "masks with a bit for each element, numbers with 16, 10 or 8 bits"
    origin = "Gist 2018, delayed precision reduction"
    forms = (("bits", "float16"), ("bits", "float10"), ("bits", "float8-e4m3"))


@final
class ActNN(_AbstractEncoded):
    """Numbers as integers of 2, 4 or 8 bits, rounded at random."""

    name = "actnn"
    summary = "masks with a bit for each element, numbers as integers of 2, 4 or 8 bits"
    origin = "ActNN 2021, the same bits for all tensors (its level L2)"
    forms = (("bits", "integer2"), ("bits", "integer4"), ("bits", "integer8"))
