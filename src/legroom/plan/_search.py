"""Search by simulation: mends a choice until it fits, fills what room is left, remembers the best.

In go choices from presets, from the relaxation, from anywhere; out comes, for every budget, the
fastest choice seen so far. Plans are never better than what the simulator says of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from legroom.plan._effort import Allowance, Effort
from legroom.plan._problem import Candidate, Choice, Problem
from legroom.plan._relaxation import Relaxation
from legroom.plan._simulate import NEVER_FITS, Outcome, Simulator, Trace
from legroom.ways import Saving


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A choice, what the simulator predicts for it, and who proposed it."""

    choice: Choice
    outcome: Outcome
    origin: str


@final
class Archive:
    """Every choice worth remembering: none is beaten in both peak and time by another."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Remember the entry, unless an earlier one is at least as good in both."""
        mine = entry.outcome
        for other in self.entries:
            theirs = other.outcome
            if theirs.peak_bytes <= mine.peak_bytes and theirs.added_ms <= mine.added_ms:
                return
        self.entries = [
            other
            for other in self.entries
            if other.outcome.peak_bytes < mine.peak_bytes or other.outcome.added_ms < mine.added_ms
        ]
        self.entries.append(entry)

    def best(self, budget_bytes: int) -> Entry | None:
        """The fastest that fits; the leaner of equally fast ones."""
        fitting = [each for each in self.entries if each.outcome.peak_bytes <= budget_bytes]
        return min(
            fitting, key=lambda each: (each.outcome.added_ms, each.outcome.peak_bytes), default=None
        )

    def leanest(self) -> Entry:
        """The lowest peak; the faster of equally lean ones."""
        return min(self.entries, key=lambda each: (each.outcome.peak_bytes, each.outcome.added_ms))


