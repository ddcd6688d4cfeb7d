"""PyTorch's profiler events as plain values, in the order in which they happened.

In goes a stopped `torch.profiler.profile`; out comes a list of operations (with their parents and
the storages they read) and a list of allocations and releases (with the operation they happened
in). This is the only module that reads the profiler's private event tree.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from legroom.errors import TorchInterfaceError
from legroom.meter._scopes import Tag, parse_scope

_NODE_PREFIX = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor that an operation read: where its storage begins, its shape and type."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements (a view may be smaller than its storage)."""
        count = self.itemsize
        for size in self.shape:
            count *= size
        return count


@dataclass(slots=True)
class Operation:
    """One event with a duration: an operation, an autograd node, or a scope of ours.

    Attributes:
        index: Its position in the list of operations.
        parent: Index of the enclosing operation, -1 at the top.
        sequence: Ties a backward node to the forward operation that made it; -1 if none.
        node: The autograd node's name where this event is the engine evaluating one.
        tag: What the scope means, where this event is a scope of ours.
        number: The number of that scope.
        nested_ns: Time spent in direct children.
    """

    index: int
    name: str
    start_ns: int
    end_ns: int
    parent: int
    thread: int
    sequence: int = -1
    node: str = ""
    tag: Tag | None = None
    number: int = 0
    inputs: tuple[TensorRef, ...] = ()
    nested_ns: int = 0

    @property
    def duration_ns(self) -> int:
        """Wall time from start to end."""
        return self.end_ns - self.start_ns

    @property
    def self_ns(self) -> int:
        """Wall time not spent in a child."""
        return max(0, self.duration_ns - self.nested_ns)


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """One allocation (positive) or release (negative) that the allocator reported.

    Attributes:
        total_bytes: The allocator's own running count, for checking ours against it.
        operation: Index of the operation it happened in, -1 if in none.
        position: How many operations had started before it.
    """

    time_ns: int
    address: int
    delta_bytes: int
    total_bytes: int
    operation: int
    position: int


@dataclass(slots=True)
class EventStream:
    """Everything that one recording saw, in time order."""

    operations: list[Operation] = field(default_factory=list)
    allocations: list[AllocatorEvent] = field(default_factory=list)

    def makers(self) -> dict[int, int]:
        """For each autograd node's number, the index of the operation that made it.

        Operations before the maker may bear the number too: it is the next to be given out. The
        call of a node inside the engine's evaluation of it bears it again.
        """
        found: dict[int, int] = {}
        for op in self.operations:
            if op.sequence < 0 or op.node:
                continue
            around = self.operations[op.parent] if op.parent >= 0 else None
            if around is None or not around.node or around.sequence != op.sequence:
                found[op.sequence] = op.index
        return found

    def ancestors(self, index: int) -> list[Operation]:
        """The operation at `index` and everything around it, innermost first."""
        chain = []
        while index >= 0:
            operation = self.operations[index]
            chain.append(operation)
            index = operation.parent
        return chain


def read_events(profiler: torch.profiler.profile, device: torch.device) -> EventStream:
    """The events of a stopped profiler; allocations of other devices are left out.

    Cost: about 15 µs per event, in Python.
    """
    events = torch._C._profiler
    try:
        roots = profiler.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
        torch_op, allocation = events._EventType.TorchOp, events._EventType.Allocation
    except AttributeError as error:
        raise TorchInterfaceError(f"experimental_event_tree ({error})", tested="2.13.0") from None
    stream = EventStream()
    # Preorder over all threads; a stable sort by start time afterwards merges the threads.
    first_to_last = sorted(roots, key=lambda event: event.start_time_ns)
    stack = [(root, -1) for root in first_to_last[::-1]]
    kept: list[tuple[int, int, int, Any]] = []  # time, order, parent order, event
    while stack:
        event, parent = stack.pop()
        order = len(kept)
        kept.append((event.start_time_ns, order, parent, event))
        stack.extend((child, order) for child in reversed(event.children))
    kept.sort(key=lambda item: item[:2])
    index_of: dict[int, int] = {-1: -1}
    for time_ns, order, parent, event in kept:
        kind, fields = event.typed
        if kind == allocation:
            if _matches(fields.device, device):
                stream.allocations.append(
                    AllocatorEvent(
                        time_ns,
                        fields.ptr,
                        fields.alloc_size,
                        fields.total_allocated,
                        index_of[parent],
                        len(stream.operations),
                    )
                )
            continue
        index_of[order] = len(stream.operations)
        inputs = _inputs(fields.inputs) if kind == torch_op else ()
        sequence = fields.sequence_number if kind == torch_op else -1
        _append(stream, event, index_of[parent], sequence, inputs)
    stream.allocations = in_allocator_order(stream.allocations)
    return stream


def in_allocator_order(allocations: list[AllocatorEvent]) -> list[AllocatorEvent]:
    """The events as they happened, also where a coarse clock gives several the same time.

    The allocator's running count tells: each event's total is the one before it plus its own
    change. Where the counts do not chain (other threads, another device), the order stays.
    """
    ordered: list[AllocatorEvent] = []
    for _, group in itertools.groupby(allocations, key=lambda event: event.time_ns):
        tied = list(group)
        while tied:
            before = ordered[-1].total_bytes if ordered else None
            following = (i for i, e in enumerate(tied) if e.total_bytes - e.delta_bytes == before)
            ordered.append(tied.pop(next(following, 0)))
    return ordered


def _append(
    stream: EventStream, event: Any, parent: int, sequence: int, inputs: tuple[TensorRef, ...]
) -> None:
    name = event.name
    start_ns, end_ns = event.start_time_ns, max(event.end_time_ns, event.start_time_ns)
    operation = Operation(
        index=len(stream.operations),
        name=name,
        start_ns=start_ns,
        end_ns=end_ns,
        parent=parent,
        thread=event.start_tid,
        sequence=sequence,
        inputs=inputs,
    )
    scope = parse_scope(name)
    if scope is not None:
        operation.tag, operation.number = scope
    elif name.startswith(_NODE_PREFIX):
        operation.node = name.removeprefix(_NODE_PREFIX)
    if parent >= 0:
        stream.operations[parent].nested_ns += operation.duration_ns
    stream.operations.append(operation)


def _inputs(values: Any) -> tuple[TensorRef, ...]:
    refs: list[TensorRef] = []
    for value in values:
        if isinstance(value, list):
            refs.extend(ref for item in value if (ref := _tensor_ref(item)) is not None)
        elif (ref := _tensor_ref(value)) is not None:
            refs.append(ref)
    return tuple(refs)


def _tensor_ref(value: Any) -> TensorRef | None:
    address = getattr(value, "storage_data_ptr", None)
    if not address:
        return None
    dtype = value.dtype
    return TensorRef(address, tuple(value.sizes), str(dtype).removeprefix("torch."), dtype.itemsize)


def _matches(seen: torch.device, wanted: torch.device) -> bool:
    return seen.type == wanted.type and (
        wanted.index is None or seen.index is None or seen.index == wanted.index
    )
