"""The simulator: executes a step under a choice, symbolically. The only source of predictions.

In go a problem and a choice; out come the peak, where it is, and the time that the choice adds.
See Note [Giving back]. Complexity: linear in operations of backward, candidates and remakes; about
one millisecond for a 6-layer GPT-2. Oracle: `tests/unit/plan/interpreter.py` runs the same step
tensor by tensor, with nothing precomputed.
"""

# Note [Giving back]
# 1. A tensor with an option that keeps it whole is there until its last use, wherever that is.
# 2. Any other is dropped after its last use in forward. When an operation of backward or a remake
#    first reads it, it is given back right before: first what its producer needs, in the order of
#    the producer's arguments, then the producer. All outputs of the producer come back at once.
# 3. What was given back stays until its last use; so every producer runs again at most once, and
#    added time is a sum over producers.
# 4. What is held in another form is made right after the tensor's last use in forward, one tensor
#    after the other in the order of the candidates; each of them dies then. It is dropped once the
#    tensor itself is back.
# 5. What serves its readers only serves no remake: a choice that needs one is none. It takes for
#    ever and fits nowhere.
# 6. What is held elsewhere is put away as rule 4 says. Unless it waits, it stays in memory, as it
#    is or encoded, until the timetable says that it has left, and is there again from when it is
#    called back (Note [Timetable]). What the step waits for counts as added.
# 7. While an operation runs, its inputs, outputs and scratch memory are alive together; so are a
#    tensor and its other form while one is made from the other.

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import final

from legroom.capture import Phase
from legroom.plan._problem import Choice, Problem, Rerun
from legroom.plan._transfers import Timetable, Trip, timetable

NEVER_FITS = 1 << 62
"""The peak of a choice that cannot be carried out."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What the simulator predicts for a choice.

    Attributes:
        peak_position: The operation before or during which the peak is.
    """

    peak_bytes: int
    added_ms: float
    peak_position: int


@final
@dataclass(slots=True)
class Trace:
    """Details of a simulation, for reports: filled only on request.

    Attributes:
        instructions: What is given back, in order: before which position, the operation that is
            run again for it, -1 where none is, and the candidate that it is for.
        alive_at_peak: Candidates that are alive at the peak beyond their first life, in whatever
            form, and its bytes.
        during: Bytes while each instruction runs.
        runs_again: Operations that are run again, in order.
        needed: Candidates that backward or a remake asks for.
        put: Those that are put away: asked for after their first life.
        fetched: Those that are given back from another form, without a rerun.
        peak_is_between: Whether the peak is while something is given back, before its position.
        changes: From which position on how many bytes are alive on top of the base.
        puts: After which position something was put away, and bytes alive meanwhile.
        timetable: When what is held elsewhere leaves and comes back.
        left: Bytes of stash after the last positions before backward.
    """

    instructions: list[tuple[int, int, int]] = field(default_factory=list)
    during: list[int] = field(default_factory=list)
    alive_at_peak: dict[int, int] = field(default_factory=dict)
    runs_again: list[int] = field(default_factory=list)
    needed: frozenset[int] = frozenset()
    put: list[int] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    peak_is_between: bool = False
    changes: list[tuple[int, int]] = field(default_factory=list)
    puts: list[tuple[int, int]] = field(default_factory=list)
    timetable: Timetable = field(default_factory=Timetable)
    left: dict[int, int] = field(default_factory=dict)

    def extra_during(self, num_positions: int) -> list[int]:
        """Bytes on top of the base while each operation runs."""
        extra, points = [0] * num_positions, [*self.changes, (num_positions, 0)]
        for (first, num_bytes), (end, _) in itertools.pairwise(points):
            extra[first:end] = [num_bytes] * (end - first)
        return extra


