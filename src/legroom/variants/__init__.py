"""Variants of backward operations and rewrites of graphs: one file each, and this registry.

To add one: write a file, add a line to the tuple below. The planner, `legroom ways`, the docs and
the tests pick it up.
"""

from __future__ import annotations

from legroom.capture import Rewrite
from legroom.registry import Registry
from legroom.variants._chunked_mlp import ChunkedMLP
from legroom.variants._loss_without_logits import LossWithoutLogits
from legroom.variants._relu import ReluFromInput
from legroom.variants._rewrite import AbstractRewrite
from legroom.variants._shape_only import ShapeOnly
from legroom.variants._spelled_out import SpelledOut
from legroom.variants._variant import AbstractVariant
from legroom.ways import Exactness

__all__ = [
    "AbstractRewrite",
    "AbstractVariant",
    "ChunkedMLP",
    "LossWithoutLogits",
    "ReluFromInput",
    "ShapeOnly",
    "SpelledOut",
    "get",
    "names",
    "names_of",
    "register",
    "rewrites",
    "select",
    "unregister",
    "variant",
]

_VARIANTS: Registry[type[AbstractVariant] | type[AbstractRewrite]] = Registry(
    "variant",
    (
        ReluFromInput,
        ShapeOnly,
        SpelledOut,
        LossWithoutLogits,
        ChunkedMLP,
    ),
)
register, unregister = _VARIANTS.register, _VARIANTS.unregister
names, get = _VARIANTS.names, _VARIANTS.get


def select(
    enabled: tuple[str, ...] | None = None, *, exactness: Exactness = Exactness.BITWISE
) -> tuple[type[AbstractVariant], ...]:
    """The enabled variants that are exact enough."""
    allowed = _allowed(enabled, exactness)
    return tuple(each for each in allowed if issubclass(each, AbstractVariant))


def rewrites(
    enabled: tuple[str, ...] | None = None, *, exactness: Exactness = Exactness.BITWISE
) -> tuple[type[AbstractRewrite], ...]:
    """The enabled rewrites that are exact enough."""
    allowed = _allowed(enabled, exactness)
    return tuple(each for each in allowed if issubclass(each, AbstractRewrite))


def names_of(applied: tuple[Rewrite, ...]) -> tuple[str, ...]:
    """The names of rewrites that were applied, as capture knows them."""
    return tuple(
        each.name
        for each in _VARIANTS
        if issubclass(each, AbstractRewrite) and each.apply in applied
    )


def variant(name: str) -> type[AbstractVariant]:
    """The variant of that name, which a plan has chosen."""
    found = get(name)
    assert issubclass(found, AbstractVariant), f"bug in legroom: {name} is no variant"
    return found


def _allowed(
    enabled: tuple[str, ...] | None, exactness: Exactness
) -> list[type[AbstractVariant] | type[AbstractRewrite]]:
    chosen = names() if enabled is None else enabled
    return [each for each in _VARIANTS if each.name in chosen and exactness.allows(each.exactness)]
