"""The planning problem as a linear programme: a bound on every plan, and a guide to good ones.

In go a problem and a budget; out comes a `Relaxation` that HiGHS solves as a linear or a mixed
integer programme. Every choice that the simulator finds within the budget satisfies it, at the
same added time; so its optimum is a bound. See Note [Relaxation].
"""

# Note [Relaxation]
# Positions are sampled: `τ_k`, k = 1 … K, in backward, and some in forward. Leaving positions out
# leaves constraints out, and the bound stays one. Variables, all between 0 and 1:
#   x[c, o]  candidate c takes option o; integer in the mixed integer programme
#   A[c, k]  c is there, or was, by τ_k: held whole or given back. A[c, 0] = sum of x[c, o] over
#            options that keep it whole; never falls with k; is 1 from the first use on
#   R[c, k]  c, which no operation at or after τ_k reads, is alive at τ_k because a remake will
#   S[c, k]  share of c's other form (encoded) that is still held at τ_k
#   E[r]     operation r runs again
#   y[p, j]  position p uses alternative j
# Rules:
# 1. sum_o x[c, o] = 1; <= 1 where nobody may read c and every option holds bytes: what nobody
#    reads costs nothing.
# 2. used at p, τ_{k-1} < p <= τ_k: A[c, k] >= 1, or >= y[p, j] where there are alternatives.
# 3. remaking u needs w: A[w, k] >= A[u, k] - A[u, 0] - (u's options that do not run r).
# 4. E[r] >= A[u, K] - A[u, 0] - (same) for each output u of r.
# 5. R[w, k] >= (A[u, K] - A[u, k]) - (u's options that do not run r) - (A[w, K] - A[w, k]):
#    if u is remade after τ_k, w is alive at τ_k or is itself given back later.
# 6. What is moved takes its tier's time, which is hidden in that of forward and backward, coming
#    back in that of backward; what is not hidden of any one tier's, W, is added.
# 7. at each sample: base + sum of bytes of A or R or S <= budget; in forward: of x.
# The smallest tensors, `_NEGLIGIBLE` of the bytes in all, are taken to be there at no cost.

from __future__ import annotations

import bisect
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from legroom.capture import Phase
from legroom.plan._problem import Choice, Problem

_NEGLIGIBLE = 0.005
_MOST_SAMPLES, _FEWEST_SAMPLES = 40, 12
_SIZE = 12_000
"""Candidates times samples: about a second of HiGHS's time."""
_NUM_FORWARD_SAMPLES = 8
_SMALL_PROBLEM = 64
"""Up to so many candidates all are decided on, up to so many positions all are sampled."""


@final
@dataclass(frozen=True)
class RelaxedSolution:
    """What the solver found.

    Attributes:
        bound_ms: No choice within the budget adds less time.
        shares: For each candidate, how much of it is held whole; None where it was not decided.
        options: For each candidate, the option with the largest share.
        is_integral: Whether the shares are whole numbers.
        stopped_early: Whether a limit was reached; it may be that nothing was decided by then.
    """

    bound_ms: float
    shares: tuple[float | None, ...]
    options: tuple[int, ...]
    variants: tuple[tuple[int, int], ...]
    is_integral: bool
    stopped_early: bool = False


_Expression = dict[int, float]


