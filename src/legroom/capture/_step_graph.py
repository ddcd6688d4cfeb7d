"""A recorded stretch of a program as a `Graph`: one training step.

In go the recorder's operations and storages between two positions; out comes the graph, with every
piece written out into its operations. See Note [Graph] in `_graph.py`, and Note [Lives].
"""

# Note [Lives]
# 1. What was recorded outside pieces, and what pieces return, lives as recorded. What is made
#    within a piece and not returned lives by use, as the plan decides.
# 2. A piece keeps nothing for its backward while it is recorded. So what it returned and its caller
#    dropped before backward needs it lives by use as well; what it was given lives at least until
#    its last use.
# 3. Where autograd adds a gradient to one that dies right after, or writes one into zeros that do,
#    it does so in place.
# 4. Where it adds what a piece's backward returned to a gradient that was there before, the engine
#    does so inside the piece, right after the gradient is made.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from legroom.capture._graph import Graph, NotCaptured, OperationInfo, TensorInfo
from legroom.capture._joint import LocalStorage
from legroom.capture._kinds import Kind, Phase
from legroom.capture._pieces import PieceRun
from legroom.capture._sites import line_of
from legroom.capture._trace import RawOperation, RawStorage, Recorder

_FORWARD = (Phase.FORWARD, Phase.LOSS)
_TEMPORARIES = {
    Phase.FORWARD: Kind.TEMPORARIES_FORWARD,
    Phase.LOSS: Kind.TEMPORARIES_FORWARD,
    Phase.BACKWARD: Kind.TEMPORARIES_BACKWARD,
    Phase.OPTIMIZER: Kind.TEMPORARIES_OPTIMIZER,
    Phase.OTHER: Kind.INPUTS,
}


def build_graph(
    recorder: Recorder,
    steps: range,
    *,
    blocks: tuple[str, ...] = (),
    num_pieces: int = 0,
    not_captured: Iterable[NotCaptured] = (),
) -> Graph:
    """The graph of everything recorded at positions `steps`."""
    builder = _Builder(recorder, steps)
    builder.add_storages()
    builder.add_operations()
    return Graph(
        tensors=builder.tensors(),
        operations=tuple(builder.operations),
        blocks=blocks,
        num_pieces=num_pieces,
        device=str(recorder.device),
        torch_version=torch.__version__,
        not_captured=tuple(not_captured),
    )


@dataclass
class _Draft:
    """A tensor while its graph is being built."""

    name: str
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    kind: Kind | None = None
    producer: int = -1
    died: int | None = None
    is_internal: bool = False
    line: str = ""
    module: str = ""
    reads: list[int] = field(default_factory=list)


