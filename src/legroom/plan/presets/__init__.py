"""Presets: recipes of the literature as choices on our graph, one class each, and this registry.

Every preset is a candidate and a starting point of every plan.
"""

from __future__ import annotations

from legroom.plan.presets._by_cost import Echo, MinCut, SaveAll, Tempo
from legroom.plan.presets._by_tier import VDNN, SuperNeurons, Swap
from legroom.plan.presets._by_way import ActNN, FewBit, Gist, GistLossy
from legroom.plan.presets._checkmate import Checkmate
from legroom.plan.presets._preset import AbstractPreset
from legroom.plan.presets._segments import PerBlock, ResidualBlocks, Separators, Sqrt, TimeSteps
from legroom.registry import Registry

__all__ = ["AbstractPreset", "all_presets", "get", "names", "register", "unregister"]

_PRESETS: Registry[type[AbstractPreset]] = Registry(
    "preset",
    (
        SaveAll,
        MinCut,
        PerBlock,
        Sqrt,
        ResidualBlocks,
        Checkmate,
        Echo,
        TimeSteps,
        Separators,
        Gist,
        GistLossy,
        ActNN,
        FewBit,
        Tempo,
        VDNN,
        Swap,
        SuperNeurons,
    ),
)
register, unregister, names, get = (
    _PRESETS.register,
    _PRESETS.unregister,
    _PRESETS.names,
    _PRESETS.get,
)


def all_presets() -> tuple[type[AbstractPreset], ...]:
    """Every preset, in order."""
    return tuple(_PRESETS)
