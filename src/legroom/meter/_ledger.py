"""The books: every block of memory from its birth to its death, by kind.

In goes a `Recording`; out comes a `Ledger` whose rows add up to the allocator's total at every
moment. A storage is one block however many tensors, views or operations share it.

See Note [Kinds of blocks].
"""

# Note [Kinds of blocks]
# A block keeps one kind for life. The first rule that fits decides:
# 1. seen as a parameter or buffer: weights; as `.grad`: gradients; in an optimizer: its state;
# 2. kept by an autograd graph when a backward pass began: stash; likewise if it was made in
#    forward or loss and is read in backward, whoever holds it (a checkpoint, a hook). But if it
#    was made outside forward and loss, it is data that the graph merely shares: inputs;
# 3. allocated and released inside one operator: workspace of that operator;
# 4. allocated outside every operation: untracked;
# 5. made outside the phases: inputs; else a temporary of the phase in which it was made.

from __future__ import annotations

from dataclasses import dataclass, field

from legroom.capture import Kind, Phase
from legroom.meter._events import AllocatorEvent, EventStream, Operation, TensorRef
from legroom.meter._origins import ACCUMULATE
from legroom.meter._phases import PhaseMap, find_phases
from legroom.meter._recorder import Recording, Sighting
from legroom.meter._scopes import Tag

_ALLOCATORS = frozenset(
    f"aten::{name}"
    for name in (
        "empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros "
        "ones ones_like new_ones full full_like new_full empty_permuted resize_ scalar_tensor"
    ).split()
)

_MAP_HEADER = 64
"""Some shared memory is reported from a header on that lies before its data."""

_TEMPORARY_OF = {
    Phase.FORWARD: Kind.TEMPORARIES_FORWARD,
    Phase.LOSS: Kind.TEMPORARIES_FORWARD,
    Phase.BACKWARD: Kind.TEMPORARIES_BACKWARD,
    Phase.OPTIMIZER: Kind.TEMPORARIES_OPTIMIZER,
    Phase.OTHER: Kind.INPUTS,
}


@dataclass(frozen=True, slots=True)
class Keeper:
    """A node of an autograd graph that keeps a block until backward has used it."""

    node: str
    field: str
    sequence: int


@dataclass(slots=True)
class Block:
    """One storage.

    Attributes:
        operation: Index of the operation that it was allocated in; -1 if from before, or in none.
        kernel: Name of the innermost operation that is not a mere allocation.
        died_ns: When it was released; None if still alive at the end.
        first_use: Index of the first operation that read it; -1 if none did.
        last_use: Index of the last one.
        owner: Identity of the parameter it is, or belongs to; 0 if none.
        keepers: Who keeps it for backward, each once, in the order in which they were seen.
    """

    index: int
    address: int
    num_bytes: int
    born_ns: int
    kind: Kind | None = None
    operation: int = -1
    kernel: str = ""
    died_ns: int | None = None
    is_opening: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""
    first_use: int = -1
    last_use: int = -1
    owner: int = 0
    suffix: str = ""
    keepers: dict[Keeper, None] = field(default_factory=dict)

    def lives_at(self, time_ns: int) -> bool:
        """Whether it is alive just after that time."""
        return self.born_ns <= time_ns and (self.died_ns is None or time_ns < self.died_ns)


@dataclass(frozen=True, slots=True)
class Change:
    """A block begins (positive) or ends (negative)."""

    time_ns: int
    block: int
    delta_bytes: int


@dataclass(slots=True)
class Ledger:
    """All blocks, and the changes in their order.

    Attributes:
        boundaries_ns: When steps began and ended.
        unknown_bytes: Of tensors that were read at addresses that nobody was seen to allocate.
        unmatched_bytes: Releases of blocks that were never seen.
    """

    blocks: list[Block]
    changes: list[Change]
    opening_bytes: int
    boundaries_ns: list[int]
    phases: PhaseMap
    unknown_bytes: int
    unmatched_bytes: int