class _Builder:
    def __init__(self, recorder: Recorder, steps: range) -> None:
        self.operations: list[OperationInfo] = []
        self._recorder = recorder
        self._steps = steps
        self._drafts: list[_Draft] = []
        self._of_raw: dict[int, int] = {}
        self._end_of: dict[int, int] = {}
        self._internal: dict[int, dict[int, int]] = {}
        self._calls: dict[int, int] = {}
        self._traced_names: dict[int, dict[int, str]] = {}
        self._same = _written_in_place(recorder, steps)

    # Storages ------------------------------------------------------------------------------------

    def add_storages(self) -> None:
        for raw in self._recorder.storages:
            if raw.born >= self._steps.stop or raw.index in self._same:
                continue
            died = self._death_of(raw)
            if died is None or died >= self._steps.start:
                self._of_raw[raw.index] = len(self._drafts)
                self._drafts.append(
                    _Draft(raw.name, raw.num_bytes, raw.shape, raw.dtype, raw.kind, died=died)
                )
        for raw in self._recorder.storages:
            if raw.index in self._same:
                first = self._draft_of(raw.index)
                if first is not None:
                    first.kind, first.name = first.kind or raw.kind, first.name or raw.name

    def _death_of(self, raw: RawStorage) -> int | None:
        for later, first in reversed(self._same.items()):
            if first == raw.index:
                return self._death_of(self._recorder.storages[later])
        return raw.died

    def _draft_of(self, raw_index: int) -> _Draft | None:
        number = self._number_of(raw_index)
        return None if number is None else self._drafts[number]

    def _number_of(self, raw_index: int) -> int | None:
        while raw_index in self._same:
            raw_index = self._same[raw_index]
        return self._of_raw.get(raw_index)

    def _numbers(self, raw_indexes: Iterable[int]) -> tuple[int, ...]:
        numbers = (self._number_of(index) for index in raw_indexes)
        return tuple(dict.fromkeys(number for number in numbers if number is not None))

    # Operations ----------------------------------------------------------------------------------

    def add_operations(self) -> None:
        for position in self._steps:
            raw = self._recorder.operations[position]
            if position in self._end_of:
                continue  # done inside a piece
            if raw.run is None:
                self._add_recorded(raw)
            else:
                self._add_piece(raw.run, self._additions_after(position))
            self._end_of[position] = len(self.operations) - 1

    def _additions_after(self, position: int) -> dict[int, int]:
        """Where gradients of a piece's backward are added to older ones, by recorded storage.

        See Note [Lives], rule 4.
        """
        raw = self._recorder.operations[position]
        found: dict[int, int] = {}
        if raw.run is None or not raw.run.is_backward:
            return found
        made = {
            index
            for index in raw.run.bound.values()
            if self._recorder.storages[index].is_made
            and self._recorder.storages[index].born == position
        }
        for later in range(position + 1, self._steps.stop):
            addition = self._recorder.operations[later]
            if not addition.by_autograd:
                break
            for index in addition.reads:
                is_last = self._recorder.storages[index].died == later
                if index in made and is_last and index not in self._same.values():
                    found[index] = later
        return found

    def _add_recorded(self, raw: RawOperation) -> None:
        line = self._line_of(raw.site)
        writes = [index for index in raw.writes if index not in self._same]
        reused = [self._same[index] for index in raw.writes if index in self._same]
        self._append(
            OperationInfo(
                index=len(self.operations),
                name=raw.name,
                phase=raw.phase,
                reads=self._numbers(raw.reads),
                writes=self._numbers(writes),
                updates=self._numbers((*raw.updates, *reused)),
                signature=raw.signature,
                is_random=raw.is_random,
                line=line,
                module=raw.module,
            )
        )

    def _add_piece(self, run: PieceRun, additions: dict[int, int]) -> None:
        code = run.call.code
        moved = self._moved_modules(run)
        numbers = dict(self._internal.setdefault(id(run.call), {}))
        numbers.update(
            (local, number)
            for local, raw in run.bound.items()
            if (number := self._number_of(raw)) is not None
        )
        call = self._calls.setdefault(id(run.call), len(self._calls))
        line = self._line_of(run.call.site)  # where all of an operation's own is PyTorch's
        for operation in code.backward if run.is_backward else code.forward:
            for local in operation.writes:
                if local not in numbers:
                    numbers[local] = self._add_internal(code.storages[local])
            self._append(
                OperationInfo(
                    index=len(self.operations),
                    name=operation.name,
                    phase=Phase.BACKWARD if run.is_backward else Phase.FORWARD,
                    reads=_known(operation.reads, numbers),
                    writes=_known(operation.writes, numbers),
                    updates=_known(operation.updates, numbers),
                    remake_reads=None
                    if operation.remake_reads is None
                    else _known(operation.remake_reads, numbers),
                    signature=operation.signature,
                    piece=run.call.piece,
                    call=call,
                    node=operation.node,
                    is_random=operation.is_random,
                    line=operation.line or line,
                    module=_moved(operation.module, moved),
                )
            )
            for local in operation.writes:
                later = additions.pop(run.bound.get(local, -1), None)
                if later is not None:
                    self._add_recorded(self._recorder.operations[later])
                    self._end_of[later] = len(self.operations) - 1
        if not run.is_backward:
            self._internal[id(run.call)] = numbers

    def _line_of(self, site: int) -> str:
        if site < 0:
            return ""
        place = self._recorder.sites.sites[site]
        return line_of(place.file, place.line) if place.file else ""

    def _moved_modules(self, run: PieceRun) -> dict[str, str]:
        """Paths that mean another module here, because two modules share a piece's code.

        Told by the weights: the code was traced with those of `layers.0`, and runs with those of
        `layers.3`.
        """
        names = {
            local: raw.name
            for local, index in run.call.bound.items()
            if (raw := self._recorder.storages[index]).kind is Kind.WEIGHTS and raw.name
        }
        traced = self._traced_names.setdefault(run.call.piece, names)
        moved = {}
        for local, name in names.items():
            old, new = traced.get(local, name).split("."), name.split(".")
            while old and new and old[-1] == new[-1]:
                old.pop()
                new.pop()
            if old and new:
                moved[".".join(old)] = ".".join(new)
        return moved

    def _add_internal(self, local: LocalStorage) -> int:
        number = len(self._drafts)
        self._drafts.append(
            _Draft(
                name="",
                num_bytes=local.num_bytes,
                shape=local.shape,
                dtype=local.dtype,
                is_internal=True,
            )
        )
        return number

    def _append(self, operation: OperationInfo) -> None:
        self.operations.append(operation)
        for number in operation.reads:
            self._drafts[number].reads.append(operation.index)
        for number in operation.updates:
            self._drafts[number].reads.append(operation.index)
        for number in operation.writes:
            draft = self._drafts[number]
            if draft.producer < 0:
                draft.producer, draft.line = operation.index, operation.line
                draft.module = operation.module

    # Tensors -------------------------------------------------------------------------------------

    def tensors(self) -> tuple[TensorInfo, ...]:
        names = _Names()
        return tuple(self._tensor(index, names) for index in range(len(self._drafts)))

    def _tensor(self, index: int, names: _Names) -> TensorInfo:
        draft = self._drafts[index]
        last_read = draft.reads[-1] if draft.reads else -1
        released = None
        if draft.died is not None and draft.died < self._steps.stop:
            released = self._end_of.get(draft.died, -1)
        is_planned = draft.is_internal
        producer = self.operations[draft.producer] if draft.producer >= 0 else None
        if released is not None and released < last_read and not is_planned:
            # See Note [Lives], rule 2.
            is_planned = producer is not None and producer.piece >= 0
            released = last_read
        kind = draft.kind or self._kind(draft, producer, released)
        name = draft.name or _made_name(producer, kind)
        return TensorInfo(
            index=index,
            name=names.unique(name),
            num_bytes=draft.num_bytes,
            kind=kind,
            shape=draft.shape,
            dtype=draft.dtype,
            producer=draft.producer,
            released_after=None if is_planned else released,
            is_planned=is_planned,
            line=draft.line,
            module=draft.module,
        )

    def _kind(self, draft: _Draft, producer: OperationInfo | None, released: int | None) -> Kind:
        if producer is None:
            return Kind.INPUTS
        if producer.phase in _FORWARD:
            ends = [released] if released is not None and released >= 0 else []
            uses = (self.operations[index].phase for index in (*draft.reads, *ends))
            if any(phase is Phase.BACKWARD for phase in uses):
                return Kind.STASH
        return _TEMPORARIES[producer.phase]


