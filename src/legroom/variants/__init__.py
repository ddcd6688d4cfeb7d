"""Variants of backward operations: one file per family, and this registry.

To add one: write a file, add a line to the tuple below. The planner, `legroom ways`, the docs and
the tests pick it up.
"""

from __future__ import annotations

from legroom.registry import Registry
from legroom.variants._relu import ReluFromInput
from legroom.variants._shape_only import ShapeOnly
from legroom.variants._variant import AbstractVariant
from legroom.ways import Exactness

__all__ = [
    "AbstractVariant",
    "ReluFromInput",
    "ShapeOnly",
    "get",
    "names",
    "register",
    "select",
    "unregister",
]

_VARIANTS: Registry[type[AbstractVariant]] = Registry(
    "variant",
    (
        ReluFromInput,
        ShapeOnly,
    ),
)
register, unregister = _VARIANTS.register, _VARIANTS.unregister
names, get = _VARIANTS.names, _VARIANTS.get


def select(
    enabled: tuple[str, ...] | None = None, *, exactness: Exactness = Exactness.BITWISE
) -> tuple[type[AbstractVariant], ...]:
    """The enabled variants that are exact enough."""
    chosen = names() if enabled is None else enabled
    return tuple(
        each for each in _VARIANTS if each.name in chosen and exactness.allows(each.exactness)
    )
