"""Ways to give a tensor back: one file each, and this registry.

To add one: write a file, add a line to the tuple below. The planner, `legroom ways`, the docs and
the tests pick it up.
"""

from __future__ import annotations

from legroom.errors import UsageError
from legroom.registry import Registry
from legroom.ways._bits import Bits
from legroom.ways._bits import pack as pack_bits
from legroom.ways._bits import unpack as unpack_bits
from legroom.ways._encoding import AbstractEncoding
from legroom.ways._fewbit import FewBit1, FewBit2, FewBit3, FewBit4
from legroom.ways._float import BFloat16, Float8Fine, Float8Wide, Float10, Float16
from legroom.ways._hold import Hold
from legroom.ways._integer import Integer2, Integer4, Integer8
from legroom.ways._move import AbstractMove, Disk, Host
from legroom.ways._offsets import Offsets
from legroom.ways._remake import Remake
from legroom.ways._replay import Replay
from legroom.ways._sign import Sign
from legroom.ways._sketch import Sketch
from legroom.ways._sparse import Sparse, density_of, take_overflows
from legroom.ways._way import (
    DEVICE,
    AbstractTechnique,
    AbstractWay,
    Exactness,
    RunCost,
    Saving,
)
from legroom.ways._workspace import Workspace

__all__ = [
    "DEVICE",
    "AbstractEncoding",
    "AbstractMove",
    "AbstractTechnique",
    "AbstractWay",
    "BFloat16",
    "Bits",
    "Disk",
    "Exactness",
    "FewBit1",
    "FewBit2",
    "FewBit3",
    "FewBit4",
    "Float8Fine",
    "Float8Wide",
    "Float10",
    "Float16",
    "Hold",
    "Host",
    "Integer2",
    "Integer4",
    "Integer8",
    "Offsets",
    "Remake",
    "Replay",
    "RunCost",
    "Saving",
    "Sign",
    "Sketch",
    "Sparse",
    "Workspace",
    "density_of",
    "get",
    "names",
    "pack_bits",
    "register",
    "select",
    "take_overflows",
    "unpack_bits",
    "unregister",
]

_WAYS: Registry[type[AbstractWay]] = Registry(
    "way",
    (
        Hold,
        Remake,
        Replay,
        Bits,
        Sign,
        Offsets,
        Sparse,
        Workspace,
        Host,
        Disk,
        BFloat16,
        Float16,
        Float10,
        Float8Fine,
        Float8Wide,
        Integer8,
        Integer4,
        Integer2,
        FewBit4,
        FewBit3,
        FewBit2,
        FewBit1,
        Sketch,
    ),
)
register, unregister, names, get = _WAYS.register, _WAYS.unregister, _WAYS.names, _WAYS.get


def select(
    enabled: tuple[str, ...] | None = None, *, exactness: Exactness = Exactness.BITWISE
) -> tuple[type[AbstractWay], ...]:
    """The enabled ways that are exact enough; `hold` always, since nothing works without it.

    Where none are named, all but those that are used on request only.

    Raises:
        UnknownNameError: A name is not known.
        UsageError: A way was asked for by name that the exactness does not allow.
    """
    for name in enabled or ():
        if not exactness.allows(get(name).exactness):
            raise UsageError(
                f"way {name!r} is {get(name).exactness.value}, but exactness is "
                f"{exactness.value!r}; ask for --exactness {get(name).exactness.value}"
            )
    usual = tuple(way.name for way in _WAYS if not way.is_on_request)
    chosen = usual if enabled is None else enabled
    return tuple(
        way
        for way in _WAYS
        if way is Hold or (way.name in chosen and exactness.allows(way.exactness))
    )
