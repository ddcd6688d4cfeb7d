"""From the books of a real step to what the loop itself held: an `ObservedStep`.

In go a ledger, the scopes of ours among the profiler's events, and a note for each run of a piece;
out comes the row of stretches with the holdings between them. See Note [Observed step] in
`capture/_observed.py`.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from legroom.capture import STATE, Holding, Kind, ObservedRun, ObservedStep, Phase, Stretch
from legroom.meter._events import EventStream
from legroom.meter._ledger import Block, Ledger
from legroom.meter._scopes import Tag

_UPDATE, _CLEAR = "Optimizer.step#", "Optimizer.zero_grad#"

Port = tuple[str, int, int]
"""Something that a piece returns: the node that makes it, its place in what that writes, bytes."""


@final
@dataclass
class RunNote:
    """What is known of one run of a piece beside the profiler's events.

    Attributes:
        ports: What it returns, in the order in which it is made.
        addresses: Of what forward returned; backward's are told by what is still there.
    """

    run: ObservedRun
    ports: tuple[Port, ...]
    addresses: tuple[int, ...] = ()


def observe(
    ledger: Ledger, stream: EventStream, notes: Sequence[RunNote], *, is_first: bool
) -> ObservedStep | None:
    """The step between the ledger's two boundaries; None where its runs cannot be told apart."""
    start_ns, end_ns = ledger.boundaries_ns
    windows = [
        _Window(op.start_ns, op.end_ns, notes[op.number])
        for op in stream.operations
        if op.tag is Tag.PIECE and start_ns <= op.start_ns <= end_ns and op.number < len(notes)
    ]
    windows.sort(key=lambda each: each.start_ns)
    if any(a.end_ns > b.start_ns for a, b in itertools.pairwise(windows)):
        return None
    return _Observation(ledger, stream, windows, is_first).step()


@dataclass(frozen=True)
class _Window:
    """While a piece ran."""

    start_ns: int
    end_ns: int
    note: RunNote


@dataclass
class _Track:
    """A block that is a holding, or comes and goes in a stretch of the loop.

    Attributes:
        born, died: Numbers of regions: -1 before the step, None beyond it.
        born_in, died_in: Of stretches, once those are known.
    """

    block: Block
    born: int
    died: int | None
    kind: Kind
    place: tuple[str, int] | None = None
    is_renewed: bool = False
    born_in: int = -1
    died_in: int | None = None


@dataclass
class _Draft:
    """A stretch of the loop while it is being cut."""

    start_ns: int
    end_ns: int = 0
    highest: int = 0
    lasting: int = 0
    has_deaths: bool = False
    changes: list[tuple[_Track, bool]] = field(default_factory=list)