@final
class Relaxation:
    """See Note [Relaxation]; built once for a problem, solved for many budgets.

    Args:
        num_samples: Positions of backward at which memory is bounded; None: fewer for larger
            problems. On the graphs tried, the bound hardly depends on it.
    """

    def __init__(self, problem: Problem, *, num_samples: int | None = None) -> None:
        self._problem = problem
        self.num_solved = 0
        self._costs: list[float] = []
        self._is_choice: list[bool] = []
        self._rows: list[tuple[float, float, _Expression]] = []
        self._memory_rows: list[tuple[int, float]] = []  # row, base bytes
        self._cuts: list[tuple[float, float, _Expression]] = []
        self._decided = self._worth_deciding()
        if num_samples is None:
            fitting = _SIZE // max(1, sum(self._decided))
            num_samples = min(_MOST_SAMPLES, max(_FEWEST_SAMPLES, fitting))
        self._samples = _samples_of_backward(problem, num_samples)
        self._x: dict[tuple[int, int], int] = {}
        self._may_be_none: set[int] = set()  # of candidates that need not be kept in any way
        self._y: dict[tuple[int, int], int] = {}
        self._a: dict[tuple[int, int], _Expression] = {}
        self._fixed: dict[tuple[int, int], float] = {}
        self._need_positions = sorted(problem.needs)
        self._first_use = self._first_uses()
        self._add_options()
        self._add_availability()
        self._add_needs()
        self._add_remakes()
        self._add_channels()
        self._add_memory()

    # -- building ----------------------------------------------------------------------------

    def _variable(self, *, cost: float = 0.0, is_choice: bool = False) -> int:
        self._costs.append(cost)
        self._is_choice.append(is_choice)
        return len(self._costs) - 1

    def _at_least(self, expression: _Expression, constant: float, bound: float = 0.0) -> None:
        """Add `expression + constant >= bound`, unless it always holds."""
        least = constant + sum(min(0.0, factor) for factor in expression.values())
        if least < bound - 1e-12:
            self._rows.append((bound - constant, float("inf"), expression))

    def _worth_deciding(self) -> list[bool]:
        candidates = self._problem.candidates
        if len(candidates) <= _SMALL_PROBLEM:
            return [True for _ in candidates]
        left = _NEGLIGIBLE * sum(each.num_bytes for each in candidates)
        worth = [True for _ in candidates]
        for number in sorted(range(len(candidates)), key=lambda n: (candidates[n].num_bytes, n)):
            left -= candidates[number].num_bytes
            if left < 0:
                break
            worth[number] = False
        return worth

    def _first_uses(self) -> dict[int, int]:
        """For each candidate that backward must read, the sample by which it has been read."""
        firsts: dict[int, int] = {}
        sample = 0
        for position in sorted(self._problem.needs):
            while sample < len(self._samples) and self._samples[sample] < position:
                sample += 1
            alternatives = self._problem.needs[position]
            always = set(alternatives[0]).intersection(*alternatives[1:])
            for candidate in always:
                if self._problem.candidates[candidate].last_forward_use < position:
                    firsts.setdefault(candidate, sample + 1)
        return firsts

    def _add_options(self) -> None:
        for number, candidate in enumerate(self._problem.candidates):
            if not self._decided[number]:
                continue
            expression: _Expression = {}
            may_come_for_free = self._may_come_for_free(number)
            for index, option in enumerate(candidate.options):
                saving = option.saving
                cost = 0.0 if saving.is_moved and may_come_for_free else saving.put_ms
                if not may_come_for_free:
                    waited_ms = saving.leave_ms + saving.return_ms if saving.waits else 0.0
                    cost += saving.get_ms + waited_ms
                self._x[number, index] = self._variable(cost=cost, is_choice=True)
                expression[self._x[number, index]] = 1.0
            must = any(each in self._first_use for each in self._problem.tied[number]) or any(
                option.saving.held_bytes == 0 for option in candidate.options
            )
            self._rows.append((float(must), 1.0, expression))
            if not must:
                self._may_be_none.add(number)
            first = self._problem.tied[number][0]
            if first != number and self._decided[first]:
                for index in range(len(candidate.options)):
                    same = {self._x[number, index]: 1.0, self._x[first, index]: -1.0}
                    self._rows.append((0.0, 0.0, same))

    def _add_channels(self) -> None:
        """See Note [Relaxation], rule 6."""
        both: dict[str, _Expression] = defaultdict(dict)
        back: dict[str, _Expression] = defaultdict(dict)
        for (number, index), variable in self._x.items():
            saving = self._problem.candidates[number].options[index].saving
            if saving.is_moved and not saving.waits and not self._may_come_for_free(number):
                both[saving.tier][variable] = saving.leave_ms + saving.return_ms
                back[saving.tier][variable] = saving.return_ms
        if not both or not self._problem.needs:
            return  # nobody asks for anything
        operations, last = self._problem.graph.operations, max(self._problem.needs)
        turn = min(op.index for op in operations if op.phase is Phase.BACKWARD)
        added: _Expression = dict(enumerate(self._costs))
        most_ms = max(sum(taken.values()) for taken in both.values())
        waited = self._variable(cost=most_ms)
        for channels, first in ((both, 0), (back, turn)):
            hidden_ms = sum(op.time_ms for op in operations[first : last + 1])
            for taken in channels.values():
                row = _difference(taken, added)
                _add(row, {waited: -most_ms}, 1.0)
                self._rows.append((float("-inf"), hidden_ms, row))

    def _kept_whole(self, number: int) -> _Expression:
        options = self._problem.candidates[number].options
        return {
            self._x[number, index]: 1.0
            for index, option in enumerate(options)
            if option.saving.keeps_whole
        }

    def _not_remade(self, number: int) -> _Expression:
        """Options under which giving back does not run the producer, nor is it just there."""
        options = self._problem.candidates[number].options
        return {
            self._x[number, index]: 1.0
            for index, option in enumerate(options)
            if not option.saving.keeps_whole and not option.saving.runs_producer
        }

    def _add_availability(self) -> None:
        last = len(self._samples)
        for number, candidate in enumerate(self._problem.candidates):
            if not self._decided[number]:
                continue
            expression = self._kept_whole(number)
            self._a[number, 0] = expression
            can_return = any(not option.saving.keeps_whole for option in candidate.options)
            for sample in range(1, last + 1):
                if sample >= self._first_use.get(number, last + 1):
                    self._a[number, sample] = {}
                    self._fixed[number, sample] = 1.0
                    continue
                if can_return:
                    following = {self._variable(): 1.0}
                    self._at_least(_difference(following, expression), 0.0)
                    expression = following
                self._a[number, sample] = expression

    def _there(self, number: int, sample: int) -> tuple[_Expression, float]:
        """A[c, k] as an expression and a constant."""
        return self._a[number, sample], self._fixed.get((number, sample), 0.0)

    def _add_needs(self) -> None:
        """See Note [Relaxation], rule 2, for positions with alternatives."""
        sample = 0
        for position in sorted(self._problem.needs):
            while sample < len(self._samples) and self._samples[sample] < position:
                sample += 1
            alternatives = self._problem.needs[position]
            if len(alternatives) == 1:
                continue
            picks = {self._variable(is_choice=True): 1.0 for _ in alternatives}
            self._rows.append((1.0, 1.0, picks))
            for index, (pick, needs) in enumerate(zip(picks, alternatives, strict=True)):
                self._y[position, index] = pick
                for number in needs:
                    first_life = self._problem.candidates[number].last_forward_use
                    if self._decided[number] and first_life < position:
                        there, constant = self._there(number, min(sample + 1, len(self._samples)))
                        self._at_least(_difference(there, {pick: 1.0}), constant)

    def _add_remakes(self) -> None:
        """See Note [Relaxation], rules 3 and 4."""
        last = len(self._samples)
        for rerun in self._problem.reruns.values():
            makes = [number for number in rerun.makes if self._decided[number]]
            makes = [number for number in makes if self._can_be_remade(number)]
            if not makes:
                continue
            runs = {self._variable(cost=rerun.time_ms): 1.0} if rerun.time_ms else {}
            for number in makes:
                spared = _sum(self._a[number, 0], self._not_remade(number))
                there, constant = self._there(number, last)
                if runs:
                    self._at_least(_difference(_sum(runs, spared), there), -constant)
                for need in rerun.needs:
                    if self._decided[need]:
                        self._add_need_of_remake(number, need, spared)
                        self._add_not_from(number, need, _difference(spared, there), constant)

    def _add_not_from(self, made: int, need: int, kept: _Expression, constant: float) -> None:
        """Nothing is remade from what serves its readers only."""
        candidate = self._problem.candidates[need]
        if self._sample_reached(made, candidate.last_forward_use):
            return
        forms = {
            self._x[need, index]: 1.0
            for index, option in enumerate(candidate.options)
            if option.saving.readers_only
        }
        if forms:
            self._at_least(_difference(kept, forms), 1.0 - constant)

    def _may_come_for_free(self, number: int) -> bool:
        """Whether it may come back with another output of its producer, which is run again."""
        siblings = self._problem.reruns[self._problem.candidates[number].producer].makes
        return any(self._can_be_remade(each) for each in siblings if each != number)

    def _can_be_remade(self, number: int) -> bool:
        options = self._problem.candidates[number].options
        return any(option.saving.runs_producer for option in options)

    def _add_need_of_remake(self, made: int, need: int, spared: _Expression) -> None:
        first_life = self._problem.candidates[need].last_forward_use
        early_constant = 0.0
        early = self._sample_reached(made, first_life)
        if early:  # what comes back while the need's first life lasts finds it there
            before, early_constant = self._there(made, early)
            spared = _sum(before, self._not_remade(made))
        for sample, position in enumerate(self._samples, start=1):
            there, constant = self._there(need, sample)
            if constant >= 1.0 or position <= first_life:
                continue
            wanted, wanted_constant = self._there(made, sample)
            left = _difference(_sum(there, spared), wanted)
            self._at_least(left, constant - wanted_constant + early_constant)

    def _sample_reached(self, made: int, until: int) -> int:
        """The first sample by which all that came back up to a position is there; 0 if none is."""
        start = self._problem.candidates[made].last_forward_use
        following = bisect.bisect_right(self._need_positions, start)
        if following == len(self._need_positions) or self._need_positions[following] > until:
            return 0
        return min(bisect.bisect_left(self._samples, until) + 1, len(self._samples))

    def _add_memory(self) -> None:
        """See Note [Relaxation], rules 5 and 7."""
        problem = self._problem
        alive_after = self._remake_readers()
        for sample, position in enumerate(self._samples, start=1):
            row: _Expression = {}
            fixed = float(problem.reserved.get(position, problem.base_during[position]))
            for number, candidate in enumerate(problem.candidates):
                if not self._decided[number] or candidate.last_forward_use >= position:
                    continue
                if self._is_read_from(number, position):
                    there, constant = self._there(number, sample)
                    fixed += constant * candidate.num_bytes
                    _add(row, there, candidate.num_bytes)
                else:
                    self._add_kept_for_remakes(row, number, sample, alive_after[number])
                self._add_other_form(row, number, sample)
            self._memory_rows.append((len(self._rows), fixed))
            self._rows.append((float("-inf"), 0.0, row))
        for position in _samples_of_forward(problem, _NUM_FORWARD_SAMPLES):
            row = {}
            backward_before = max((p for p in problem.needs if p < position), default=-1)
            for number, candidate in enumerate(problem.candidates):
                # What an earlier micro-batch made may be gone by now.
                if (
                    self._decided[number]
                    and backward_before < candidate.last_forward_use < position
                ):
                    for index, option in enumerate(candidate.options):
                        _add(row, {self._x[number, index]: 1.0}, option.saving.held_bytes)
            self._memory_rows.append((len(self._rows), float(problem.base_during[position])))
            self._rows.append((float("-inf"), 0.0, row))

    def _is_read_from(self, number: int, position: int) -> bool:
        """Whether backward must read the candidate at that position or later."""
        candidate = self._problem.candidates[number]
        if number not in self._first_use or not candidate.late_uses:
            return False
        last = candidate.late_uses[-1]
        return last >= position and len(self._problem.needs[last]) == 1

    def _remake_readers(self) -> list[list[int]]:
        readers: list[list[int]] = [[] for _ in self._problem.candidates]
        for rerun in self._problem.reruns.values():
            for number in rerun.makes:
                if self._decided[number] and self._can_be_remade(number):
                    for need in rerun.needs:
                        readers[need].append(number)
        return readers

    def _add_kept_for_remakes(
        self, row: _Expression, number: int, sample: int, readers: list[int]
    ) -> None:
        last = len(self._samples)
        if sample == last or not readers:
            return
        mine_end, mine_end_constant = self._there(number, last)
        mine, mine_constant = self._there(number, sample)
        comes_later = _difference(mine_end, mine)
        later_constant = mine_end_constant - mine_constant
        kept: int | None = None
        for reader in readers:
            end, end_constant = self._there(reader, last)
            now, now_constant = self._there(reader, sample)
            wanted = _difference(end, now)
            if not wanted and end_constant == now_constant:
                continue  # it has been given back by then, if at all
            if kept is None:
                kept = self._variable()
            left = _difference(_sum({kept: 1.0}, comes_later, self._not_remade(reader)), wanted)
            self._at_least(left, later_constant - (end_constant - now_constant))
        if kept is not None:
            _add(row, {kept: 1.0}, self._problem.candidates[number].num_bytes)

    def _add_other_form(self, row: _Expression, number: int, sample: int) -> None:
        """Bytes of an encoded form that is held until the tensor itself is back."""
        candidate = self._problem.candidates[number]
        forms = {
            self._x[number, index]: float(option.saving.held_bytes)
            for index, option in enumerate(candidate.options)
            if not option.saving.keeps_whole
            and option.saving.held_bytes > _NEGLIGIBLE * candidate.num_bytes
        }
        if not forms or sample >= self._first_use.get(number, 0):
            return
        largest = max(forms.values())
        held = self._variable()
        there, constant = self._there(number, sample)
        came_back = _difference(there, self._a[number, 0])
        shares = {variable: amount / largest for variable, amount in forms.items()}
        self._at_least(_difference(_sum({held: 1.0}, came_back), shares), constant)
        _add(row, {held: 1.0}, largest)

    # -- solving -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def cutting(self) -> Iterator[None]:
        """Choices that are forbidden inside are allowed again afterwards."""
        kept = len(self._cuts)
        try:
            yield
        finally:
            del self._cuts[kept:]

    def forbid(self, choice: Choice, needed: frozenset[int]) -> bool:
        """Rule a choice out, and all that differ from it only in what backward does not need.

        False where that leaves nothing: no decision matters.
        """
        wanted: _Expression = {}
        num_picked = 0
        for (number, index), variable in self._x.items():
            if number not in needed:
                continue
            picked_index = choice.options[number]
            options = self._problem.candidates[number].options
            if number in self._may_be_none and picked_index == _leanest(options):
                # Nothing picked means the leanest too: the choice is that no other one is.
                if index != picked_index:
                    wanted[variable] = 1.0
            elif index == picked_index:
                wanted[variable] = -1.0
                num_picked += 1
        picked = dict(choice.variants)
        for (position, index), variable in self._y.items():
            if picked.get(position, 0) == index:
                wanted[variable] = -1.0
                num_picked += 1
        if wanted:
            self._cuts.append((1.0 - num_picked, float("inf"), wanted))
        return bool(wanted)

    def solve(
        self,
        budget_bytes: int | None,
        *,
        integral: bool = False,
        time_limit_s: float = 30.0,
        most_nodes: int | None = None,
        close_enough_ms: float = 0.0,
    ) -> RelaxedSolution | None:
        """The best (or, without a budget, leanest) solution; None if there is none.

        Without a budget the peak itself is minimised: `bound_ms` is then a bound on it, in bytes.

        Args:
            integral: Whether options are taken or not, rather than in shares.
            time_limit_s: A guard; the work is bounded too.
            most_nodes: Of branch and bound; None: as many as it takes.
            close_enough_ms: How far from the best an integral solution may be.
        """
        if not self._costs:
            return None  # nothing to decide: the base alone is the peak
        from legroom.plan._highs import solve_programme  # HiGHS is loaded when first needed

        solved = solve_programme(
            costs=self._costs,
            is_integer=self._is_choice if integral else None,
            rows=[*self._rows, *self._cuts],
            memory_rows=self._memory_rows,
            budget_bytes=budget_bytes,
            time_limit_s=time_limit_s,
            most_nodes=most_nodes,
            close_enough=close_enough_ms,
        )
        self.num_solved += 1
        if solved is None:
            return None
        return self._read(solved)

    def _read(self, solved: Any) -> RelaxedSolution:
        shares: list[float | None] = []
        options: list[int] = []
        integral = bool(solved.values)
        for number, candidate in enumerate(self._problem.candidates):
            if not self._decided[number] or not solved.values:
                shares.append(None)
                options.append(0)
                continue
            values = [solved.values[self._x[number, i]] for i in range(len(candidate.options))]
            integral &= all(min(value, abs(1 - value)) < 1e-6 for value in values)
            whole = sum(
                value
                for value, option in zip(values, candidate.options, strict=True)
                if option.saving.keeps_whole
            )
            shares.append(whole)
            if sum(values) < 0.5:  # nobody reads it: drop it where that is possible
                options.append(_leanest(candidate.options))
            else:
                options.append(max(range(len(values)), key=lambda i: (round(values[i], 6), -i)))
        picked: dict[int, tuple[float, int]] = {}
        for (position, index), variable in self._y.items() if solved.values else ():
            value = round(solved.values[variable], 6)
            if position not in picked or value > picked[position][0]:
                picked[position] = (value, index)
        return RelaxedSolution(
            bound_ms=solved.bound,
            shares=tuple(shares),
            options=tuple(options),
            variants=tuple((p, index) for p, (_, index) in sorted(picked.items()) if index),
            is_integral=integral,
            stopped_early=solved.stopped_early,
        )


