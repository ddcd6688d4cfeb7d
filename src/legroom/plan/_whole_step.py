"""The graph of a whole step: what the loop was seen to do, around the captured calls.

In go observed steps and the captured graph of each kind of call; out comes one graph, in the order
in which things happened, in which the calls can be planned. See Note [Whole step].
"""

# Note [Whole step]
# 1. Of a kind's captured graph only pieces count: what is around them there was made up. Each run
#    of a piece has its operations written out, with a number of a call of its own, so that the
#    planner ties what is one program (Note [Problem], rule 5).
# 2. What the loop did in one stretch is one operation: it makes what came to stay, its workspace is
#    what came and went, and what was gone after it is released there.
# 3. What a piece returned and the loop let go before the piece's own backward began is the plan's
#    from then on. It cannot be told how much longer the loop wanted what was there until the
#    backward that reads it had ended, so there it is the plan's as well. What was there for longer
#    is the loop's.
# 4. Gradients that are added to older ones are gone right after they were made.
# 5. What pieces read and no piece makes (weights, batches) is counted as the loop holds it. It
#    stands in the graph without bytes.
# 6. Several steps stand one after the other: what all of them hold all along is there once, the
#    rest from the beginning of each to its end. So one plan serves them all.
# 7. Of what repeats within a step, one stands for several: see Note [Rounds].

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from legroom.capture import (
    STATE,
    Graph,
    Holding,
    Kind,
    ObservedRun,
    ObservedStep,
    OperationInfo,
    Phase,
    Stretch,
    TensorInfo,
)
from legroom.errors import LegroomError
from legroom.plan._executor_time import ExecutorLoad
from legroom.plan._problem import Choice, Problem
from legroom.plan._program import PieceProgram
from legroom.plan._repeats import without_repeats
from legroom.plan._simulate import NEVER_FITS, Simulator

_LOOP = "the loop"


class UnknownRunError(LegroomError):
    """A step ran something that no captured graph has: it cannot be put together."""


@final
@dataclass(frozen=True)
class CapturedKind:
    """One kind of call.

    Attributes:
        graph: Its captured step, with times.
        name: Of the model, before the names of its tensors; empty where there is only one.
    """

    graph: Graph
    name: str = ""


@final
@dataclass(frozen=True)
class WholeStep:
    """A graph in which all calls of a step are planned together.

    Attributes:
        graph: As it is planned.
        plain: The same with lives as eager PyTorch has them.
        pieces: For each of its pieces, the kind and the piece of the kind.
        tensors_of: For each kind, names of the tensors of the first call of each of its pieces.
        load: How much goes through the executor, what repeats included.
    """

    graph: Graph
    plain: Graph
    pieces: tuple[tuple[int, int], ...]
    tensors_of: dict[int, frozenset[str]]
    load: ExecutorLoad

    def programs_of(
        self, kind: int, programs: Mapping[int, PieceProgram]
    ) -> dict[int, PieceProgram]:
        """What the pieces of one kind do."""
        return {
            piece: programs[number]
            for number, (owner, piece) in enumerate(self.pieces)
            if owner == kind and number in programs
        }

    def choice_of(
        self, problem: Problem, programs: Mapping[int, Mapping[int, PieceProgram]]
    ) -> Choice:
        """The choice that programs at work stand for; by kind and piece."""
        at_work = {
            number: programs.get(kind, {}).get(piece)
            for number, (kind, piece) in enumerate(self.pieces)
        }
        options = []
        for candidate in problem.candidates:
            place = problem.place_of(candidate)
            program = at_work.get(place[0]) if place is not None else None
            chosen = 0
            if place is not None and program is not None:
                where = place[1:]
                form = next((e for e in program.encoded if (e.node, e.place) == where), None)
                for index, option in enumerate(candidate.options):
                    if form is not None:
                        is_it = option.way == (form.way or form.move) and option.move == form.move
                    else:
                        is_it = where in program.dropped and option.saving.runs_producer
                    if is_it:
                        chosen = index
                        break
            options.append(chosen)
        variants = []
        for position, names in problem.variant_names.items():
            op = problem.graph.operations[position]
            program = at_work.get(op.piece)
            if len(names) > 1 and program is not None:
                used = next((i.variant for i in program.backward if i.node == op.node), "")
                if used in names[1:]:
                    variants.append((position, names.index(used)))
        return Choice(tuple(options), tuple(variants))


