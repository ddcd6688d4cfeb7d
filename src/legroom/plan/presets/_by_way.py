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

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.uses = tuple(dict.fromkeys(name for names in cls.forms for name in names))

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
        """Whether the form that gives the recipe its name applies to anything."""
        found = {each.way for one in search.problem.candidates for each in one.options}
        return names[-1] in found


def _option(candidate: Candidate, names: tuple[str, ...], held: int) -> int:
    if not candidate.late_uses:
        return held
    ways = [option.way for option in candidate.options]
    return next((ways.index(name) for name in names if name in ways), held)


@final
class Gist(_AbstractEncoded):
    """Masks with one bit for each element, indices with a few; the rest as it is."""

    name = "gist"
    summary = "keep everything that backward reads, masks with a bit, indices with a few"
    origin = "Gist 2018, lossless"
    costs = "passes over masks and indices; nothing is run again"
    when = (
        "For networks of convolutions, ReLUs and poolings, and for dropouts: less memory "
        "with the same bits, and nothing is run again."
    )
    not_with = "Models without masks, indices, ReLUs or many zeros."
    forms = (
        ("bits", "sign", "offsets", "sparse"),
        ("offsets", "sign", "bits"),
        ("bits", "sign", "offsets"),
        ("bits", "offsets", "sign"),
    )


@final
class GistLossy(_AbstractEncoded):
    """The same, and numbers with 16, 10 or 8 bits."""

    name = "gist-lossy"
    summary = "masks with a bit for each element, numbers with 16, 10 or 8 bits"
    origin = "Gist 2018, delayed precision reduction"
    costs = "passes over everything that is kept; nothing is run again"
    when = (
        "Half to a quarter of the bytes of everything that backward reads, where gradients "
        "may be a little off."
    )
    not_with = "Exactness `bitwise` and `rounding`."
    forms = (
        ("bits", "sign", "offsets", "float16"),
        ("bits", "sign", "offsets", "float10"),
        ("bits", "sign", "offsets", "float8-e4m3"),
    )


@final
class FewBit(_AbstractEncoded):
    """What activations' gradients need, in a few bits; the rest as it is."""

    name = "fewbit"
    summary = "keep everything that backward reads, inputs of activations with 4 bits or fewer"
    origin = "few-bit backward 2023"
    costs = "passes over the inputs of activations; nothing is run again"
    when = "For transformers with GELU or SiLU, where gradients may be a little off."
    not_with = "Exactness `bitwise` and `rounding`; models without such activations."
    forms = (("fewbit4",), ("fewbit3",), ("fewbit2",), ("fewbit1",))


@final
class ActNN(_AbstractEncoded):
    """Numbers as integers of 2, 4 or 8 bits, rounded at random."""

    name = "actnn"
    summary = "masks with a bit for each element, numbers as integers of 2, 4 or 8 bits"
    origin = "ActNN 2021, the same bits for all tensors (its level L2)"
    costs = "passes over everything that is kept; nothing is run again"
    when = (
        "An eighth of the bytes or less of everything that backward reads, where gradients "
        "may be noisy but are right on average."
    )
    not_with = "Exactness `bitwise` and `rounding`."
    forms = (
        ("bits", "sign", "integer2"),
        ("bits", "sign", "integer4"),
        ("bits", "sign", "integer8"),
    )