def _leanest(options: Any) -> int:
    return min(range(len(options)), key=lambda i: (options[i].saving.held_bytes, i))


def _add(into: _Expression, what: _Expression, factor: float) -> None:
    for variable, value in what.items():
        into[variable] = into.get(variable, 0.0) + factor * value


def _sum(*parts: _Expression) -> _Expression:
    total: _Expression = {}
    for part in parts:
        _add(total, part, 1.0)
    return total


def _difference(left: _Expression, right: _Expression) -> _Expression:
    total = dict(left)
    _add(total, right, -1.0)
    return {variable: value for variable, value in total.items() if value}


def _samples_of_backward(problem: Problem, number: int) -> list[int]:
    """Positions that read candidates, or the highest of each stretch of them, evenly spread.

    Those at which something is reserved are always among them.
    """
    positions = sorted(problem.needs)
    if not positions:
        return []
    reserved = [position for position in problem.reserved if position <= positions[-1]]
    if len(positions) <= max(number, _SMALL_PROBLEM):
        return sorted({*positions, *reserved})
    samples = []
    for part in range(number):
        first = part * len(positions) // number
        end = (part + 1) * len(positions) // number
        samples.append(max(positions[first:end], key=lambda p: (problem.base_during[p], -p)))
    return sorted({*samples, *reserved, positions[-1]})


def _samples_of_forward(problem: Problem, number: int) -> list[int]:
    backward = set(problem.needs)
    positions = [p for p in range(problem.num_positions) if p not in backward]
    positions = [p for p in positions if problem.graph.operations[p].is_forward]
    samples = []
    for part in range(number):
        stretch = positions[part * len(positions) // number : (part + 1) * len(positions) // number]
        if stretch:
            samples.append(max(stretch, key=lambda p: (problem.base_during[p], -p)))
    return sorted(set(samples))