def compose(steps: Sequence[ObservedStep], kinds: Mapping[int, CapturedKind]) -> WholeStep:
    """Put together what was seen and what was captured; see Note [Whole step].

    Raises:
        UnknownRunError: A piece ran that no captured graph has, or ran backward twice.
    """
    composer = _Composer(kinds)
    repeated = [without_repeats(step.as_it_repeats()) for step in steps]
    composer.add_common(repeated)
    for step in repeated:
        composer.add_step(step, is_only=len(repeated) == 1)
    return composer.whole()


def count_operations(steps: Sequence[ObservedStep], kinds: Mapping[int, CapturedKind]) -> int:
    """Operations of the graph that `compose` would make."""
    lengths: Counter[tuple[int, int, bool]] = Counter()
    for number, kind in kinds.items():
        for run in _runs_of(kind.graph):
            lengths[number, run.piece, False] = len(run.forward)
            lengths[number, run.piece, True] = len(run.backward)
    return sum(
        1 if stretch.run is None else lengths[_program_of(stretch.run)]
        for step in steps
        for stretch in without_repeats(step.as_it_repeats()).stretches
    )


def _program_of(run: ObservedRun) -> tuple[int, int, bool]:
    return run.kind, run.piece, run.is_backward


def simulate_choice(problem: Problem, choice: Choice) -> int | None:
    """The peak under a choice in bytes; None where it cannot be carried out."""
    peak_bytes = Simulator(problem).run(choice).peak_bytes
    return None if peak_bytes >= NEVER_FITS else peak_bytes


# What is in a kind's graph ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """What one call of a piece does in a kind's captured graph."""

    piece: int
    forward: tuple[OperationInfo, ...]
    backward: tuple[OperationInfo, ...]


def _runs_of(graph: Graph) -> list[_Run]:
    forward: dict[tuple[int, int], list[OperationInfo]] = defaultdict(list)
    backward: dict[tuple[int, int], list[OperationInfo]] = defaultdict(list)
    for op in graph.operations:
        if op.piece >= 0:
            (forward if op.is_forward else backward)[op.piece, op.call].append(op)
    return [_Run(key[0], tuple(ops), tuple(backward[key])) for key, ops in forward.items()]


# Putting together ---------------------------------------------------------------------------------


@dataclass
class _Draft:
    """A tensor while the graph is being put together."""

    info: TensorInfo
    release: int | None = None


@dataclass
class _Call:
    """One call of a planned target in a step: which runs of its graph are left to be met.

    Attributes:
        waiting: Runs of the captured graph that have not been met yet.
        tensors: Number of the copy, by index of the tensor in the captured graph.
    """

    waiting: list[_Run]
    tensors: dict[int, int] = field(default_factory=dict)


@dataclass
class _Started:
    """A run whose backward is still to come."""

    run: _Run
    call: _Call
    number: int


@dataclass
class _Position:
    """Where a stretch begins and ends among the operations."""

    first: int
    last: int


class _Course:
    """How far a step has been put together.

    Attributes:
        ends: The stretch in which each run has its backward.
        made: Holdings by the stretch that makes them.
        dying: Those that go, with their numbers among the tensors, by the stretch.
        staying: Those that do not.
    """

    def __init__(self, step: ObservedStep) -> None:
        self.step = step
        self.calls: dict[tuple[int, int], _Call] = {}
        self.started: dict[int, _Started] = {}
        self.positions: list[_Position] = []
        self.made: dict[int, list[Holding]] = defaultdict(list)
        self.dying: dict[int, list[tuple[int, Holding]]] = defaultdict(list)
        self.staying: list[tuple[int, Holding]] = []
        for holding in step.holdings:
            if holding.born >= 0:
                self.made[holding.born].append(holding)
        self.ends = {
            each.run.number: place
            for place, each in enumerate(step.stretches)
            if each.run is not None and each.run.is_backward
        }

    def note(self, born: Iterable[tuple[int, Holding]]) -> None:
        """Some holdings are tensors of the graph by now."""
        for number, holding in born:
            if holding.died is None:
                self.staying.append((number, holding))
            else:
                self.dying[holding.died].append((number, holding))


