"""Which forward line every operation belongs to, those of the backward pass included.

In goes the event stream; out comes an `Origin` per operation. A backward node carries the sequence
number of the forward operation that made it, so its bytes and its time go to that operation's
line; a node made during backward (double backward) leads on to the line behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from legroom.meter._events import EventStream
from legroom.meter._scopes import Tag

NO_SITE = -1

ACCUMULATE = "torch::autograd::AccumulateGrad"

_PLACES = frozenset({Tag.SITE, Tag.LOSS, Tag.MODULE, Tag.ROOT, Tag.OPTIMIZER, Tag.BACKWARD})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operation comes from.

    Attributes:
        site: Number of the site, `NO_SITE` if unknown.
        label: The outermost operation of the forward call, `"aten::linear"`; `""` for Python.
        is_backward: Whether it works out gradients.
        is_overhead: Whether it is legroom's own work.
    """

    site: int = NO_SITE
    label: str = ""
    is_backward: bool = False
    is_overhead: bool = False


_UNKNOWN = Origin()


class Origins:
    """The origin of every operation, and of every autograd node."""

    def __init__(self, of_operation: list[Origin], maker_of: dict[int, int]) -> None:
        self._of_operation = of_operation
        self._maker_of = maker_of

    def __getitem__(self, index: int) -> Origin:
        return self._of_operation[index] if index >= 0 else _UNKNOWN

    def of_node(self, sequence: int) -> Origin:
        """The origin of the operation that made the autograd node with this number."""
        return self[self._maker_of.get(sequence, -1)]


def find_origins(stream: EventStream) -> Origins:
    """The origin of everything in the stream."""
    origins: list[Origin] = []
    maker = stream.makers()
    last_node = _UNKNOWN
    for op in stream.operations:
        around = origins[op.parent] if op.parent >= 0 else _UNKNOWN
        if op.tag is Tag.OVERHEAD:
            origin = Origin(is_overhead=True)
        elif op.tag in _PLACES:
            origin = Origin(op.number, "", around.is_backward or op.tag is Tag.BACKWARD)
        elif op.tag is not None:
            origin = around
        elif op.node:
            made_by = maker.get(op.sequence)
            if made_by is not None:
                last_node = Origin(origins[made_by].site, origins[made_by].label, True)
            elif op.node != ACCUMULATE:
                last_node = Origin(around.site, op.node, True)
            # A gradient is accumulated right after the node that worked it out.
            origin = last_node if last_node.label else Origin(around.site, op.node, True)
        else:
            origin = around if around.label else _labelled(around, op.name)
        origins.append(origin)
    return Origins(origins, maker)


def _labelled(around: Origin, name: str) -> Origin:
    return Origin(around.site, name, around.is_backward, around.is_overhead)
