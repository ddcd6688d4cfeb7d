"""One recorded step, with everything that the tables of a profile are made from.

In goes a `Recording`; out comes the step with the highest peak: its window of time, its books, what
was alive when, and the source line behind every block and operation.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import replace

from legroom.capture import Kind, Phase, Site
from legroom.meter._events import Operation
from legroom.meter._ledger import Block, Ledger, build_ledger
from legroom.meter._origins import NO_SITE, Origin, find_origins
from legroom.meter._profile import StepSummary
from legroom.meter._recorder import Recording
from legroom.meter._scopes import Tag
from legroom.meter._timeline import Balance, alive_after, balances

_NOWHERE = Site("", 0, "", "", "", 0, "")


class RecordedStep:
    """The recorded step with the highest peak, taken apart.

    Attributes:
        ledger: The books of the whole recording.
        origins: Where each operation comes from.
        steps: Peak and time of every recorded step.
        start_ns: When this step began.
        end_ns: When it ended.
        moments: The balance after every change in it.
        peak: The highest of them.
        stash_peak: The one with the largest stash.
        at_peak: Indices of the blocks that are alive at the peak.
        at_stash_peak: Indices of those alive when the stash is largest.
        sites: The source line behind each block, at its index.
        operations: The operations of the step with their origins, legroom's own left out.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.ledger = build_ledger(recording)
        self.origins = find_origins(recording.stream)
        self._overhead = _Overhead(recording.stream.operations)
        windows = _windows(self.ledger, recording.stream.operations)
        runs = [balances(self.ledger, start, end) for start, end in windows]
        peaks = [max(run, key=lambda moment: moment.total_bytes) for run in runs]
        chosen = max(range(len(runs)), key=lambda i: peaks[i].total_bytes)
        self.steps = tuple(
            StepSummary(peak.total_bytes, self.worked_ms(*window))
            for peak, window in zip(peaks, windows, strict=True)
        )
        self.start_ns, self.end_ns = windows[chosen]
        self.moments, self.peak = runs[chosen], peaks[chosen]
        self.stash_peak = max(self.moments, key=lambda moment: moment.of(Kind.STASH))
        self.at_peak = alive_after(self.ledger, self.peak.change)
        self.at_stash_peak = alive_after(self.ledger, self.stash_peak.change)
        weight_sites = self._find_weight_sites()
        self.sites = [self._site_of_block(block, weight_sites) for block in self.ledger.blocks]
        self.operations = self._find_operations()

    # Where things come from

    def site(self, number: int) -> Site:
        """The site with this number; an empty one for `NO_SITE`."""
        return self.recording.sites[number] if number != NO_SITE else _NOWHERE

    def busy_at(self, moment: Balance) -> tuple[Site, str]:
        """The line and operation that were at work when the total reached this moment's."""
        if moment.change == 0:
            return _NOWHERE, ""
        block = self.ledger.blocks[self.ledger.changes[moment.change - 1].block]
        return self.sites[block.index], self.origins[block.operation].label

    def _find_weight_sites(self) -> dict[int, int]:
        """The site at which each parameter is first used in a forward pass."""
        return {
            block.owner: self.origins[block.first_use].site
            for block in self.ledger.blocks
            if block.kind is Kind.WEIGHTS and block.owner and block.first_use >= 0
        }

    def _site_of_block(self, block: Block, weight_sites: dict[int, int]) -> Site:
        if not block.owner:
            return self.site(self.origins[block.operation].site)
        _, module = self.recording.parameters.get(block.owner, ("", ""))
        site = self.site(weight_sites.get(block.owner, NO_SITE))
        return replace(site, module=module or site.module)

    # Times

    def ms(self, time_ns: int) -> float:
        """Milliseconds since the step began, without legroom's own work."""
        return self.worked_ms(self.start_ns, time_ns)

    def worked_ms(self, start_ns: int, end_ns: int) -> float:
        """Time between two moments, without what legroom itself took in between."""
        own = self._overhead.before(end_ns) - self._overhead.before(start_ns)
        return round((end_ns - start_ns - own) / 1e6, 4)

    def phase_of(self, op: Operation, origin: Origin) -> Phase:
        """FORWARD, BACKWARD or OPTIMIZER: the column in which an operation's time counts."""
        phase = self.ledger.phases.at(op.start_ns)
        if origin.is_backward or phase is Phase.BACKWARD:
            return Phase.BACKWARD
        return Phase.OPTIMIZER if phase is Phase.OPTIMIZER else Phase.FORWARD

    def _find_operations(self) -> list[tuple[Operation, Origin]]:
        """The operations of this step, each with its origin, without legroom's own work."""
        return [
            (op, origin)
            for op in self.recording.stream.operations
            if self.start_ns <= op.start_ns < self.end_ns
            and not (origin := self.origins[op.index]).is_overhead
        ]


class _Overhead:
    """How long legroom itself had been at work, at any moment."""

    def __init__(self, operations: list[Operation]) -> None:
        scopes = [op for op in operations if op.tag is Tag.OVERHEAD]
        self._scopes = sorted(scopes, key=lambda op: op.start_ns)
        self._starts = [op.start_ns for op in self._scopes]
        self._sums = [0, *itertools.accumulate(op.duration_ns for op in self._scopes)]

    def before(self, time_ns: int) -> int:
        """Nanoseconds of legroom's own work up to that time."""
        count = bisect_left(self._starts, time_ns)
        running = max(0, self._scopes[count - 1].end_ns - time_ns) if count else 0
        return self._sums[count] - running


def _windows(ledger: Ledger, operations: list[Operation]) -> list[tuple[int, int]]:
    """Start and end of each recorded step; the last one is open if the script was cut short."""
    marks = list(ledger.boundaries_ns)
    end_ns = max((op.end_ns for op in operations), default=0)
    if len(marks) < 2:
        marks = [*(marks or [0]), end_ns]
    return list(itertools.pairwise(marks))
