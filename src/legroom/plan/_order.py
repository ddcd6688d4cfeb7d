"""Another order for backward's operations: what releases the most goes first.

In goes a graph; out comes the same graph with the operations of each stretch of backward put in an
order that keeps less alive, or None where that changes nothing. Also known as list scheduling; a
heuristic, judged by the simulator like any other candidate (TensorFlowMem bounds parallelism to
the same end). Forward keeps its order, and with it that of random operations.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

from legroom.capture import Graph, OperationInfo, Phase


def reordered(graph: Graph) -> Graph | None:
    """The graph with backward in an order that is meant to keep less alive; None if the same."""
    order: list[int] = []
    for (phase, piece, _), run in itertools.groupby(
        graph.operations, key=lambda op: (op.phase, op.piece, op.call)
    ):
        stretch = list(run)
        if phase is Phase.BACKWARD and piece >= 0:
            order.extend(_schedule(graph, stretch))
        else:
            order.extend(op.index for op in stretch)
    if order == list(range(len(graph.operations))):
        return None
    return _in_order(graph, order)


def _schedule(graph: Graph, stretch: list[OperationInfo]) -> list[int]:
    inside = {op.index for op in stretch}
    maker = {tensor: op.index for op in stretch for tensor in op.writes}
    readers: dict[int, set[int]] = defaultdict(set)
    for op in stretch:
        for tensor in op.reads:
            readers[tensor].add(op.index)
    outside_end = {
        tensor
        for op in graph.operations
        if op.index not in inside
        for tensor in op.reads
        if tensor in maker
    }
    waits = {op.index: {maker[t] for t in op.reads if t in maker} - {op.index} for op in stretch}
    # Writes into older tensors keep their order among themselves and with what reads those.
    last_update: dict[int, int] = {}
    for op in stretch:
        for tensor in (*op.reads, *op.updates):
            if tensor in last_update:
                waits[op.index].add(last_update[tensor])
        for tensor in op.updates:
            waits[op.index] |= readers[tensor] & {o.index for o in stretch if o.index < op.index}
            last_update[tensor] = op.index
    left = {tensor: set(who) for tensor, who in readers.items()}
    by_index = {op.index: op for op in stretch}
    pending, order = [op.index for op in stretch], []
    done: set[int] = set()
    while pending:
        window = [index for index in pending if waits[index] <= done][:_WINDOW]
        best = min(window, key=lambda i: (_growth(graph, by_index[i], left, outside_end), i))
        order.append(best)
        pending.remove(best)
        done.add(best)
        for tensor in by_index[best].reads:
            left[tensor].discard(best)
    return order


_WINDOW = 12
"""How many ready operations are weighed against one another."""


def _growth(
    graph: Graph, op: OperationInfo, left: dict[int, set[int]], outside_end: set[int]
) -> int:
    """Bytes alive after the operation minus before."""
    made = sum(graph.tensors[tensor].num_bytes for tensor in op.writes)
    freed = sum(
        graph.tensors[tensor].num_bytes
        for tensor in op.reads
        if left[tensor] == {op.index}
        and graph.tensors[tensor].is_planned
        and tensor not in outside_end
    )
    return made - freed


def _in_order(graph: Graph, order: list[int]) -> Graph:
    place = {old: new for new, old in enumerate(order)}
    operations = tuple(replace(graph.operations[old], index=new) for new, old in enumerate(order))
    last_use = {
        tensor: op.index for op in operations for tensor in (*op.reads, *op.writes, *op.updates)
    }
    # A recorded release stays where it was in time, after as many operations as before, unless
    # something now uses the tensor later.
    tensors = tuple(
        replace(
            tensor,
            producer=place[tensor.producer] if tensor.producer >= 0 else -1,
            released_after=None
            if tensor.released_after is None
            else max(tensor.released_after, last_use.get(tensor.index, -1)),
        )
        for tensor in graph.tensors
    )
    return replace(graph, operations=operations, tensors=tensors)
