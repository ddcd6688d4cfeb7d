"""An observed step without what repeats: of many micro-batches, those that decide the peak.

In goes an `ObservedStep`; out comes a shorter one, in which a round stands for several like it. A
plan for it is a plan for the whole one, since what is left out is nowhere higher than what stays.
See Note [Rounds]. Complexity: rounds times stretches, for a few lengths of what repeats.
"""

# Note [Rounds]
# 1. A round ends where a piece is about to run forward and no backward is still to come: nothing of
#    a plan is alive between two rounds. Rounds may repeat one by one, or a few at a time.
# 2. A block of rounds is left out where the next block has the same runs, makes and drops the same
#    at the same places, and holds at least as much everywhere. What crosses from one block to the
#    next goes on: its likeness in the next block takes its place.

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from legroom.capture import Holding, ObservedStep

_LONGEST = 6
"""Rounds that are looked at as one block, at most."""
_EQUAL_BYTES = 512
"""What comes and goes may differ by so much: scalars of the loop."""


def without_repeats(step: ObservedStep) -> ObservedStep:
    """The step with blocks of rounds left out that the next one stands for."""
    for length in range(1, _LONGEST + 1):
        at = 0
        while True:
            starts = _round_starts(step)
            if at + 2 * length >= len(starts):
                break
            block = _Block(starts[at], starts[at + length])
            following = _Block(starts[at + length], starts[at + 2 * length])
            if _stands_for(step, block, following):
                step = _cut(step, block)
            else:
                at += 1
    return step


@dataclass(frozen=True)
class _Block:
    """Stretches from the first up to before the end."""

    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first

    def __contains__(self, place: int | None) -> bool:
        return place is not None and self.first <= place < self.end


def _round_starts(step: ObservedStep) -> list[int]:
    """See Note [Rounds], rule 1; the last round ends at no start and is never left out."""
    comes_back = {run.number for run in step.runs if run.is_backward}
    pending: set[int] = set()
    starts = []
    for place, stretch in enumerate(step.stretches):
        run = stretch.run
        if run is None:
            continue
        if run.is_backward:
            pending.discard(run.number)
            continue
        if not pending:
            starts.append(place)
        if run.number in comes_back:
            pending.add(run.number)
    return starts


def _stands_for(step: ObservedStep, block: _Block, following: _Block) -> bool:
    """See Note [Rounds], rule 2."""
    if len(block) != len(following):
        return False
    levels = list(_levels(step))
    pairs = zip(range(*_span(block)), range(*_span(following)), strict=True)
    for here, there in pairs:
        a, b = step.stretches[here], step.stretches[there]
        if (a.run is None) != (b.run is None) or a.passing_bytes > b.passing_bytes + _EQUAL_BYTES:
            return False
        if a.run is not None and b.run is not None:
            mine = a.run.kind, a.run.piece, a.run.is_backward
            if mine != (b.run.kind, b.run.piece, b.run.is_backward):
                return False
        if levels[here] > levels[there] + _EQUAL_BYTES:
            return False
    return _shape(step, block) == _shape(step, following)


def _span(block: _Block) -> tuple[int, int]:
    return block.first, block.end


def _levels(step: ObservedStep) -> Iterator[int]:
    """Bytes of holdings in each stretch."""
    changes = [0] * (len(step.stretches) + 1)
    for each in step.holdings:
        changes[max(each.born, 0)] += each.num_bytes
        if each.died is not None:
            changes[each.died + 1] -= each.num_bytes
    return itertools.islice(itertools.accumulate(changes), len(step.stretches))


def _shape(step: ObservedStep, block: _Block) -> Counter[object]:
    """What is made and what goes in it, and where; scalars aside."""
    found: Counter[object] = Counter()
    for each in step.holdings:
        if each.num_bytes <= _EQUAL_BYTES:
            continue
        if each.born in block:
            lives = None if each.died is None else each.died - each.born
            found["made", each.born - block.first, lives, each.place, each.num_bytes] += 1
        elif each.died is not None and each.died in block:
            found["gone", each.died - block.first, each.place, each.num_bytes] += 1
    return found


def _cut(step: ObservedStep, block: _Block) -> ObservedStep:
    """Without the block; the next one counts for it as well."""
    stretches = list(step.stretches)
    for place in range(block.first, block.end):
        there = place + len(block)
        times = stretches[there].times + stretches[place].times
        stretches[there] = replace(stretches[there], times=times)
    del stretches[block.first : block.end]

    def moved(place: int) -> int:
        return place - len(block) if place >= block.end else place

    holdings: list[Holding] = []
    for each in step.holdings:
        if each.born in block:
            if each.died is None:  # what adds up, as a list of losses: it is there from then on
                holdings.append(replace(each, place=None))
            continue
        died = None if each.died is None else moved(each.died)
        holdings.append(replace(each, born=moved(each.born), died=died))
    clears_at = None if step.clears_at is None else moved(step.clears_at)
    return replace(step, stretches=tuple(stretches), holdings=tuple(holdings), clears_at=clears_at)