class _Observation:
    """Regions are the gaps between windows (even numbers) and the windows (odd numbers)."""

    def __init__(
        self, ledger: Ledger, stream: EventStream, windows: list[_Window], is_first: bool
    ) -> None:
        self._ledger, self._windows, self._is_first = ledger, windows, is_first
        self._start_ns, self._end_ns = ledger.boundaries_ns
        self._window_starts = [window.start_ns for window in windows]
        self._updates = _spans(stream, _UPDATE)
        self._clears = [
            start for start, _ in _spans(stream, _CLEAR) if self._start_ns <= start <= self._end_ns
        ]
        runs = [window.note.run for window in windows]
        self._has_backward = {run.number for run in runs if run.is_backward}
        self._tracks: dict[int, _Track] = {}
        self._stretches: list[Stretch] = []

    def step(self) -> ObservedStep:
        self._track_blocks()
        highest, peak_bytes = self._peaks()
        changes = self._changes_by_region()
        level = lasting = sum(
            track.block.num_bytes for track in self._tracks.values() if track.born < 0
        )
        for region in range(2 * len(self._windows) + 1):
            if region % 2:
                window = self._windows[region // 2]
                for track, is_birth in changes.get(region, ()):
                    amount = track.block.num_bytes if is_birth else -track.block.num_bytes
                    level, lasting = level + amount, lasting + amount
                    self._settle(track, is_birth, len(self._stretches))
                run = window.note.run
                phase = Phase.BACKWARD if run.is_backward else Phase.FORWARD
                self._stretches.append(Stretch(phase, run, peak_bytes=highest.get(region, 0)))
            else:
                level, lasting = self._cut(
                    region, changes.get(region, []), level, lasting, highest.get(region, 0)
                )
        return ObservedStep(
            stretches=tuple(self._stretches),
            holdings=tuple(self._holdings()),
            peak_bytes=peak_bytes,
            clears_at=self._clears_at(),
            is_first=self._is_first,
        )

    # Blocks --------------------------------------------------------------------------------------

    def _region(self, time_ns: int) -> int:
        number = bisect.bisect_right(self._window_starts, time_ns) - 1
        if number < 0:
            return 0
        return 2 * number + (1 if time_ns <= self._windows[number].end_ns else 2)

    def _track_blocks(self) -> None:
        made_in: dict[int, list[tuple[Block, int | None]]] = defaultdict(list)
        for block in self._ledger.blocks:
            if block.died_ns is not None and block.died_ns < self._start_ns:
                continue
            if block.born_ns > self._end_ns and not block.is_opening:
                continue
            is_gone = block.died_ns is not None and block.died_ns <= self._end_ns
            died = self._region(block.died_ns) if is_gone and block.died_ns is not None else None
            if block.is_opening or block.born_ns < self._start_ns:
                kind = block.kind or Kind.INPUTS
                if kind is Kind.GRADIENTS and died is not None:
                    kind = Kind.TEMPORARIES_BACKWARD  # its successor is the one that counts
                self._tracks[block.index] = _Track(block, -1, died, kind)
                continue
            born = self._region(block.born_ns)
            if born % 2:
                if died != born:
                    made_in[born].append((block, died))
            else:
                self._tracks[block.index] = self._of_loop(block, born, died)
        for region, blocks in made_in.items():
            self._track_returned(self._windows[region // 2], region, blocks)

    def _of_loop(self, block: Block, born: int, died: int | None) -> _Track:
        is_update = any(start <= block.born_ns <= end for start, end in self._updates)
        if is_update and died is None and self._is_first:
            return _Track(block, born, died, Kind.OPTIMIZER_STATE, is_renewed=True)
        return _Track(block, born, died, self._kind_of_loop(born, died, is_update))

    def _kind_of_loop(self, born: int, died: int | None, is_update: bool) -> Kind:
        if is_update:
            return Kind.TEMPORARIES_OPTIMIZER
        windows = self._windows
        before = windows[born // 2 - 1] if born else None
        if before is None:
            return Kind.INPUTS
        if before.note.run.is_backward:
            return Kind.TEMPORARIES_BACKWARD
        later = windows[born // 2 : len(windows) if died is None else died // 2]
        is_kept = any(window.note.run.is_backward for window in later)
        return Kind.STASH if is_kept else Kind.TEMPORARIES_FORWARD

    def _track_returned(
        self, window: _Window, region: int, blocks: list[tuple[Block, int | None]]
    ) -> None:
        """Of what a piece made and left, what it returned; see Note [Observed step], rule 3."""
        note = window.note
        if note.run.is_backward:
            returned = blocks
        else:
            returned = [each for each in blocks if each[0].address in note.addresses]
        ports = list(note.ports)
        for block, died in returned:
            port = next((each for each in ports if each[2] == block.num_bytes), None)
            if port is not None:
                ports.remove(port)
            place = None if port is None else port[:2]
            kind = Kind.TEMPORARIES_FORWARD
            if note.run.is_backward:
                kind = Kind.GRADIENTS if died is None else Kind.TEMPORARIES_BACKWARD
            self._tracks[block.index] = _Track(block, region, died, kind, place)
        if not note.run.is_backward and note.run.number not in self._has_backward:
            for block, died in blocks:
                if block.index not in self._tracks:
                    self._tracks[block.index] = _Track(block, region, died, Kind.STASH)

    # Stretches -----------------------------------------------------------------------------------

    def _peaks(self) -> tuple[dict[int, int], int]:
        """The most bytes alive in each region, and in the whole step, whoever they belong to."""
        total = self._ledger.opening_bytes
        found: dict[int, int] = {}
        region = 0
        for change in self._ledger.changes:
            if change.time_ns > self._end_ns:
                break
            if change.time_ns >= self._start_ns:
                now = self._region(change.time_ns)
                for passed in range(region, now + 1):
                    found[passed] = max(found.get(passed, 0), total)
                region = now
            total += change.delta_bytes
            if change.time_ns >= self._start_ns:
                found[region] = max(found.get(region, 0), total)
        for passed in range(region, 2 * len(self._windows) + 1):
            found[passed] = max(found.get(passed, 0), total)
        return found, max(found.values())

    def _changes_by_region(self) -> dict[int, list[tuple[_Track, bool]]]:
        found: dict[int, list[tuple[_Track, bool]]] = defaultdict(list)
        for change in self._ledger.changes:
            track = self._tracks.get(change.block)
            if track is None or not self._start_ns <= change.time_ns <= self._end_ns:
                continue
            is_birth = change.delta_bytes > 0
            region = track.born if is_birth else track.died
            if region is not None and region >= 0:
                found[region].append((track, is_birth))
        return found

    def _cut(
        self,
        region: int,
        changes: list[tuple[_Track, bool]],
        level: int,
        lasting: int,
        highest: int,
    ) -> tuple[int, int]:
        """Cut what the loop did between two windows; see Note [Observed step], rule 1."""
        if not changes:
            return level, lasting
        draft = _Draft(_time_of(*changes[0]), highest=level, lasting=lasting)
        drafts = [draft]
        for track, is_birth in changes:
            is_lasting = track.died != region if is_birth else track.born != region
            amount = track.block.num_bytes if is_birth else -track.block.num_bytes
            if is_birth and is_lasting and draft.has_deaths:
                draft = _Draft(track.block.born_ns, highest=level, lasting=lasting)
                drafts.append(draft)
            draft.end_ns = _time_of(track, is_birth)
            level += amount
            draft.highest = max(draft.highest, level)
            if is_lasting:
                lasting += amount
                draft.has_deaths = draft.has_deaths or not is_birth
                draft.lasting += amount if is_birth else 0
                draft.changes.append((track, is_birth))
        for draft in drafts:
            for track, is_birth in draft.changes:
                self._settle(track, is_birth, len(self._stretches))
            passing_bytes = max(0, draft.highest - draft.lasting)
            stretch = Stretch(
                self._phase(region, draft), passing_bytes=passing_bytes, peak_bytes=highest
            )
            self._stretches.append(stretch)
        return level, lasting

    def _settle(self, track: _Track, is_birth: bool, stretch: int) -> None:
        if is_birth:
            track.born_in = stretch
        else:
            track.died_in = stretch

    def _phase(self, region: int, draft: _Draft) -> Phase:
        if any(start <= draft.end_ns and draft.start_ns <= end for start, end in self._updates):
            return Phase.OPTIMIZER
        place = region // 2
        before = self._windows[place - 1].note.run if place else None
        after = self._windows[place].note.run if place < len(self._windows) else None
        if before is not None and not before.is_backward:
            return Phase.LOSS
        if before is not None and after is not None and after.is_backward:
            return Phase.BACKWARD
        return Phase.OTHER

    def _clears_at(self) -> int | None:
        """The stretch in which gradients were let go last, after the first window."""
        times = [
            each for each in self._clears if self._window_starts and each > self._window_starts[0]
        ]
        if not times:
            return None
        runs = [number for number, each in enumerate(self._stretches) if each.run is not None]
        windows_before = bisect.bisect_right(self._window_starts, times[0])
        return min(runs[windows_before - 1] + 1, len(self._stretches) - 1)

    # Holdings ------------------------------------------------------------------------------------

    def _holdings(self) -> Iterable[Holding]:
        together: dict[Holding, int] = defaultdict(int)
        for track in self._tracks.values():
            if track.born == track.died:
                continue
            into_run = track.died_in is not None and self._stretches[track.died_in].run is not None
            each = Holding(
                track.block.num_bytes,
                track.kind,
                track.born_in if track.born >= 0 else -1,
                track.died_in if track.died is not None else None,
                track.place,
                track.is_renewed,
            )
            carried = self._is_first and track.born >= 0 and track.died is None
            if track.place is not None or carried or (into_run and track.kind not in STATE):
                yield each  # it is told apart by its size
            else:
                together[replace(each, num_bytes=0)] += track.block.num_bytes
        for each, num_bytes in together.items():
            yield replace(each, num_bytes=num_bytes)


def _time_of(track: _Track, is_birth: bool) -> int:
    return track.block.born_ns if is_birth else (track.block.died_ns or 0)


def _spans(stream: EventStream, prefix: str) -> list[tuple[int, int]]:
    return [(op.start_ns, op.end_ns) for op in stream.operations if op.name.startswith(prefix)]