def _moved(module: str, moved: dict[str, str]) -> str:
    for old in sorted(moved, key=len, reverse=True):
        if module == old or module.startswith(f"{old}."):
            return moved[old] + module[len(old) :]
    return module


def _known(locals_: tuple[int, ...], numbers: dict[int, int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers[local] for local in locals_ if local in numbers))


def _written_in_place(recorder: Recorder, steps: range) -> dict[int, int]:
    """Storages that a plain run would not have made, and the one it would have written into.

    See Note [Lives], rule 3.
    """
    same: dict[int, int] = {}
    for position in steps:
        raw = recorder.operations[position]
        if not raw.writes_in_place_in_eager or len(raw.writes) != 1:
            continue
        (result,) = raw.writes
        for operand in raw.reads:
            storage = recorder.storages[operand]
            if (
                storage.died == position
                and storage.num_bytes == recorder.storages[result].num_bytes
                and operand not in same.values()
            ):
                same[result] = operand
                break
    return same


def _made_name(producer: OperationInfo | None, kind: Kind) -> str:
    if producer is None:
        return kind.value
    name = producer.node or producer.name.split(".")[1 if "." in producer.name else 0]
    return f"{producer.module}.{name}" if producer.module else name


class _Names:
    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        wanted = name
        while wanted in self._taken:
            self._count[name] += 1
            wanted = f"{name}~{self._count[name]}"
        self._taken.add(wanted)
        return wanted
