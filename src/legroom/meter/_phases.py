"""Cuts a recording into forward, loss, backward, optimizer step and the rest.

In go the scopes in the event stream; out comes a list of intervals without gaps. What lies between
two scopes is named after its neighbours: between forward and backward it is the loss, between
backward and the optimizer (clipping, unscaling) it belongs to the optimizer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from legroom.capture import Phase
from legroom.meter._events import EventStream, Operation
from legroom.meter._scopes import Tag


@dataclass(frozen=True, slots=True)
class Interval:
    """A phase from `start_ns` up to `end_ns`."""

    phase: Phase
    start_ns: int
    end_ns: int


class PhaseMap:
    """The phase at any moment; intervals are sorted, do not overlap and leave no gaps."""

    def __init__(self, intervals: list[Interval]) -> None:
        self.intervals = tuple(intervals)
        self._starts = [interval.start_ns for interval in intervals]

    def at(self, time_ns: int) -> Phase:
        """The phase at that time; OTHER before the first and after the last."""
        index = bisect_right(self._starts, time_ns) - 1
        if index < 0 or time_ns >= self.intervals[index].end_ns:
            return Phase.OTHER
        return self.intervals[index].phase


def find_phases(stream: EventStream, start_ns: int, end_ns: int) -> PhaseMap:
    """The phases from `start_ns` to `end_ns`."""
    scopes = _outer_scopes(stream)
    evaluated = {op.sequence for op in stream.operations if op.node}
    differentiable = sorted(
        stream.operations[index].start_ns
        for sequence, index in stream.makers().items()
        if sequence in evaluated
    )
    intervals: list[Interval] = []
    position, previous = start_ns, Phase.OTHER
    for scope in scopes:
        if scope.end_ns <= position or scope.start_ns >= end_ns:
            continue
        begin = max(scope.start_ns, position)
        intervals += _between(previous, scope.phase, position, begin, differentiable)
        intervals.append(Interval(scope.phase, begin, min(scope.end_ns, end_ns)))
        position, previous = min(scope.end_ns, end_ns), scope.phase
    # A step that was cut short between forward and backward was at its loss.
    last = Phase.LOSS if previous is Phase.FORWARD else Phase.OTHER
    intervals.append(Interval(last, position, end_ns))
    carved = _carve_losses(stream, [i for i in intervals if i.end_ns > i.start_ns])
    return PhaseMap(_merge(carved))


def _outer_scopes(stream: EventStream) -> list[Interval]:
    """Forward, backward and optimizer scopes that are not inside one another."""
    found: list[Interval] = []
    for op in stream.operations:
        phase = _PHASE_OF_TAG.get(op.tag) if op.tag else None
        if phase is None:
            continue
        enclosing = {each.tag for each in stream.ancestors(op.parent)}
        if enclosing & {Tag.ROOT, Tag.BACKWARD}:
            continue
        start_ns = op.start_ns
        if phase is Phase.BACKWARD and op.parent >= 0:
            # The call around the engine: it makes the gradient of the loss itself.
            around = stream.operations[op.parent]
            start_ns = around.start_ns if around.tag is Tag.SITE else start_ns
        if phase is Phase.OPTIMIZER:
            # A closure: forward and backward ran inside step(); what comes after is the update.
            start_ns = max([start_ns, *(end for end in _nested_ends(stream, op))])
        found.append(Interval(phase, start_ns, op.end_ns))
    return sorted(found, key=lambda interval: interval.start_ns)


_PHASE_OF_TAG = {
    Tag.ROOT: Phase.FORWARD,
    Tag.BACKWARD: Phase.BACKWARD,
    Tag.OPTIMIZER: Phase.OPTIMIZER,
}


def _nested_ends(stream: EventStream, outer: Operation) -> list[int]:
    ends = []
    for index in range(outer.index + 1, len(stream.operations)):
        op = stream.operations[index]
        if op.start_ns >= outer.end_ns:
            break
        if op.tag in (Tag.ROOT, Tag.BACKWARD):
            ends.append(op.end_ns)
    return ends


def _between(
    before: Phase, after: Phase, start_ns: int, end_ns: int, differentiable: list[int]
) -> list[Interval]:
    """What happens between two scopes, named after them."""
    pair = (before, after)
    if pair == (Phase.FORWARD, Phase.BACKWARD):
        return [Interval(Phase.LOSS, start_ns, end_ns)]
    if pair == (Phase.FORWARD, Phase.FORWARD):
        return [Interval(Phase.FORWARD, start_ns, end_ns)]
    if after is Phase.OPTIMIZER and before in (Phase.BACKWARD, Phase.OPTIMIZER):
        return [Interval(Phase.OPTIMIZER, start_ns, end_ns)]
    if after in (Phase.FORWARD, Phase.BACKWARD):
        # What no module does (functional code, compiled code, a penalty on a gradient) belongs to
        # the graph from the first operation on that backward comes back to.
        index = bisect_right(differentiable, start_ns - 1)
        first = differentiable[index] if index < len(differentiable) else end_ns
        middle = min(max(first, start_ns), end_ns)
        is_penalty = before is Phase.BACKWARD and after is Phase.BACKWARD
        phase = Phase.LOSS if is_penalty else Phase.FORWARD
        return [Interval(Phase.OTHER, start_ns, middle), Interval(phase, middle, end_ns)]
    return [Interval(Phase.OTHER, start_ns, end_ns)]


def _carve_losses(stream: EventStream, intervals: list[Interval]) -> list[Interval]:
    """Cut calls to loss functions out of forward, where the model computes its own loss."""
    losses = [
        op
        for op in stream.operations
        if op.tag is Tag.LOSS
        and not any(each.tag is Tag.BACKWARD for each in stream.ancestors(op.parent))
    ]
    carved: list[Interval] = []
    starts = [op.start_ns for op in losses]
    for interval in intervals:
        position = interval.start_ns
        if interval.phase is Phase.FORWARD:
            first = bisect_left(starts, interval.start_ns)
            for op in losses[first : bisect_left(starts, interval.end_ns)]:
                if op.start_ns >= position and op.end_ns <= interval.end_ns:
                    carved.append(Interval(Phase.FORWARD, position, op.start_ns))
                    carved.append(Interval(Phase.LOSS, op.start_ns, op.end_ns))
                    position = op.end_ns
        carved.append(Interval(interval.phase, position, interval.end_ns))
    return [interval for interval in carved if interval.end_ns > interval.start_ns]


def _merge(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for interval in intervals:
        if merged and merged[-1].phase is interval.phase:
            merged[-1] = Interval(interval.phase, merged[-1].start_ns, interval.end_ns)
        else:
            merged.append(interval)
    return merged
