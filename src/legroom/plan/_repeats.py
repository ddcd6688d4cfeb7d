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
# 3. Where many rounds are left, they are looked at once more, since the loop may do more from round
#    to round: L-BFGS goes through a history that grows. Runs are compared one by one, and what the
#    loop did between two of them as a whole. Where the next block is lower nowhere, and what pieces
#    return or what runs out in them is gone by the same run, the block is left out. What it let go
#    is let go in its place, and then what it left is there.

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from legroom.capture import Holding, ObservedStep, Phase, Stretch

_LONGEST = 6
"""Rounds that are looked at as one block, at most."""
_MANY = 8
"""Up to so many rounds are cheap to plan one by one."""
_EQUAL_BYTES = 512
"""What comes and goes may differ by so much: scalars of the loop."""


def without_repeats(step: ObservedStep) -> ObservedStep:
    """The step with blocks of rounds left out that the next one stands for."""
    step = _without(step, _stands_for, _cut)
    if len(_round_starts(step)) > _MANY:
        step = _without(step, _is_no_lower, _take_out)
    return step


def _without(
    step: ObservedStep,
    stands_for: Callable[[ObservedStep, _Block, _Block], bool],
    leave_out: Callable[[ObservedStep, _Block, _Block], ObservedStep],
) -> ObservedStep:
    for length in range(1, _LONGEST + 1):
        at = 0
        while True:
            starts = _round_starts(step)
            if at + 2 * length >= len(starts):
                break
            block = _Block(starts[at], starts[at + length])
            following = _Block(starts[at + length], starts[at + 2 * length])
            if stands_for(step, block, following):
                step = leave_out(step, block, following)
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


def _cut(step: ObservedStep, block: _Block, following: _Block) -> ObservedStep:
    """Without the block; the next one counts for it as well."""
    assert len(following) == len(block), "bug in legroom: a block stands for a longer one"
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


# Rounds of different lengths: Note [Rounds], rule 3 -----------------------------------------------


def _is_no_lower(step: ObservedStep, block: _Block, following: _Block) -> bool:
    """Whether the next block has the same runs, and is lower nowhere."""
    mine, theirs = _parts(step, block), _parts(step, following)
    if _runs_in(step, mine) != _runs_in(step, theirs):
        return False
    levels = list(_levels(step))

    def highest(part: range) -> int:
        return max(
            (levels[place] + step.stretches[place].passing_bytes for place in part), default=0
        )

    if any(
        highest(here) > highest(there) + _EQUAL_BYTES
        for here, there in zip(mine, theirs, strict=True)
    ):
        return False
    return _returned(step, mine) == _returned(step, theirs)


def _parts(step: ObservedStep, block: _Block) -> list[range]:
    """By turns a run, and what the loop did after it."""
    places = range(*_span(block))
    starts = [place for place in places if step.stretches[place].run is not None]
    parts = []
    for start, end in itertools.pairwise((*starts, block.end)):
        parts += [range(start, start + 1), range(start + 1, end)]
    return parts


def _runs_in(step: ObservedStep, parts: list[range]) -> list[tuple[int, int, int, bool]]:
    """Kind and piece of each run, and which of the block's it is, by its forward."""
    order: dict[int, int] = {}
    found = []
    for part in parts[::2]:
        run = step.stretches[part.start].run
        assert run is not None, "bug in legroom: a round without its run"
        number = order.setdefault(run.number, len(order))
        found.append((run.kind, run.piece, number, run.is_backward))
    return found


def _returned(step: ObservedStep, parts: list[range]) -> Counter[object]:
    """What pieces return and when it is gone, and what runs out while they run; scalars aside."""
    part_of = {place: number for number, part in enumerate(parts) for place in part}
    found: Counter[object] = Counter()
    for each in step.holdings:
        if each.num_bytes <= _EQUAL_BYTES:
            continue
        gone = None if each.died is None else part_of.get(each.died)
        if each.place is not None and each.born in part_of:
            found["made", part_of[each.born], each.place, each.num_bytes, gone] += 1
        elif gone is not None and gone % 2 == 0:
            found["gone", gone, each.num_bytes] += 1
    return found


def _take_out(step: ObservedStep, block: _Block, following: _Block) -> ObservedStep:
    """Without the block; two stretches of the loop let go what it let go, and make what it left."""
    stretches = list(step.stretches)
    for here, there in zip(_parts(step, block), _parts(step, following), strict=True):
        if stretches[here.start : here.stop] and stretches[here.start].run is not None:
            times = stretches[there.start].times + stretches[here.start].times
            stretches[there.start] = replace(stretches[there.start], times=times)
    goes, comes = block.first, block.first + 1
    stretches[block.first : block.end] = [Stretch(Phase.OTHER), Stretch(Phase.OTHER)]

    def moved(place: int) -> int:
        return place - len(block) + 2 if place >= block.end else min(place, goes)

    holdings: list[Holding] = []
    for each in step.holdings:
        died = None if each.died is None else moved(each.died)
        if each.born not in block:
            holdings.append(replace(each, born=moved(each.born), died=died))
        elif each.died is None or each.died >= block.end:
            holdings.append(replace(each, born=comes, died=died, place=None))
    clears_at = None if step.clears_at is None else moved(step.clears_at)
    return replace(step, stretches=tuple(stretches), holdings=tuple(holdings), clears_at=clears_at)
