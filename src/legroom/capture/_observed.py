"""A real training step, observed: where planned pieces ran, and what the loop itself held when.

What measuring hands to the planner beside captured graphs: plain values, without anything that the
plan at work held, so that another plan can be put in its place. See Note [Observed step].
"""

# Note [Observed step]
# 1. A step is a row of stretches: either one run of a piece, forward or backward, or something that
#    the loop did between two of them. Stretches of the loop are cut so that within each, what comes
#    to stay comes before what stayed until then goes.
# 2. A holding is memory that outlives the stretch that made it: what the loop made and kept, what a
#    piece returned to it, gradients of parameters. Holdings that come and go together are one.
# 3. What a piece makes and keeps for its own backward, or drops, is no holding: that is the plan's.
#    Of a run whose backward never comes, what it left behind is the loop's.
# 4. What is there when the step begins was born at -1; what is there when it ends dies at None.

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from legroom.capture._kinds import Kind, Phase


@final
@dataclass(frozen=True, slots=True)
class ObservedRun:
    """One run of a piece, forward or backward.

    Attributes:
        kind: Number of the kind of call.
        call: Number of the call in the step.
        piece: Of the kind's captured pieces; -1 where it is none of them.
        number: Of the run of forward; that of backward has the same.
    """

    kind: int
    call: int
    piece: int
    number: int
    is_backward: bool


@final
@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a step; see Note [Observed step], rule 1.

    Attributes:
        run: The run of a piece; None where it is the loop.
        passing_bytes: The most that came and went in it, on top of all holdings; of the loop only.
        peak_bytes: The most that was alive in it, plans included.
        times: How many like it there were in a row; the others are left out.
    """

    phase: Phase
    run: ObservedRun | None = None
    passing_bytes: int = 0
    peak_bytes: int = 0
    times: int = 1


@final
@dataclass(frozen=True, slots=True)
class Holding:
    """Memory that outlives a stretch; see Note [Observed step], rules 2 to 4.

    Attributes:
        born: The stretch that made it; -1: it was there before.
        died: The stretch in or after which it was gone; None: it was there at the end.
        place: Of what a piece returned: the node that made it, and its place in what that writes.
        is_renewed: Whether the update at the end of the step made it, to stay: optimizer state.
    """

    num_bytes: int
    kind: Kind
    born: int
    died: int | None
    place: tuple[str, int] | None = None
    is_renewed: bool = False


@final
@dataclass(frozen=True)
class ObservedStep:
    """One step of a loop; see Note [Observed step].

    Attributes:
        peak_bytes: The most bytes that were alive at once.
        clears_at: The stretch in which `zero_grad` was called, after planned calls had begun; None
            where it was not.
        is_first: Whether what a step leaves for the next one was not there yet when it began.
    """

    stretches: tuple[Stretch, ...]
    holdings: tuple[Holding, ...]
    peak_bytes: int
    clears_at: int | None = None
    is_first: bool = False

    @property
    def runs(self) -> tuple[ObservedRun, ...]:
        """The runs of pieces, in order."""
        return tuple(each.run for each in self.stretches if each.run is not None)

    @property
    def outline(self) -> tuple[tuple[int, int, bool], ...]:
        """What tells steps apart: which pieces of which kinds ran, in which order."""
        return tuple((run.kind, run.piece, run.is_backward) for run in self.runs)

    def to_json(self) -> str:
        """The step as one JSON object."""
        return json.dumps(asdict(self), default=lambda value: value.value)

    @classmethod
    def from_json(cls, text: str) -> ObservedStep:
        """A step that `to_json` wrote."""
        data = json.loads(text)
        return cls(
            stretches=tuple(_stretch(each) for each in data.pop("stretches")),
            holdings=tuple(_holding(each) for each in data.pop("holdings")),
            **data,
        )

    def as_it_repeats(self) -> ObservedStep:
        """The step as the next one will be, if it is the first: with what the first leaves behind.

        What a name stood for is let go when the name stands for something new: after the first
        stretch that makes something like it. Gradients are let go where `zero_grad` was called;
        where that was not within the step, it is between two. State that the update made stays.
        """
        if not self.is_first:
            return self
        more = []
        first: dict[object, int] = {}
        for each in self.holdings:
            if each.born >= 0:
                alike = each.num_bytes, each.place
                first[alike] = min(each.born, first.get(alike, each.born))
        for each in self.holdings:
            if each.born < 0 or each.died is not None:
                continue
            if each.is_renewed:
                more.append(replace(each, born=-1, place=None))
            elif each.kind is Kind.GRADIENTS:
                if self.clears_at is not None:
                    temporary = Kind.TEMPORARIES_BACKWARD
                    died = self.clears_at
                    more.append(replace(each, kind=temporary, born=-1, died=died, place=None))
            else:
                died = first[each.num_bytes, each.place]
                more.append(replace(each, kind=Kind.INPUTS, born=-1, died=died, place=None))
        stays = tuple(each for each in self.holdings if not (each.is_renewed and each.born >= 0))
        return replace(self, holdings=(*stays, *more))


def _stretch(fields: dict[str, Any]) -> Stretch:
    run = fields.pop("run")
    phase = Phase(fields.pop("phase"))
    return Stretch(phase, None if run is None else ObservedRun(**run), **fields)


def _holding(fields: dict[str, Any]) -> Holding:
    place = fields.pop("place")
    kind = Kind(fields.pop("kind"))
    return Holding(kind=kind, place=None if place is None else (place[0], place[1]), **fields)