def build_ledger(recording: Recording) -> Ledger:
    """Replay the allocator's events and give every block its kind."""
    sweep = _Sweep(recording)
    sweep.run()
    operations = recording.stream.operations
    start_ns = sweep.boundaries_ns[0] if sweep.boundaries_ns else 0
    end_ns = max((op.end_ns for op in operations), default=start_ns)
    phases = find_phases(recording.stream, start_ns, end_ns)
    for block in sweep.blocks:
        if block.kind is None:
            block.kind = _kind_of(block, recording.stream, phases)
        elif _is_shared_data(block, phases):
            block.kind = Kind.INPUTS
    return Ledger(
        blocks=sweep.blocks,
        changes=sweep.changes,
        opening_bytes=recording.opening.total_bytes,
        boundaries_ns=sweep.boundaries_ns,
        phases=phases,
        unknown_bytes=sum(sweep.unknown.values()),
        unmatched_bytes=sweep.unmatched_bytes,
    )


class _Sweep:
    """One pass over operations and allocator events, in the order in which they happened."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._stream = recording.stream
        self._live: dict[int, Block] = {}
        self.blocks: list[Block] = []
        self.changes: list[Change] = []
        self.boundaries_ns: list[int] = []
        self.unknown: dict[int, int] = {}
        self.unmatched_bytes = 0
        self._found_dead: set[int] = set()
        self._shared = {each.address for each in recording.opening.storages if each.is_shared}

    def run(self) -> None:
        """Fill `blocks`, `changes` and `boundaries_ns`."""
        operations, allocations = self._stream.operations, self._stream.allocations
        self._open_books(min((op.start_ns for op in operations), default=0))
        next_allocation = 0
        for op in operations:
            while (
                next_allocation < len(allocations)
                and allocations[next_allocation].position <= op.index
            ):
                self._on_allocator(allocations[next_allocation])
                next_allocation += 1
            self._on_operation(op)
        for event in allocations[next_allocation:]:
            self._on_allocator(event)

    def _open_books(self, start_ns: int) -> None:
        for storage in self._recording.opening.storages:
            block = self._add(storage.address, storage.num_bytes, start_ns)
            block.is_opening = True
            block.kind = storage.kind
            block.shape, block.dtype = storage.shape, storage.dtype
            block.owner, block.suffix = storage.owner, storage.suffix
            block.keepers = {Keeper(*keeper, sequence=-1): None for keeper in storage.keepers}
        self.changes.clear()  # the opening balance is not a change

    def _add(self, address: int, num_bytes: int, time_ns: int) -> Block:
        block = Block(len(self.blocks), address, num_bytes, time_ns)
        self.blocks.append(block)
        self._live[address] = block
        self.changes.append(Change(time_ns, block.index, num_bytes))
        return block

    def _release(self, address: int, time_ns: int) -> Block | None:
        block = self._live.pop(address, None)
        if block is not None:
            block.died_ns = time_ns
            self.changes.append(Change(time_ns, block.index, -block.num_bytes))
        return block

    def _on_allocator(self, event: AllocatorEvent) -> None:
        if event.delta_bytes > 0:
            # The address is in use by a block whose release was not reported: it is gone.
            self._release(event.address, event.time_ns)
            self._found_dead.discard(event.address)
            block = self._add(event.address, event.delta_bytes, event.time_ns)
            block.operation = event.operation
            self._note_birth(block)
        elif event.delta_bytes < 0:
            # Shared memory from before the recording is known by where its data begins.
            header = event.address + _MAP_HEADER
            address = header if header in self._shared else event.address
            gone = self._release(address, event.time_ns)
            # Where an earlier profiler saw it allocated, its release is reported as well as found.
            # What died before the first boundary had died before the balance was taken.
            if gone is None and self.boundaries_ns and event.address not in self._found_dead:
                self.unmatched_bytes -= event.delta_bytes

    def _note_birth(self, block: Block) -> None:
        for op in self._stream.ancestors(block.operation):
            if op.name == ACCUMULATE:
                block.kind = Kind.GRADIENTS
            if op.tag is None and not op.node and op.name not in _ALLOCATORS and not block.kernel:
                block.kernel = op.name

    def _on_operation(self, op: Operation) -> None:
        if op.tag is Tag.FREED:
            self._release(op.number, op.start_ns)
            self._found_dead.add(op.number)
        elif op.tag is Tag.BOUNDARY:
            self.boundaries_ns.append(op.start_ns)
        elif op.tag is Tag.SNAPSHOT:
            for sighting in self._recording.snapshots[op.number]:
                self._on_sighting(sighting)
        elif op.inputs:
            stolen = op.name == "aten::detach" and self._name_of(op.parent) == ACCUMULATE
            for ref in op.inputs:
                self._on_use(ref, op, stolen)

    def _name_of(self, index: int) -> str:
        return self._stream.operations[index].name if index >= 0 else ""

    def _find(self, address: int) -> Block | None:
        block = self._live.get(address)
        if block is None:
            mapped = self._live.get(address - _MAP_HEADER)
            if mapped is not None and mapped.num_bytes > _MAP_HEADER:
                return mapped
        return block

    def _on_use(self, ref: TensorRef, op: Operation, stolen: bool) -> None:
        block = self._find(ref.address)
        if block is None:
            if ref.address not in self._recording.opening.foreign:
                known = self.unknown.get(ref.address, 0)
                self.unknown[ref.address] = max(known, ref.num_bytes)
            return
        if block.first_use < 0:
            block.first_use = op.index
        block.last_use = op.index
        if not block.dtype or _closer(ref, block):
            block.shape, block.dtype = ref.shape, ref.dtype
        if stolen and block.kind is None:
            block.kind = Kind.GRADIENTS

    def _on_sighting(self, seen: Sighting) -> None:
        block = self._find(seen.address)
        if block is None:
            return
        if seen.kind is Kind.STASH:
            keeper = Keeper(seen.node, seen.field, seen.sequence)
            block.keepers[keeper] = None
        if block.is_opening and block.kind is not Kind.INPUTS:
            return
        if seen.kind is Kind.STASH and (block.kind is not None):
            return
        block.kind = seen.kind
        block.owner, block.suffix = seen.owner or block.owner, seen.suffix or block.suffix
        if not block.dtype or seen.kind is Kind.GRADIENTS:
            block.shape, block.dtype = seen.shape, seen.dtype


def _closer(ref: TensorRef, block: Block) -> bool:
    """Whether the tensor describes its storage better than what is known: it covers more of it."""
    known = 1
    for size in block.shape:
        known *= size
    seen = ref.num_bytes // max(1, ref.itemsize)
    return ref.num_bytes <= block.num_bytes and seen > known


def _is_shared_data(block: Block, phases: PhaseMap) -> bool:
    """See Note [Kinds of blocks], rule 2: kept by a graph, but made outside it."""
    return (
        block.kind is Kind.STASH
        and not block.is_opening
        and phases.at(block.born_ns) is Phase.OTHER
    )


def _kind_of(block: Block, stream: EventStream, phases: PhaseMap) -> Kind:
    """See Note [Kinds of blocks], rules 2 to 5."""
    chain = stream.ancestors(block.operation)
    kernel = next((op for op in chain if op.tag is None and op.name == block.kernel), None)
    if (
        kernel is not None
        and "::" in kernel.name
        and block.died_ns is not None
        and block.died_ns <= kernel.end_ns
    ):
        return Kind.WORKSPACE
    if not chain:
        return Kind.UNTRACKED
    made_in = phases.at(block.born_ns)
    if made_in in (Phase.FORWARD, Phase.LOSS) and block.last_use >= 0:
        last = stream.operations[block.last_use]
        if phases.at(last.start_ns) is Phase.BACKWARD:
            return Kind.STASH
    return _TEMPORARY_OF[made_in]