@final
class Search:
    """Simulates choices for one problem and keeps the best.

    Attributes:
        allowance: Of time, for everything that is planned with it.
    """

    def __init__(
        self,
        problem: Problem,
        archive: Archive | None = None,
        *,
        allowance: Allowance | None = None,
    ) -> None:
        self.problem = problem
        self.allowance = allowance or Allowance(None)
        self.simulator = Simulator(problem)
        self.archive = Archive() if archive is None else archive
        self._seen: dict[Choice, Outcome] = {}
        self._relaxation: Relaxation | None = None
        self._drop = [_option(each, keeps_whole=False) for each in problem.candidates]
        self._hold = [_option(each, keeps_whole=True) for each in problem.candidates]
        self._behind = [_moved(each, waits=False) for each in problem.candidates]
        self._behind_by = [
            [_moved(each, waits=False, moves=(move,)) for each in problem.candidates]
            for move in problem.moves
        ]
        self._waiting = [_moved(each, waits=True) for each in problem.candidates]

    def evaluate(self, choice: Choice, origin: str) -> Outcome:
        """Simulate a choice, once, and remember it where it is good."""
        known = self._seen.get(choice)
        if known is None:
            known = self.simulator.run(choice)
            self._seen[choice] = known
            if known.peak_bytes < NEVER_FITS:
                self.archive.add(Entry(choice, known, origin))
        return known

    @property
    def relaxation(self) -> Relaxation:
        """The problem as a linear programme; built when first needed."""
        if self._relaxation is None:
            self._relaxation = Relaxation(self.problem)
        return self._relaxation

    def may_relax(self, seconds: float) -> bool:
        """Whether so much time is enough to build the relaxation, or it was built before."""
        return self._relaxation is not None or seconds >= _RELAXING_S * len(self.problem.candidates)

    def hold_all(self) -> Choice:
        """Everything that backward reads is held; the rest is dropped."""
        return self.holding(
            number for number, each in enumerate(self.problem.candidates) if each.late_uses
        )

    def holding(self, held: Iterable[int]) -> Choice:
        """Hold these candidates, and run again what makes the others, where that is possible."""
        wanted = {tied for number in held for tied in self.problem.tied[number]}
        options = []
        for number in range(len(self.problem.candidates)):
            drop = self._drop[number]
            keep = number in wanted or drop is None
            options.append(self._hold[number] if keep else drop)
        return Choice(tuple(options))  # type: ignore[arg-type]

    def moving(self, choice: Choice, numbers: Iterable[int]) -> Choice:
        """Hold these candidates elsewhere, behind what is computed, where that is possible."""
        movable = [number for number in numbers if self._behind[number] is not None]
        return self._with(choice, movable, self._behind)

    def waited_ms(self, choice: Choice) -> float:
        """How long the step waits for what is held elsewhere."""
        trace = Trace()
        self.simulator.run(choice, trace)
        return trace.timetable.total_ms

    def is_held(self, choice: Choice, number: int) -> bool:
        """Whether the choice keeps the candidate whole."""
        return choice.options[number] == self._hold[number]

    # -- mending ---------------------------------------------------------------------------------

    def mend(self, choice: Choice, budget_bytes: int, origin: str, effort: Effort) -> Outcome:
        """Change the choice at its peak, the cheapest bytes first, until it fits.

        Either something that is held there is dropped, or something that is there because it was
        remade too early, on the way to something else, is held, which cuts the way short. Stops
        where neither lowers the peak.
        """
        outcome = self.evaluate(choice, origin)
        while outcome.peak_bytes > budget_bytes and not effort.is_spent:
            better = self._step_down(choice, outcome, origin, budget_bytes, effort)
            if better is None:
                break
            choice, outcome = better
        return outcome

    def _step_down(
        self,
        choice: Choice,
        outcome: Outcome,
        origin: str,
        budget_bytes: int,
        effort: Effort,
    ) -> tuple[Choice, Outcome] | None:
        trace = Trace()
        self.simulator.run(choice, trace)
        runs = set(trace.runs_again)
        hasty = [number for number in trace.alive_at_peak if self._may_wait(choice, number)]
        if hasty:
            hasty.sort(key=lambda n: (-self._bytes(n), n))
            for stretch in _stretches(hasty, self._bytes, outcome.peak_bytes - budget_bytes):
                trial = self._with(choice, stretch, self._waiting)
                result = self.evaluate(trial, origin)
                if result.peak_bytes < outcome.peak_bytes:
                    return trial, result
        held = [
            number
            for number in trace.alive_at_peak
            if self.is_held(choice, number) and self._drop[number] is not None
        ]
        ranked = sorted(held, key=lambda n: (self._price(choice, n, runs) / self._bytes(n), n))
        for stretch in _stretches(ranked, self._bytes, outcome.peak_bytes - budget_bytes):
            trial = self._with(choice, stretch, self._drop)
            result = self.evaluate(trial, origin)
            if result.peak_bytes < outcome.peak_bytes:
                return trial, result
        trials = [self._with(choice, [number], self._drop) for number in ranked[:_TRIES]]
        trials += [self._with(choice, [number], self._waiting) for number in hasty[:_TRIES]]
        remade = dict.fromkeys(n for n in trace.alive_at_peak if not self.is_held(choice, n))
        for number in list(remade):
            producer = self.problem.candidates[number].producer
            remade.update(dict.fromkeys(self.problem.reruns[producer].needs))
        largest = sorted(
            (n for n in remade if not self.is_held(choice, n)), key=lambda n: (-self._bytes(n), n)
        )
        trials += [self._with(choice, [number], self._hold) for number in largest[: 2 * _TRIES]]
        movable = [n for n in (*largest, *ranked) if self._waiting[n] is not None]
        trials += [self._with(choice, [number], self._waiting) for number in movable[: 2 * _TRIES]]
        results = [
            (self.evaluate(trial, origin), trial) for trial in trials if not effort.timed_out
        ]
        lower = [each for each in results if each[0].peak_bytes < outcome.peak_bytes]
        if not lower:
            return None
        result, trial = min(
            lower,
            key=lambda each: (
                (each[0].added_ms - outcome.added_ms)
                / (outcome.peak_bytes - max(each[0].peak_bytes, budget_bytes)),
                each[0].peak_bytes,
            ),
        )
        return trial, result

    def _may_wait(self, choice: Choice, number: int) -> bool:
        """Whether it is moved behind what is computed, and could be waited for instead."""
        saving = self.problem.candidates[number].options[choice.options[number]].saving
        return saving.is_moved and not saving.waits and self._waiting[number] is not None

    def _bytes(self, number: int) -> int:
        return self.problem.candidates[number].num_bytes

    def _price(self, choice: Choice, number: int, runs: set[int]) -> float:
        """Time that dropping a candidate adds, its missing ancestors included."""
        total, pending, seen = 0.0, [number], set()
        while pending:
            candidate = pending.pop()
            producer = self.problem.candidates[candidate].producer
            if producer in seen or producer in runs:
                continue
            seen.add(producer)
            rerun = self.problem.reruns[producer]
            total += rerun.time_ms
            pending.extend(each for each in rerun.needs if not self.is_held(choice, each))
        return total

    def _with(self, choice: Choice, numbers: list[int], target: Sequence[int | None]) -> Choice:
        options = list(choice.options)
        for number in numbers:
            for each in self.problem.tied[number]:
                option = target[each]
                if option is not None:
                    options[each] = option
        return replace(choice, options=tuple(options))

    # -- filling ---------------------------------------------------------------------------------

    def fill(self, choice: Choice, budget_bytes: int, origin: str, effort: Effort) -> Choice:
        """Hold again what saves the most time for its bytes, as long as the choice fits.

        Goes by halves: tries to hold a whole stretch of the ranking at once, then parts of it.
        """
        if self.evaluate(choice, origin).peak_bytes > budget_bytes:
            return choice
        ranked = self._run_again(choice)
        return self._by_halves(choice, ranked, self._hold, budget_bytes, origin, effort)

    def move(self, choice: Choice, budget_bytes: int, origin: str, effort: Effort) -> Choice:
        """Move behind what is computed what is run again, as long as that fits and is faster."""
        if self.evaluate(choice, origin).peak_bytes > budget_bytes:
            return choice
        for target in self._behind_by:
            ranked = [each for each in self._run_again(choice) if target[each] is not None]
            choice = self._by_halves(choice, ranked, target, budget_bytes, origin, effort)
        return choice

    def _run_again(self, choice: Choice) -> list[int]:
        """What is run again, that which takes the most time for its bytes first."""
        trace = Trace()
        self.simulator.run(choice, trace)
        runs = set(trace.runs_again)
        dropped = [
            number
            for number in trace.needed
            if not self.is_held(choice, number) and self.problem.candidates[number].producer in runs
        ]
        return sorted(
            dropped,
            key=lambda n: (
                -self.problem.reruns[self.problem.candidates[n].producer].time_ms / self._bytes(n),
                n,
            ),
        )

    def _by_halves(
        self,
        choice: Choice,
        ranked: list[int],
        target: Sequence[int | None],
        budget_bytes: int,
        origin: str,
        effort: Effort,
    ) -> Choice:
        """Change all of these at once, or what of them fits and takes no longer."""
        outcome = self.evaluate(choice, origin)
        pending = [ranked]
        while pending and not effort.is_spent:
            stretch = pending.pop()
            trial = self._with(choice, stretch, target)
            result = self.evaluate(trial, origin)
            if result.peak_bytes <= budget_bytes and result.added_ms <= outcome.added_ms:
                choice, outcome = trial, result
            elif len(stretch) > 1:
                middle = len(stretch) // 2
                pending.append(stretch[middle:])
                pending.append(stretch[:middle])
        return choice

    def decode(self, choice: Choice, budget_bytes: int, origin: str, effort: Effort) -> Choice:
        """Run again, or hold, what is held in a form that takes longer, as long as that fits.

        What the step waits for may be moved behind what it computes, to the one tier or the other.
        """
        if self.evaluate(choice, origin).peak_bytes > budget_bytes:
            return choice
        for target in (*self._behind_by, self._drop, self._hold):
            savings = {
                number: self.problem.candidates[number].options[index].saving
                for number, index in enumerate(choice.options)
            }
            encoded = [
                number
                for number, saving in savings.items()
                if saving.is_encoded and target[number] is not None
            ]
            ranked = sorted(encoded, key=lambda n: (-_taken_ms(savings[n]), n))
            choice = self._by_halves(choice, ranked, target, budget_bytes, origin, effort)
        return choice

    # -- exchanging ------------------------------------------------------------------------------

    def exchange(self, choice: Choice, budget_bytes: int, origin: str, effort: Effort) -> Choice:
        """Hold one more thing, drop what that takes, and keep the exchange where it is faster."""
        outcome = self.evaluate(choice, origin)
        tries = effort.tries(budget_bytes)
        improved = True
        while improved and not effort.is_spent:
            improved = False
            trace = Trace()
            self.simulator.run(choice, trace)
            runs = sorted(
                set(trace.runs_again), key=lambda op: (-self.problem.reruns[op].time_ms, op)
            )
            for operation in runs[:_TRIES]:
                makes = [
                    number
                    for number in self.problem.reruns[operation].makes
                    if number in trace.needed and not self.is_held(choice, number)
                ]
                trial = self._with(choice, makes, self._hold)
                self.mend(trial, budget_bytes, origin, effort)
                best = self.archive.best(budget_bytes)
                if best is not None and best.outcome.added_ms < outcome.added_ms - 1e-9:
                    choice = self.fill(best.choice, budget_bytes, origin, effort)
                    outcome = self.evaluate(choice, origin)
                    improved = True
                if tries.are_over():
                    return choice
                if improved:
                    break
        return choice


