"""Compares two recordings of the same training steps.

In go what a plain and a fitted run computed; out comes how many tensors were compared, which of
them differ, and by how much. See Note [Equal].
"""

# Note [Equal]
# 1. `bitwise`: the same bits; nothing else is asked.
# 2. Otherwise a tensor is equal if the norm of the difference is within the tolerance times its own
#    norm, or times a share of the norm of everything of its kind in that step: gradients that are
#    zero but for rounding have no correct digit in either run.
# 3. That share is 1 for parameters, optimizer state and buffers: an optimizer such as Adam turns
#    the sign of a gradient that is mere rounding into an update of full size, and statistics follow
#    the parameters.
# 4. Random states and whole numbers are always compared bit for bit.
# 5. What one run knows by another path (its model was wrapped, or found in another order) is paired
#    with what has the same last name, shape and type there, in order. Parameters of optimizers have
#    no need of that: they go by their place in the optimizer.

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import final

import torch

from legroom.engine._recording import (
    BUFFERS,
    GRADIENTS,
    KINDS,
    LOSSES,
    PARAMETERS,
    RANDOM,
    STATES,
    Entry,
    Recording,
)
from legroom.engine._verification import Difference, ErrorFigures
from legroom.errors import UsageError
from legroom.ways import Exactness

_TOLERANCES = {Exactness.BITWISE: 0.0, Exactness.ROUNDING: 1e-3, Exactness.LOSSY: 0.1}
_NAMED_BY_OWNER = {BUFFERS, PARAMETERS}
_SHARES = {LOSSES: 0.0, GRADIENTS: 0.01, BUFFERS: 1.0, PARAMETERS: 1.0, STATES: 1.0}


@final
@dataclass(frozen=True)
class Comparison:
    """What comparing two recordings found."""

    steps: int
    compared: dict[str, int]
    different: tuple[Difference, ...]
    errors: dict[str, ErrorFigures]


def tolerance_for(exactness: str, tolerance: float | None = None) -> float:
    """The relative error that counts as equal; 0: the same bits.

    Raises:
        UsageError: A tolerance was asked for that means nothing.
    """
    usual = _TOLERANCES[Exactness(exactness)]
    if tolerance is None:
        return usual
    if not usual:
        raise UsageError(
            "exactness 'bitwise' compares bits, so it has no tolerance; leave tolerance out, or "
            "say exactness 'rounding'"
        )
    if not 0 < tolerance < math.inf:
        raise UsageError(
            f"tolerance {tolerance!r} is no relative error; write a number above 0, such as 0.01"
        )
    return tolerance


def compare(plain: Recording, other: Recording, *, tolerance: float = 0.0) -> Comparison:
    """Compare the steps that both have; see Note [Equal]."""
    counts: Counter[str] = Counter()
    different: list[Difference] = []
    gaps: dict[str, list[_Gap]] = defaultdict(list)
    num_steps = min(len(plain.steps), len(other.steps))
    for number in range(num_steps):
        pairs = _pairs(plain.steps[number], other.steps[number])
        counts.update(entry.kind for entry, mate in pairs if mate is not None)
        found = _Step(plain, other, number + 1, tolerance)
        different += found.differences(pairs)
        for kind, gap in found.gaps.items():
            gaps[kind].append(gap)
    return Comparison(
        steps=num_steps,
        compared={kind: counts[kind] for kind in KINDS},
        different=tuple(different),
        errors={kind: _figures(gaps[kind]) for kind in KINDS if gaps[kind]},
    )


def _pairs(plain: list[Entry], other: list[Entry]) -> list[tuple[Entry, Entry | None]]:
    """What is to be compared, in the order in which a step makes it; None where one lacks it.

    Gradients come from the last layer to the first.
    """
    mates = {(entry.kind, entry.key): entry for entry in other}
    pairs: list[tuple[Entry, Entry | None]] = [
        (entry, mates.pop((entry.kind, entry.key), None)) for entry in plain
    ]
    unnamed: dict[object, list[Entry]] = defaultdict(list)
    for entry in mates.values():
        unnamed[_likeness(entry)].append(entry)
    for index, (entry, mate) in enumerate(pairs):
        alike = unnamed[_likeness(entry)] if mate is None else []
        if alike and entry.kind in _NAMED_BY_OWNER:
            pairs[index] = entry, alike.pop(0)
    pairs += [(entry, None) for entries in unnamed.values() for entry in entries]
    by_kind: dict[str, list[tuple[Entry, Entry | None]]] = defaultdict(list)
    for pair in pairs:
        by_kind[pair[0].kind].append(pair)
    by_kind[GRADIENTS].reverse()
    return [pair for kind in KINDS for pair in by_kind[kind]]