class _Composer:
    def __init__(self, kinds: Mapping[int, CapturedKind]) -> None:
        self._kinds = kinds
        self._runs = {number: _runs_of(kind.graph) for number, kind in kinds.items()}
        self._pieces: dict[tuple[int, int], int] = {}
        self._drafts: list[_Draft] = []
        self._operations: list[OperationInfo] = []
        self._stand_ins: dict[tuple[int, int], int] = {}
        self._num_calls = 0
        self._num_runs = self._num_operations = 0
        self._common: Counter[Kind] = Counter()
        self._names: Counter[str] = Counter()
        self._tensors_of: dict[int, set[str]] = defaultdict(set)
        self._first_call_of: dict[int, int] = {}
        self._extra_reads: dict[int, set[int]] = defaultdict(set)

    # Steps ---------------------------------------------------------------------------------------

    def add_common(self, steps: Sequence[ObservedStep]) -> None:
        """What all steps hold all along."""
        staying = [
            Counter[Kind](
                {kind: sum(h.num_bytes for h in held) for kind, held in _staying(step).items()}
            )
            for step in steps
        ]
        for kind in Kind:
            num_bytes = min((each[kind] for each in staying), default=0)
            if num_bytes:
                self._common[kind] = num_bytes
                self._add(_loop_tensor(f"{kind.value} of the loop", num_bytes, kind))

    def add_step(self, step: ObservedStep, *, is_only: bool) -> None:
        """One step after those before; see Note [Whole step], rule 6."""
        first = len(self._operations)
        course = _Course(step)
        opening = self._opening(step)
        if first and opening:
            for number, _ in opening:
                self._produced(number, first)
            made = tuple(number for number, _ in opening)
            self._append(OperationInfo(0, _LOOP, Phase.OTHER, writes=made))
        course.note(opening)
        for place, stretch in enumerate(step.stretches):
            begin = len(self._operations)
            if stretch.run is None:
                course.note(self._add_loop(stretch, course.made[place]))
            else:
                course.note(self._add_run(stretch, stretch.run, course, place))
            course.positions.append(_Position(begin, max(begin, len(self._operations) - 1)))
        for place, each in course.dying.items():
            for number, holding in each:
                self._release(number, holding, course, place)
        last = len(self._operations) - 1
        for number, holding in course.staying:
            if holding.born >= 0 or not is_only:
                self._drafts[number].release = last

    def _opening(self, step: ObservedStep) -> list[tuple[int, Holding]]:
        """What only this step finds when it begins."""
        left = Counter(self._common)
        found = []
        for holding in step.holdings:
            if holding.born >= 0:
                continue
            num_bytes = holding.num_bytes
            if holding.died is None:
                known = min(left[holding.kind], num_bytes)
                left[holding.kind] -= known
                num_bytes -= known
            if num_bytes:
                name = f"{holding.kind.value} of the loop"
                number = self._add(_loop_tensor(name, num_bytes, holding.kind))
                found.append((number, holding))
        return found

    def _add_loop(self, stretch: Stretch, made: list[Holding]) -> list[tuple[int, Holding]]:
        at = len(self._operations)
        born = []
        for holding in made:
            name = f"made by the loop, {stretch.phase.value}"
            born.append((self._add(_loop_tensor(name, holding.num_bytes, holding.kind)), holding))
        for number, _ in born:
            self._produced(number, at)
        self._append(
            OperationInfo(
                0,
                _LOOP,
                stretch.phase,
                writes=tuple(number for number, _ in born),
                workspace_bytes=stretch.passing_bytes,
            )
        )
        return born

    # Runs ----------------------------------------------------------------------------------------

    def _add_run(
        self, stretch: Stretch, about: ObservedRun, course: _Course, place_of_run: int
    ) -> list[tuple[int, Holding]]:
        made = course.made[place_of_run]
        if about.is_backward:
            if about.number not in course.started:
                raise UnknownRunError("a piece ran backward twice, or before it was looked at")
            begun = course.started.pop(about.number)
            operations = begun.run.backward
        else:
            begun = self._start(about, course.calls)
            course.started[about.number] = begun
            operations = begun.run.forward
            self._num_runs += stretch.times
        self._num_operations += len(operations) * stretch.times
        self._bind_given(operations, begun, about, course.dying[place_of_run])
        places = {h.place: h for h in made if h.place is not None}
        born: list[tuple[int, Holding]] = []
        for op in operations:
            at = len(self._operations)
            for place, tensor in enumerate(op.writes):
                holding = places.pop((op.node, place), None)
                number = self._copy_tensor(about, begun, tensor, at, holding)
                if holding is not None:
                    born.append((number, holding))
            self._append(self._copied(op, about, begun, stretch.times))
        rest = [h for h in made if h.place is None or h.place in places]
        if rest:
            born += self._add_loop(replace(stretch, passing_bytes=0), rest)
        return born

    def _start(self, about: ObservedRun, calls: dict[tuple[int, int], _Call]) -> _Started:
        if about.kind not in self._runs:
            raise UnknownRunError("a call was planned by somebody else")
        call = calls.setdefault(
            (about.kind, about.call), _Call(waiting=list(self._runs[about.kind]))
        )
        run = next((each for each in call.waiting if each.piece == about.piece), None)
        if run is None:
            run = next((e for e in self._runs[about.kind] if e.piece == about.piece), None)
            if run is None:
                raise UnknownRunError("a graph ran that was not planned")
        else:
            call.waiting.remove(run)
        self._num_calls += 1
        self._pieces.setdefault((about.kind, about.piece), len(self._pieces))
        self._first_call_of.setdefault(self._pieces[about.kind, about.piece], self._num_calls - 1)
        return _Started(run, call, self._num_calls - 1)

    def _bind_given(
        self,
        operations: tuple[OperationInfo, ...],
        begun: _Started,
        about: ObservedRun,
        dying: list[tuple[int, Holding]],
    ) -> None:
        """Tell by their size what a run was given by the loop and is gone before it ends."""
        graph = self._kinds[about.kind].graph
        given: dict[int, None] = {}
        for op in operations:
            for tensor in op.reads:
                info = graph.tensors[tensor]
                maker = graph.operations[info.producer] if info.producer >= 0 else None
                is_ours = maker is not None and maker.piece >= 0
                if not is_ours and info.kind not in STATE and tensor not in begun.call.tensors:
                    given[tensor] = None
        for number, holding in dying:
            match = next(
                (t for t in given if graph.tensors[t].num_bytes == holding.num_bytes), None
            )
            if match is not None and holding.place is None:
                del given[match]
                begun.call.tensors[match] = number

    def _copy_tensor(
        self,
        about: ObservedRun,
        begun: _Started,
        tensor: int,
        at: int,
        holding: Holding | None,
    ) -> int:
        info = self._kinds[about.kind].graph.tensors[tensor]
        known = begun.call.tensors.get(tensor)
        if known is not None:
            return known
        name = self._kinds[about.kind].name
        kind = info.kind
        if about.is_backward:
            kind = Kind.TEMPORARIES_BACKWARD if holding is None else holding.kind
        copied = replace(
            info,
            name=f"{name}.{info.name}" if name else info.name,
            kind=kind,
            producer=at,
            released_after=None,
            is_planned=True,
            module=_within(name, info.module),
        )
        number = self._add(copied)
        begun.call.tensors[tensor] = number
        piece = self._pieces[about.kind, about.piece]
        if self._first_call_of[piece] == begun.number:
            self._tensors_of[about.kind].add(self._drafts[number].info.name)
        return number

    def _copied(
        self, op: OperationInfo, about: ObservedRun, begun: _Started, times: int
    ) -> OperationInfo:
        def mapped(tensors: Iterable[int]) -> tuple[int, ...]:
            return tuple(dict.fromkeys(self._number_of(about, begun, each) for each in tensors))

        return replace(
            op,
            reads=mapped(op.reads),
            writes=mapped(op.writes),
            updates=mapped(op.updates),
            remake_reads=None if op.remake_reads is None else mapped(op.remake_reads),
            piece=self._pieces[about.kind, about.piece],
            call=begun.number,
            time_ms=op.time_ms * times,
            module=_within(self._kinds[about.kind].name, op.module),
        )

    def _number_of(self, about: ObservedRun, begun: _Started, tensor: int) -> int:
        known = begun.call.tensors.get(tensor)
        if known is not None:
            return known
        key = about.kind, tensor
        if key not in self._stand_ins:
            info = self._kinds[about.kind].graph.tensors[tensor]
            stand_in = replace(
                info,
                num_bytes=0,
                producer=-1,
                released_after=None,
                is_planned=False,
                kind=Kind.INPUTS if info.kind not in STATE else info.kind,
            )
            self._stand_ins[key] = self._add(stand_in)
        return self._stand_ins[key]

    def _release(self, number: int, holding: Holding, course: _Course, place: int) -> None:
        """When something that went within the step does so; see Note [Whole step], rule 3."""
        draft, position = self._drafts[number], course.positions[place]
        if holding.place is None:
            span = self._operations[position.first : position.last + 1]
            readers = [op.index for op in span if number in op.reads]
            draft.release = max(readers, default=position.last)
            return
        origin = course.step.stretches[holding.born].run
        assert origin is not None, "bug in legroom: a piece's output without its run"
        end = course.ends.get(origin.number)
        if origin.is_backward or end is None or place > end:
            draft.release = position.last
        elif place < end:
            self._extra_reads[position.last].add(number)
        # Else it was there until its own backward had ended: the plan's.

    # Parts ---------------------------------------------------------------------------------------

    def _add(self, info: TensorInfo) -> int:
        name = info.name
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}~{self._names[name] - 1}"
            while name in self._names:
                name += "~"
            self._names[name] += 1
        number = len(self._drafts)
        self._drafts.append(_Draft(replace(info, index=number, name=name)))
        return number

    def _produced(self, number: int, at: int) -> None:
        self._drafts[number].info = replace(self._drafts[number].info, producer=at)

    def _append(self, op: OperationInfo) -> None:
        self._operations.append(replace(op, index=len(self._operations)))

    def whole(self) -> WholeStep:
        operations = list(self._operations)
        for position, extra in self._extra_reads.items():
            op = operations[position]
            operations[position] = replace(op, reads=(*op.reads, *sorted(extra - {*op.reads})))
        released = [self._finished(draft) for draft in self._drafts]
        first = next(iter(self._kinds.values())).graph
        blocks = tuple(
            _within(kind.name, path) for kind in self._kinds.values() for path in kind.graph.blocks
        )
        graph = Graph(
            tensors=tuple(released),
            operations=tuple(operations),
            blocks=tuple(dict.fromkeys(blocks)),
            num_pieces=len(self._pieces),
            device=first.device,
            torch_version=first.torch_version,
            not_captured=tuple(
                dict.fromkeys(
                    each for kind in self._kinds.values() for each in kind.graph.not_captured
                )
            ),
        )
        return WholeStep(
            graph,
            _as_eager(graph),
            tuple(self._pieces),
            {kind: frozenset(names) for kind, names in self._tensors_of.items()},
            ExecutorLoad(self._num_runs, self._num_operations),
        )

    def _finished(self, draft: _Draft) -> TensorInfo:
        if draft.release is None:
            return draft.info
        is_last = draft.release == len(self._operations) - 1
        is_state = draft.info.kind in STATE
        return replace(
            draft.info,
            is_planned=False,
            released_after=None if is_last and is_state else draft.release,
        )


def _staying(step: ObservedStep) -> dict[Kind, list[Holding]]:
    found: dict[Kind, list[Holding]] = defaultdict(list)
    for holding in step.holdings:
        if holding.born < 0 and holding.died is None:
            found[holding.kind].append(holding)
    return found


def _loop_tensor(name: str, num_bytes: int, kind: Kind) -> TensorInfo:
    return TensorInfo(0, name, num_bytes, kind, (num_bytes,), "uint8")


def _within(name: str, module: str) -> str:
    return f"{name}.{module}" if name and module else name or module


def _as_eager(graph: Graph) -> Graph:
    """Everything that is planned lives until its last use."""
    last = {
        tensor: op.index
        for op in graph.operations
        for tensor in (*op.reads, *op.writes, *op.updates)
    }
    tensors = tuple(
        replace(each, is_planned=False, released_after=last.get(each.index, each.producer))
        if each.is_planned
        else each
        for each in graph.tensors
    )
    return replace(graph, tensors=tensors)