@final
class Simulator:
    """Simulates choices for one problem; what does not depend on the choice is worked out once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        candidates = problem.candidates
        self._bytes = [each.num_bytes for each in candidates]
        self._producer = [each.producer for each in candidates]
        self._starts = [each.last_forward_use for each in candidates]
        self._savings = [[option.saving for option in each.options] for each in candidates]
        self._need_positions = sorted(problem.needs)
        self._highest = _RangeMaximum(problem.base_during)
        self._operation_ms = [op.time_ms for op in problem.graph.operations]
        self._stops = _stops_of(problem)
        self._turns = set(problem.left_by_forward)
        self.num_simulations = 0

    def run(self, choice: Choice, trace: Trace | None = None) -> Outcome:
        """Simulate one choice."""
        self.num_simulations += 1
        run = _Run(self, choice)
        run.schedule()
        return run.sweep(trace)

    def stash_bytes(self, choice: Choice) -> int:
        """The most that forward leaves for backward, in whatever form."""
        trace = Trace()
        self.run(choice, trace)
        return max(trace.left.values(), default=0)

    def profile(self, choice: Choice) -> list[int]:
        """Bytes alive while each operation runs, or while something is given back before it."""
        trace = Trace()
        self.run(choice, trace)
        during = list(self.problem.base_during)
        for position, extra in enumerate(trace.extra_during(len(during))):
            during[position] += extra
        for (position, _, _), num_bytes in zip(trace.instructions, trace.during, strict=True):
            during[position] = max(during[position], num_bytes)
        for position, num_bytes in trace.puts:
            during[position] = max(during[position], num_bytes)
        return during


@dataclass(frozen=True, slots=True)
class _Stops:
    """Where a call of a piece can look after what it has moved: at its operations.

    Attributes:
        first_return: The first of them in backward.
    """

    positions: list[int]
    first_return: int


def _stops_of(problem: Problem) -> dict[tuple[int, int], _Stops]:
    positions: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op in problem.graph.operations:
        if op.piece >= 0:
            positions[op.piece, op.call].append(op.index)
    operations = problem.graph.operations
    return {
        call: _Stops(
            stops,
            next((p for p in stops if operations[p].phase is Phase.BACKWARD), stops[-1]),
        )
        for call, stops in positions.items()
    }


class _Run:
    """One simulation: first what is done in which order, then what is alive meanwhile."""

    def __init__(self, simulator: Simulator, choice: Choice) -> None:
        self._sim = simulator
        self._problem = simulator.problem
        self._savings = [
            options[index]
            for options, index in zip(simulator._savings, choice.options, strict=True)
        ]
        self._available = [saving.keeps_whole for saving in self._savings]
        self._variant = dict(choice.variants)
        # Each instruction: a rerun, a candidate given back without one, or a position's own.
        self._inserted: dict[int, list[tuple[Rerun | None, int]]] = {}
        self._last_use: dict[int, tuple[int, int]] = {}
        self._added_ms = 0.0

    def schedule(self) -> None:
        """See Note [Giving back], rules 2 and 3."""
        available, last_use, starts = self._available, self._last_use, self._sim._starts
        readers_only = [saving.readers_only for saving in self._savings]
        for position in self._sim._need_positions:
            alternatives = self._problem.needs[position]
            needs = (
                alternatives[self._variant.get(position, 0)] if self._variant else alternatives[0]
            )
            inserted: list[tuple[Rerun | None, int]] = []
            for candidate in needs:
                if not available[candidate] and starts[candidate] < position:
                    self._give_back(candidate, position, inserted)
            if inserted:
                self._inserted[position] = inserted
                for number, (rerun, _) in enumerate(inserted):
                    if rerun is not None:
                        for candidate in rerun.needs:
                            last_use[candidate] = (position, number)
                            if readers_only[candidate] and starts[candidate] < position:
                                self._added_ms = math.inf
            for candidate in needs:
                last_use[candidate] = (position, _OWN)

    def _give_back(
        self, wanted: int, position: int, inserted: list[tuple[Rerun | None, int]]
    ) -> None:
        available, producer, starts = self._available, self._sim._producer, self._sim._starts
        stack = [wanted]
        while stack:
            candidate = stack[-1]
            if available[candidate]:
                stack.pop()
                continue
            saving = self._savings[candidate]
            if not saving.runs_producer:
                inserted.append((None, candidate))
                self._added_ms += saving.get_ms
                available[candidate] = True
                stack.pop()
                continue
            rerun = self._problem.reruns[producer[candidate]]
            missing = [
                each for each in rerun.needs if not available[each] and starts[each] < position
            ]
            if missing:
                stack.extend(reversed(missing))
                continue
            inserted.append((rerun, candidate))
            self._added_ms += rerun.time_ms
            for each in rerun.makes:
                available[each] = True
            available[candidate] = True
            stack.pop()

    def sweep(self, trace: Trace | None) -> Outcome:
        """Go through the step once and see how much is alive; see Note [Giving back]."""
        self._travel()
        self._find_lives()
        behind = 0  # positions before this have been looked at
        ends = (use[0] for use in self._ends)
        events = {*self._begins, *self._inserted, *ends, *self._leaves, *self._returns}
        for position in sorted(events | self._sim._turns):
            self._look_between(behind, position, trace)
            for number, (rerun, candidate) in enumerate(self._inserted.get(position, ())):
                self._insert(position, number, rerun, candidate, trace)
            self._look(self._problem.base_during[position] + self._extra, position, (), trace)
            if trace is not None:
                trace.changes.append((position, self._extra))
            self._end((position, _OWN))
            self._begin(position, trace)
            self._turn(position, trace)
            self._leave(position)
            self._return(position)
            if trace is not None:
                trace.changes.append((position + 1, self._extra))
            behind = position + 1
        self._look_between(behind, self._problem.num_positions, trace)
        if trace is not None:
            trace.alive_at_peak = self._at_peak
            trace.peak_is_between = self._peak_is_between
            trace.put = list(self._put)
            trace.needed = frozenset(self._last_use)
            trace.timetable = self._timetable
        if math.isinf(self._added_ms):
            return Outcome(NEVER_FITS, self._added_ms, self._peak_position)
        return Outcome(self._peak, self._added_ms, self._peak_position)

    def _travel(self) -> None:
        """When what is held elsewhere leaves and comes back; Note [Giving back], rule 6."""
        self._timetable = Timetable()
        self._leaves: dict[int, list[int]] = defaultdict(list)
        self._returns: dict[int, list[int]] = defaultdict(list)
        trips = [
            self._trip(candidate, position)
            for position, inserted in self._inserted.items()
            for rerun, candidate in inserted
            if rerun is None and self._savings[candidate].is_moved
        ]
        if not trips:
            return
        made = self._timetable = timetable(trips, self._starts_ms())
        self._added_ms += made.total_ms
        for candidate, position in made.settled_before.items():
            self._leaves[position - 1].append(candidate)
        for candidate, position in made.fetched_before.items():
            self._returns[position - 1].append(candidate)

    def _trip(self, candidate: int, read_before: int) -> Trip:
        op = self._problem.graph.operations[self._sim._producer[candidate]]
        saving, stops = self._savings[candidate], self._sim._stops[op.piece, op.call]
        return Trip(
            candidate=candidate,
            tier=saving.tier,
            leaves_after=self._sim._starts[candidate],
            read_before=read_before,
            stops=stops.positions,
            first_return=stops.first_return,
            leave_ms=saving.leave_ms,
            return_ms=saving.return_ms,
            waits=saving.waits,
        )

    def _starts_ms(self) -> list[float]:
        """When each operation starts, and the end, if nothing is waited for."""
        taken = list(self._sim._operation_ms)
        for position, inserted in self._inserted.items():
            for rerun, candidate in inserted:
                given_back_ms = self._savings[candidate].get_ms if rerun is None else rerun.time_ms
                taken[position] += given_back_ms
        return list(itertools.accumulate(taken, initial=0.0))

    def _leave(self, position: int) -> None:
        """After a position, memory of what has left is let go."""
        for candidate in self._leaves.get(position, ()):
            self._extra -= self._alive.pop(candidate, 0)

    def _return(self, position: int) -> None:
        """And then taken for what comes back."""
        for candidate in self._returns.get(position, ()):
            self._alive[candidate] = self._savings[candidate].moved_bytes
            self._extra += self._alive[candidate]

    def _turn(self, position: int, trace: Trace | None) -> None:
        """Where forward ends, see what it leaves."""
        problem = self._problem
        if position in problem.reserved:
            self._look(problem.reserved[position] + self._extra, position, (), trace)
        if trace is not None and position in problem.left_by_forward:
            trace.left[position] = problem.left_by_forward[position] + self._extra

    def _find_lives(self) -> None:
        """From where on each candidate is held in some form, and where it ends."""
        sim = self._sim
        self._begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._ends: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._alive: dict[int, int] = {}
        self._put: list[int] = []
        self._extra = self._peak = self._peak_position = 0
        self._at_peak: dict[int, int] = {}
        self._peak_is_between = False
        for candidate, use in self._last_use.items():
            start, saving = sim._starts[candidate], self._savings[candidate]
            if use[0] <= start:
                continue  # it is read while its first life lasts
            self._ends[use].append(candidate)
            if saving.is_moved and candidate not in self._timetable.waited_ms:
                continue  # it comes back with something else, so it need not leave
            self._put.append(candidate)
            amount = sim._bytes[candidate] if saving.keeps_whole else saving.held_bytes
            if saving.is_moved:
                amount = saving.moved_bytes
            if amount:
                self._begins[start].append((candidate, amount))
            self._added_ms += saving.put_ms

    def _begin(self, position: int, trace: Trace | None) -> None:
        """First lives end: what is kept stays, what is encoded is put away; Note, rule 4."""
        encoded = []
        for candidate, amount in self._begins.get(position, ()):
            saving = self._savings[candidate]
            if saving.is_encoded:
                encoded.append((candidate, amount))
            else:
                self._alive[candidate] = amount
                self._extra += amount
        if not encoded:
            return
        encoded.sort()
        waiting = sum([self._sim._bytes[candidate] for candidate, _ in encoded])
        after = self._problem.base_before
        base = after[position + 1] if position + 1 < len(after) else 0
        for candidate, amount in encoded:
            saving, whole_bytes = self._savings[candidate], self._sim._bytes[candidate]
            is_itself = saving.is_moved and amount == whole_bytes
            during = base + self._extra + waiting + saving.put_bytes + (0 if is_itself else amount)
            self._look(during, position, (candidate,), trace)
            if trace is not None:
                trace.puts.append((position, during))
            waiting -= whole_bytes
            if not saving.waits:
                self._alive[candidate] = amount
                self._extra += amount

    def _look(
        self, num_bytes: int, position: int, makes: tuple[int, ...], trace: Trace | None
    ) -> None:
        if num_bytes > self._peak:
            self._peak, self._peak_position = num_bytes, position
            self._peak_is_between = bool(makes)
            if trace is not None:
                whole = {each: self._sim._bytes[each] for each in makes}
                self._at_peak = {**self._alive, **whole}

    def _look_between(self, first: int, end: int, trace: Trace | None) -> None:
        """Positions at which nothing that was decided begins or ends."""
        if end > first:
            top, where = self._sim._highest.between(first, end)
            self._look(top + self._extra, where, (), trace)

    def _insert(
        self, position: int, number: int, rerun: Rerun | None, candidate: int, trace: Trace | None
    ) -> None:
        """Something is given back before a position."""
        makes = rerun.makes if rerun is not None else (candidate,)
        made = sum([self._sim._bytes[each] for each in makes])
        saving = self._savings[candidate]
        scratch = saving.get_bytes
        if rerun is not None:
            scratch = rerun.passing_bytes + rerun.workspace_bytes
        elif saving.is_moved:
            is_itself = saving.moved_bytes == made
            if saving.waits:  # what was moved comes first, and the tensor is made from it
                scratch += 0 if is_itself else saving.moved_bytes
            elif is_itself:
                made = 0  # it was called back before
        during = self._problem.base_before[position] + self._extra + made + scratch
        self._look(during, position, makes, trace)
        if trace is not None:
            operation = rerun.operation if rerun is not None else -1
            trace.instructions.append((position, operation, candidate))
            trace.during.append(during)
            if rerun is not None:
                trace.runs_again.append(rerun.operation)
            else:
                trace.fetched.append(candidate)
        self._keep(makes, (position, number))
        self._end((position, number))

    def _keep(self, makes: tuple[int, ...], now: tuple[int, int]) -> None:
        """Outputs of a rerun that are wanted later and are not there: they stay."""
        alive = self._alive
        for candidate in makes:
            use = self._last_use.get(candidate)
            if use is None or use < now or self._savings[candidate].keeps_whole:
                continue
            self._extra += self._sim._bytes[candidate] - alive.get(candidate, 0)
            alive[candidate] = self._sim._bytes[candidate]

    def _end(self, now: tuple[int, int]) -> None:
        for candidate in self._ends.get(now, ()):
            self._extra -= self._alive.pop(candidate, 0)


_OWN = 1 << 30
"""Comes after every instruction that is inserted before a position."""


class _RangeMaximum:
    """The largest of a stretch of numbers, and where, in constant time after n log n work."""

    def __init__(self, values: tuple[int, ...]) -> None:
        self._levels = [list(range(len(values)))]
        self._values = values
        width = 1
        while 2 * width <= len(values):
            below = self._levels[-1]
            self._levels.append(
                [
                    a if values[a] >= values[b] else b
                    for a, b in zip(
                        below[: len(values) - 2 * width + 1], below[width:], strict=False
                    )
                ]
            )
            width *= 2

    def between(self, first: int, end: int) -> tuple[int, int]:
        """The largest value at `first` up to before `end`, and its place; (0, first) if none."""
        if end <= first:
            return 0, first
        level = (end - first).bit_length() - 1
        a = self._levels[level][first]
        b = self._levels[level][end - (1 << level)]
        best = a if self._values[a] >= self._values[b] else b
        return self._values[best], best