def _likeness(entry: Entry) -> object:
    """See Note [Equal], rule 5."""
    return entry.kind, entry.key.rpartition(".")[2], entry.shape, entry.dtype


@dataclass
class _Gap:
    """Sums over one kind in one step."""

    largest: float = 0.0
    difference_squared: float = 0.0
    plain_squared: float = 0.0


class _Step:
    """One step of both runs."""

    def __init__(self, plain: Recording, other: Recording, number: int, tolerance: float) -> None:
        self.gaps: dict[str, _Gap] = {}
        self._plain, self._other = plain, other
        self._number = number
        self._tolerance = tolerance

    def differences(self, pairs: list[tuple[Entry, Entry | None]]) -> list[Difference]:
        """What is not equal."""
        unequal = [(a, b) for a, b in pairs if b is None or a.digest != b.digest]
        kinds = {a.kind for a, _ in unequal}
        squares = {kind: self._squares(kind, pairs) for kind in kinds if self._tolerance}
        found = []
        for entry, mate in unequal:
            gap = None if mate is None else self._gap(entry, mate)
            if gap is not None:
                self._add(entry.kind, gap)
                scale = self._scale(gap, squares.get(entry.kind, 0.0), _SHARES.get(entry.kind, 0.0))
                if self._tolerance and math.sqrt(gap.difference_squared) <= self._tolerance * scale:
                    continue
            found.append(self._difference(entry, gap))
        for kind, gap in self.gaps.items():
            gap.plain_squared = self._squares(kind, pairs)
        return found

    def _scale(self, gap: _Gap, kind_squared: float, share: float) -> float:
        """See Note [Equal], rules 2 and 3."""
        return max(math.sqrt(gap.plain_squared), share * math.sqrt(kind_squared))

    def _squares(self, kind: str, pairs: list[tuple[Entry, Entry | None]]) -> float:
        values = (
            self._plain.value(entry)
            for entry, _ in pairs
            if entry.kind == kind and _has_fractions(entry)
        )
        return sum(_squared(value) for value in values if value is not None)

    def _gap(self, entry: Entry, mate: Entry) -> _Gap | None:
        if entry.shape != mate.shape or not (_has_fractions(entry) and _has_fractions(mate)):
            return None
        ours, theirs = self._plain.value(entry), self._other.value(mate)
        if ours is None or theirs is None:
            return None
        difference = theirs - ours
        same = (theirs == ours) | (theirs.isnan() & ours.isnan())
        difference[same] = 0
        largest = float(difference.abs().max()) if difference.numel() else 0.0
        return _Gap(largest, _squared(difference), _squared(ours))

    def _add(self, kind: str, gap: _Gap) -> None:
        sums = self.gaps.setdefault(kind, _Gap())
        sums.largest = max(sums.largest, gap.largest)
        sums.difference_squared += gap.difference_squared

    def _difference(self, entry: Entry, gap: _Gap | None) -> Difference:
        return Difference(
            step=self._number,
            kind=entry.kind,
            name=entry.name,
            module=entry.module,
            largest_difference=None if gap is None else _finite(gap.largest),
            relative_error=None if gap is None else _relative(gap),
        )


def _has_fractions(entry: Entry) -> bool:
    """Whether it holds numbers of which some digits may be wrong; see Note [Equal], rule 4."""
    return entry.kind != RANDOM and entry.dtype.startswith(("float", "bfloat", "complex"))


def _figures(gaps: list[_Gap]) -> ErrorFigures:
    relative = [_relative(gap) for gap in gaps]
    known = [each for each in relative if each is not None]
    return ErrorFigures(
        largest_difference=_finite(max(gap.largest for gap in gaps)),
        relative_error=max(known) if len(known) == len(relative) else None,
    )


def _relative(gap: _Gap) -> float | None:
    if not gap.difference_squared:
        return 0.0
    if not gap.plain_squared:
        return None
    return _finite(math.sqrt(gap.difference_squared / gap.plain_squared))


def _squared(value: torch.Tensor) -> float:
    return float(value.abs().square().sum())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
