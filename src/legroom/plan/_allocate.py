"""Bits where they matter: within the same budget, what gradients depend on more gets more of them.

In go a plan's choice and how much gradients suffer from each tensor that is held with an error; out
comes the choice with other forms for the same tensors. See Note [Allocation].
"""

# Note [Allocation]
# 1. Errors of tensors are random and independent, so their squares add up. What one tensor adds is
#    its sensitivity times the square of its form's own error (`AbstractTechnique.error`): so one
#    measurement for each tensor is enough (ActNN's rule).
# 2. All tensors begin with the fewest bytes. The next bytes go where they lower the error most, as
#    long as the simulator says that the peak is within the budget and little time is added.
# 3. A recipe of the literature, which was asked for by name, holds no more bytes than before, and
#    takes the time that it takes.
# 4. Only the forms of what the plan holds with an error change, and to none that is much slower.
#    What is good for its readers only keeps its own form, whose error is another matter.

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from legroom import ways
from legroom.plan._problem import Candidate, Choice, Option, Place, Problem
from legroom.plan._search import Entry, Search
from legroom.plan._simulate import Trace
from legroom.ways import Exactness

_MOST_TIME = 0.02
"""Of the step, so much more time may it take."""
_MUCH_SLOWER = 1.5
"""A form that takes so many times longer than the plan's is left out."""


@final
@dataclass(frozen=True, slots=True)
class Adjustable:
    """A tensor that is held with an error, and whose form can be another.

    Attributes:
        num_bytes: As it is made.
        numbers: Of the candidates that the same decision holds for.
        forms: Names of ways from the fewest bytes to the least error.
    """

    place: Place
    num_bytes: int
    numbers: tuple[int, ...]
    forms: tuple[str, ...]


def adjustables(search: Search, choice: Choice) -> list[Adjustable]:
    """What there is to allocate, in the order of forward."""
    problem, trace = search.problem, Trace()
    search.simulator.run(choice, trace)
    found: dict[Place, Adjustable] = {}
    for number in sorted(trace.put):
        index, candidate = choice.options[number], problem.candidates[number]
        place = problem.place_of(candidate)
        if place is not None and _is_adjustable(candidate.options[index]):
            forms = tuple(
                candidate.options[each].way
                for each in _ladder(candidate, index)
                if not candidate.options[each].saving.keeps_whole
            )
            if len(forms) > 1:
                found[place] = Adjustable(place, candidate.num_bytes, problem.tied[number], forms)
    return list(found.values())


def with_least_error(
    search: Search,
    entry: Entry,
    budget_bytes: int,
    sensitivity: Mapping[Place, float],
    *,
    holds_no_more: bool = False,
) -> Entry:
    """The entry with the bits of its tensors allocated anew; see Note [Allocation].

    Args:
        sensitivity: By tensor; what is missing stays as it is.
        holds_no_more: See Note [Allocation], rule 3.
    """
    groups = [
        _Group.of(search.problem, entry.choice, each.numbers, sensitivity[each.place])
        for each in adjustables(search, entry.choice)
        if each.place in sensitivity
    ]
    most_held = sum(group.held_before for group in groups) if holds_no_more else None
    most_ms = entry.outcome.added_ms + _MOST_TIME * search.problem.step_ms
    if holds_no_more:
        most_ms = math.inf
    rungs = [0] * len(groups)
    best = _at(search, entry, groups, rungs)
    if best.outcome.peak_bytes > budget_bytes:
        return entry
    steps = [(-group.gain(0), number) for number, group in enumerate(groups)]
    heapq.heapify(steps)
    while steps:
        _, number = heapq.heappop(steps)
        trial = [*rungs]
        trial[number] += 1
        if trial[number] >= len(groups[number].ladder):
            continue
        if most_held is not None and _held_bytes(groups, trial) > most_held:
            continue
        made = _at(search, entry, groups, trial)
        fits = made.outcome.peak_bytes <= budget_bytes
        if fits and made.outcome.added_ms <= max(most_ms, best.outcome.added_ms):
            best, rungs = made, trial
            heapq.heappush(steps, (-groups[number].gain(rungs[number]), number))
    error = sum(group.errors[rung] for group, rung in zip(groups, rungs, strict=True))
    is_better = error < sum(group.error_before for group in groups)
    return best if is_better and best.outcome.added_ms <= most_ms else entry


def _held_bytes(groups: list[_Group], rungs: list[int]) -> int:
    return sum(group.held_bytes[rung] for group, rung in zip(groups, rungs, strict=True))


def _at(search: Search, entry: Entry, groups: list[_Group], rungs: list[int]) -> Entry:
    options = list(entry.choice.options)
    for group, rung in zip(groups, rungs, strict=True):
        for number in group.numbers:
            options[number] = group.ladder[rung]
    choice = Choice(tuple(options), entry.choice.variants)
    return Entry(choice, search.simulator.run(choice), entry.origin)


@final
@dataclass(frozen=True)
class _Group:
    """Candidates with one decision, and their options from the fewest bytes to the least error."""

    numbers: tuple[int, ...]
    ladder: tuple[int, ...]
    held_bytes: tuple[int, ...]
    errors: tuple[float, ...]
    held_before: int
    error_before: float

    @classmethod
    def of(
        cls, problem: Problem, choice: Choice, numbers: tuple[int, ...], sensitivity: float
    ) -> _Group:
        candidate = problem.candidates[numbers[0]]
        before = choice.options[numbers[0]]
        ladder = _ladder(candidate, before)

        def held(index: int) -> int:
            return len(numbers) * candidate.options[index].saving.held_bytes

        def error(index: int) -> float:
            return sensitivity * ways.get(candidate.options[index].way).error ** 2

        return cls(
            numbers,
            ladder,
            tuple(map(held, ladder)),
            tuple(map(error, ladder)),
            held(before),
            error(before),
        )

    def gain(self, rung: int) -> float:
        """How much less error a byte brings on the next rung."""
        if rung + 1 >= len(self.ladder):
            return 0.0
        more_bytes = self.held_bytes[rung + 1] - self.held_bytes[rung]
        return (self.errors[rung] - self.errors[rung + 1]) / max(1, more_bytes)


def _is_adjustable(option: Option) -> bool:
    """Whether it has an error, that of its numbers; see Note [Allocation], rule 4."""
    is_lossy = ways.get(option.way).exactness is Exactness.LOSSY
    saving = option.saving
    return is_lossy and saving.is_encoded and not saving.about and not saving.readers_only


def _ladder(candidate: Candidate, before: int) -> tuple[int, ...]:
    """Options from the fewest bytes to the tensor itself, by how much less error a byte brings.

    Without those that are much slower than the one before.
    """
    most_ms = _MUCH_SLOWER * _time(candidate.options[before])
    found: list[tuple[int, float, int]] = []
    for index, option in enumerate(candidate.options):
        is_form = _is_adjustable(option) and _time(option) <= most_ms
        if option.saving.keeps_whole or is_form:
            found.append((option.saving.held_bytes, ways.get(option.way).error ** 2, index))
    ladder: list[tuple[int, float, int]] = []
    for each in sorted(found):
        if ladder and each[1] >= ladder[-1][1]:
            continue
        while len(ladder) > 1 and _slope(ladder[-2], each) <= _slope(ladder[-2], ladder[-1]):
            ladder.pop()
        ladder.append(each)
    return tuple(index for _, _, index in ladder)


def _time(option: Option) -> float:
    return option.saving.put_ms + option.saving.get_ms


def _slope(few: tuple[int, float, int], many: tuple[int, float, int]) -> float:
    return (many[1] - few[1]) / max(1, many[0] - few[0])