_TRIES = 24
_RELAXING_S = 0.001
"""For each candidate: what building the relaxation takes at most, on a busy machine."""


def _stretches(
    ranked: list[int], bytes_of: Callable[[int], int], excess_bytes: int
) -> Iterator[list[int]]:
    """As many of the first as the excess asks for, then a quarter of these."""
    total = 0
    for count, number in enumerate(ranked, start=1):
        total += bytes_of(number)
        if total >= excess_bytes:
            yield ranked[:count]
            if count >= 8:
                yield ranked[: count // 4]
            return


def _option(candidate: Candidate, *, keeps_whole: bool) -> int | None:
    """The first option that keeps the tensor whole, or the leanest that does not.

    Of equally lean ones, what stays on the device, then what waits: its bytes are there for the
    shortest time.
    """
    fitting = [
        (option.saving.held_bytes, option.saving.is_moved, not option.saving.waits, index)
        for index, option in enumerate(candidate.options)
        if option.saving.keeps_whole == keeps_whole
    ]
    return min(fitting)[-1] if fitting else None


def _moved(
    candidate: Candidate, *, waits: bool, moves: tuple[str, ...] | None = None
) -> int | None:
    """The option that moves the fewest bytes, and of several tiers to the fastest.

    Args:
        moves: Names of the ways that may move it; None: any.
    """
    fitting = [
        (option.saving.moved_bytes, option.saving.leave_ms + option.saving.return_ms, index)
        for index, option in enumerate(candidate.options)
        if option.saving.is_moved
        and option.saving.waits == waits
        and (moves is None or option.move in moves)
    ]
    return min(fitting)[-1] if fitting else None


def _taken_ms(saving: Saving) -> float:
    """What a form takes at most."""
    waited_ms = saving.leave_ms + saving.return_ms if saving.waits else 0.0
    return saving.put_ms + saving.get_ms + waited_ms
