"""A training step as a graph: every storage, every operation, in the order in which they run.

What capture hands to the planner: plain values without torch, so that it can be saved, read by a
test, or written by hand. See Note [Graph].
"""

# Note [Graph]
# 1. A tensor here is a storage: views share one and do not appear, nor do the operations that
#    make them. An operation reads and writes storages.
# 2. Operations stand in the order in which they run: forward, backward, optimizer, and again for
#    each micro-batch. `phase` tells which they are; positions are indexes into this order.
# 3. Within a captured piece the plan decides how long a tensor lives (`is_planned`): from its
#    producer to its last use, or less. Outside, and for what a piece returns, it lives as recorded:
#    until after operation `released_after`, or to the end of the step and beyond (None).
# 4. A tensor with `producer` -1 was alive before the step: weights, optimizer state, batches.
# 5. `updates` are writes into tensors that existed before: buffers, weights in the optimizer, and
#    in a piece's backward an operand that nobody else reads (Note [In place]). Such an operation
#    never runs twice.

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from legroom.capture._kinds import Kind, Phase

_RUN_AGAIN = (Phase.FORWARD, Phase.LOSS)


@final
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One storage.

    Attributes:
        index: Its place in `Graph.tensors`.
        name: Unique and readable: `"transformer.h.0.mlp.gelu_2"`, `"wte.weight"`.
        num_bytes: Bytes of the whole storage.
        producer: Index of the operation that makes it; -1 if it was there before the step.
        released_after: See Note [Graph], rule 3; meaningless where `is_planned`.
        is_planned: Whether the plan decides how long it lives.
        line: The source line that made it, `"model.py:12"`; empty if unknown.
        module: Path of the module that made it, `"transformer.h.0.mlp"`; empty if none.
        density: The share of its elements that are not zero, where that was measured.
    """

    index: int
    name: str
    num_bytes: int
    kind: Kind
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    producer: int = -1
    released_after: int | None = None
    is_planned: bool = False
    line: str = ""
    module: str = ""
    density: float | None = None


@final
@dataclass(frozen=True, slots=True)
class OperationInfo:
    """One operation that computes something.

    Attributes:
        index: Its place in `Graph.operations`.
        name: PyTorch's name of it: `"aten.addmm.default"`.
        reads: Storages it reads, each once, in the order of its arguments.
        writes: Storages it makes.
        updates: Older storages it writes into.
        remake_reads: What it reads when it is run again in backward; None: the same. A batch norm
            run again does without the running statistics.
        signature: What its time depends on, for `meter.operation_times`; see
            `capture.signature_of`. Empty where unknown.
        piece: Index of the captured piece it belongs to; -1 if outside all.
        call: Number of the call of a piece that it belongs to; -1 if outside all.
        node: Its name in the piece's joint graph.
        is_random: Whether it draws random numbers.
        workspace_bytes: Scratch memory while it runs, beside what it writes.
        time_ms: What one run takes.
        is_measured: Whether `time_ms` was measured on this device, rather than modelled.
    """

    index: int
    name: str
    phase: Phase
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    updates: tuple[int, ...] = ()
    remake_reads: tuple[int, ...] | None = None
    signature: str = ""
    piece: int = -1
    call: int = -1
    node: str = ""
    is_random: bool = False
    workspace_bytes: int = 0
    time_ms: float = 0.0
    is_measured: bool = False
    line: str = ""
    module: str = ""

    @property
    def is_forward(self) -> bool:
        """Whether it runs before the backward pass it belongs to, so that it may run again."""
        return self.phase in _RUN_AGAIN

    @property
    def needs_to_remake(self) -> tuple[int, ...]:
        """Storages it must find when it is run again."""
        return self.reads if self.remake_reads is None else self.remake_reads


@final
@dataclass(frozen=True, slots=True)
class NotCaptured:
    """Something that the graph does not show, and why."""

    what: str
    why: str
    num_bytes: int | None = None


@final
@dataclass(frozen=True)
class Graph:
    """A whole training step; see Note [Graph].

    Attributes:
        blocks: Paths of the modules that repeat: the layers of a transformer. In forward order.
        num_pieces: How many pieces were captured; 0 for a recording of the plain step.
        not_captured: What could not be captured or had to be assumed.
    """

    tensors: tuple[TensorInfo, ...]
    operations: tuple[OperationInfo, ...]
    blocks: tuple[str, ...] = ()
    num_pieces: int = 0
    device: str = "cpu"
    torch_version: str = ""
    not_captured: tuple[NotCaptured, ...] = ()

    def with_times(self, times: Iterable[tuple[float, bool, int]]) -> Graph:
        """The same graph with each operation's time, whether that was measured, and workspace."""
        timed = (
            replace(op, time_ms=ms, is_measured=is_measured, workspace_bytes=workspace_bytes)
            for op, (ms, is_measured, workspace_bytes) in zip(self.operations, times, strict=True)
        )
        return replace(self, operations=tuple(timed))

    def with_densities(self, densities: Mapping[tuple[int, str, int], float]) -> Graph:
        """The same graph with the density of some tensors: by piece, node, and place in writes."""
        found = {
            tensor: densities[op.piece, op.node, place]
            for op in self.operations
            for place, tensor in enumerate(op.writes)
            if (op.piece, op.node, place) in densities
        }
        tensors = (replace(each, density=found.get(each.index)) for each in self.tensors)
        return replace(self, tensors=tuple(tensors))

    @property
    def step_ms(self) -> float:
        """What the plain step takes: every operation once."""
        return sum(op.time_ms for op in self.operations)

    @functools.cached_property
    def late_readers(self) -> dict[int, tuple[OperationInfo, ...]]:
        """Operations of backward that read a tensor, by its index."""
        found: dict[int, list[OperationInfo]] = defaultdict(list)
        for op in self.operations:
            if op.phase is Phase.BACKWARD:
                for tensor in op.reads:
                    found[tensor].append(op)
        return {tensor: tuple(readers) for tensor, readers in found.items()}

    def to_json(self) -> str:
        """The graph as one JSON object."""
        return json.dumps(asdict(self), default=lambda value: value.value)

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """A graph that `to_json` wrote."""
        data = json.loads(text)
        return cls(
            tensors=tuple(TensorInfo(**_read(each)) for each in data.pop("tensors")),
            operations=tuple(OperationInfo(**_read(each)) for each in data.pop("operations")),
            not_captured=tuple(NotCaptured(**each) for each in data.pop("not_captured")),
            blocks=tuple(data.pop("blocks")),
            **data,
        )


def _read(fields: dict[str, Any]) -> dict[str, Any]:
    read = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    if "kind" in read:
        read["kind"] = Kind(read["kind"])
    if "phase" in read:
        read["phase"] = Phase(read["phase"])
    return read
