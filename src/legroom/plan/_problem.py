"""The planning problem: which tensors there is a choice for, and what is fixed around them.

In go a captured graph and the enabled ways and variants; out comes a `Problem`, which the
simulator executes and the solvers solve. See Note [Problem].
"""

# Note [Problem]
# 1. A candidate is a tensor that forward makes and that backward reads, or that would be read to
#    remake such a one. Each has options, one per way that applies; option 0 is always hold.
# 2. Positions are indexes of operations. A candidate's first life lasts from its producer to its
#    last use in forward; that part is fixed and is counted in the base, with everything that is
#    not a candidate.
# 3. `base_during[p]`: bytes of the base while operation p runs, its scratch memory included;
#    `base_before[p]`: just before it starts. A plan adds to that what it holds and gives back.
# 4. A choice is one option per candidate; nothing else is decided. What is given back is given
#    back once, as late as possible, and stays until its last use (`_simulate`).
# 5. A piece may be called several times in a step (micro-batches). It is one program, so what is
#    decided for one of its tensors holds for all calls: such candidates are tied. And each call
#    remakes only what it made itself: what another call reads is held.
# 6. A need is what one operation of backward reads among the candidates, one set per variant of
#    the operation. Where a variant needs less than another, the other is left out, and does not
#    count among the readers of a tensor either: a way may apply because of that.
# 7. What is moved behind what is computed is looked after at certain operations, which are others
#    in each call of a piece. So in a piece that is called several times, moves wait.

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

from legroom.capture import Graph, Kind, OperationInfo, Phase, TensorInfo
from legroom.meter import TierSpeed
from legroom.variants import AbstractVariant
from legroom.ways import AbstractMove, AbstractWay, Hold, RunCost, Saving

Place = tuple[int, str, int]
"""Of a tensor in the programs: the piece, the node that makes it, its place in what that writes."""
_AS_LARGE = 1.02
_FAR_LESS = 0.1


@final
@dataclass(frozen=True, slots=True)
class Option:
    """One way for one candidate.

    Attributes:
        way: Its name; of what is encoded and then moved, the encoding's.
        move: Name of the way that moves it; empty where it stays on the device.
    """

    way: str
    saving: Saving
    move: str = ""


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor with a choice; see Note [Problem], rules 1 and 2.

    Attributes:
        tensor: Its index in the graph.
        producer: Position of the operation that makes it; -1 if it was there before the step.
        last_forward_use: Position after which forward needs it no more.
        late_uses: Positions in backward that read it, under one variant or another.
    """

    tensor: int
    num_bytes: int
    producer: int
    last_forward_use: int
    late_uses: tuple[int, ...]
    options: tuple[Option, ...]


@final
@dataclass(frozen=True, slots=True)
class Rerun:
    """What running an operation of forward again means.

    Attributes:
        needs: Candidates that must be there.
        makes: Candidates that come back.
        passing_bytes: Outputs that are not candidates: made and dropped at once.
    """

    operation: int
    needs: tuple[int, ...]
    makes: tuple[int, ...]
    passing_bytes: int
    workspace_bytes: int
    time_ms: float


@final
@dataclass(frozen=True)
class Problem:
    """Everything that simulating and solving need; see Note [Problem].

    Attributes:
        needs: For each position of backward that reads candidates: alternatives, of which one is
            chosen by `Choice.variants`; almost always there is one only.
        reruns: By position of the operation.
        variant_names: For positions with alternatives, their names; `""` is PyTorch's own.
        candidate_of: Number of the candidate, by index of the tensor.
        last_use: Last position that reads or writes a tensor, by index of the tensor.
        tied: By candidate, all that the same decision holds for, itself included; see Note
            [Problem], rule 5.
        left_by_forward: The last positions before backward begins, and the bytes of stash that are
            there afterwards whatever is chosen.
        reserved: Some of these positions, and the bytes that count as taken afterwards, beside what
            is decided about.
    """

    graph: Graph
    candidates: tuple[Candidate, ...]
    needs: dict[int, tuple[tuple[int, ...], ...]]
    reruns: dict[int, Rerun]
    variant_names: dict[int, tuple[str, ...]]
    base_before: tuple[int, ...]
    base_during: tuple[int, ...]
    step_ms: float
    candidate_of: dict[int, int]
    last_use: dict[int, int]
    tied: tuple[tuple[int, ...], ...]
    left_by_forward: dict[int, int]
    reserved: Mapping[int, int] = field(default_factory=dict)

    @property
    def moves(self) -> tuple[str, ...]:
        """Names of the ways by which any tensor could be held elsewhere, in their order."""
        found = (option.move for each in self.candidates for option in each.options)
        return tuple(dict.fromkeys(name for name in found if name))

    def moving_by(self, moves: tuple[str, ...]) -> Problem:
        """The problem if there were only the first of these ways, or none.

        Options that move come last, in the order of the ways, so its choices hold for both.
        """
        fewer = (
            replace(
                each,
                options=tuple(
                    option for option in each.options if not option.move or option.move in moves
                ),
            )
            for each in self.candidates
        )
        return replace(self, candidates=tuple(fewer))

    def place_of(self, candidate: Candidate) -> Place | None:
        """Where it is in the programs; None for what is made outside all pieces."""
        op = self.graph.operations[candidate.producer]
        return (op.piece, op.node, op.writes.index(candidate.tensor)) if op.piece >= 0 else None

    @property
    def num_positions(self) -> int:
        """How many operations the step has."""
        return len(self.base_during)


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """An option for each candidate, and a variant for each operation that has several.

    Attributes:
        options: Index into `Candidate.options`, by candidate.
        variants: Index into `Problem.needs[position]`; absent positions take the first.
    """

    options: tuple[int, ...]
    variants: tuple[tuple[int, int], ...] = ()


def build_problem(
    graph: Graph,
    ways: tuple[type[AbstractWay], ...],
    variants: tuple[type[AbstractVariant], ...] = (),
    costs: Mapping[str, RunCost] | None = None,
    speeds: Mapping[str, TierSpeed] | None = None,
) -> Problem:
    """Find the candidates of a graph and count everything else into the base.

    Args:
        costs: Of what ways run themselves, by signature; what is missing takes no time.
        speeds: Of tiers, by name; nothing is moved to one that is missing.
    """
    return _Builder(graph, ways, variants, costs or {}, speeds or {}).build()


def signatures_of_ways(
    graph: Graph,
    ways: tuple[type[AbstractWay], ...],
    variants: tuple[type[AbstractVariant], ...] = (),
) -> list[str]:
    """What ways would run themselves for the candidates: what `build_problem` asks the costs of."""
    return _Builder(graph, ways, variants, {}, {}).signatures()


class _Builder:
    def __init__(
        self,
        graph: Graph,
        ways: tuple[type[AbstractWay], ...],
        variants: tuple[type[AbstractVariant], ...],
        costs: Mapping[str, RunCost],
        speeds: Mapping[str, TierSpeed],
    ) -> None:
        self._graph = graph
        self._moves = [
            (way, speeds[way.tier])
            for way in ways
            if issubclass(way, AbstractMove) and way.tier in speeds
        ]
        self._ways = ways
        self._variants = variants
        self._costs = costs
        self._alternatives = {
            op.index: self._alternatives_of(op)
            for op in graph.operations
            if op.phase is Phase.BACKWARD
        }
        self._last_use = {
            tensor: op.index
            for op in graph.operations
            for tensor in (*op.reads, *op.writes, *op.updates)
        }
        self._handed_on = {
            tensor
            for op in graph.operations
            for tensor in op.reads
            if op.piece >= 0
            and (made_by := graph.tensors[tensor].producer) >= 0
            and graph.operations[made_by].call != op.call
        }
        calls = {(op.piece, op.call) for op in graph.operations}
        self._num_calls = Counter(piece for piece, _ in calls)
        self._last_forward_use = {
            tensor: op.index
            for op in graph.operations
            if op.phase is not Phase.BACKWARD
            for tensor in op.reads
        }

    def build(self) -> Problem:
        graph = self._graph
        chosen = self._find_candidates()
        numbers = {tensor: number for number, tensor in enumerate(chosen)}
        needs, names = self._needs(numbers)
        late_uses = _late_uses(needs)
        candidates = tuple(
            self._candidate(tensor, late_uses[number]) for number, tensor in enumerate(chosen)
        )
        before, during = self._base(candidates)
        return Problem(
            graph=graph,
            candidates=candidates,
            needs=needs,
            reruns=self._reruns(candidates, numbers),
            variant_names=names,
            base_before=before,
            base_during=during,
            step_ms=graph.step_ms,
            candidate_of=numbers,
            last_use=self._last_use,
            tied=self._ties(candidates),
            left_by_forward=self._left_by_forward(candidates),
        )

    def signatures(self) -> list[str]:
        """See `signatures_of_ways`; what somebody else holds is not encoded."""
        chosen = self._find_candidates()
        needs, _ = self._needs({tensor: number for number, tensor in enumerate(chosen)})
        late_uses = _late_uses(needs)
        found = (
            signature
            for number, index in enumerate(chosen)
            if (tensor := self._graph.tensors[index]).is_planned
            for way in self._ways
            for signature in way.signatures(
                tensor,
                self._graph.operations[tensor.producer],
                self._readers(index, late_uses[number]),
            )
        )
        return list(dict.fromkeys(found))

    def _needs(
        self, numbers: dict[int, int]
    ) -> tuple[dict[int, tuple[tuple[int, ...], ...]], dict[int, tuple[str, ...]]]:
        """By position, what backward reads among the candidates, and by which formulas."""
        needs, names = {}, {}
        for position, alternatives in self._alternatives.items():
            sets = _without_dominated(
                [
                    (name, tuple(numbers[t] for t in reads if t in numbers))
                    for name, reads in alternatives
                ]
            )
            if len(sets) > 1 or sets[0][0]:
                names[position] = tuple(name for name, _ in sets)
            if any(each for _, each in sets):
                needs[position] = tuple(each for _, each in sets)
        return needs, names

    def _readers(self, tensor: int, late_uses: list[int]) -> tuple[OperationInfo, ...]:
        """Operations of backward that are handed a tensor; see Note [Problem], rule 6."""
        handed = self._graph.late_readers.get(tensor, ())
        return tuple(op for op in handed if op.index in late_uses)

    def _alternatives_of(self, op: OperationInfo) -> list[tuple[str, tuple[int, ...]]]:
        found = [("", op.reads)]
        for variant in self._variants:
            reads = variant.reads(op, self._graph) if op.piece >= 0 else None
            if reads is not None:
                found.append((variant.name, reads))
        return found

    def _find_candidates(self) -> list[int]:
        """Forward's tensors that backward reads, and what remaking them would read, in order."""
        found: set[int] = set()
        pending = [
            tensor
            for alternatives in self._alternatives.values()
            for _, reads in alternatives
            for tensor in reads
            if self._graph.tensors[tensor].is_planned
        ]
        while pending:
            tensor = pending.pop()
            if tensor in found or not self._has_choice(self._graph.tensors[tensor]):
                continue
            found.add(tensor)
            producer = self._graph.operations[self._graph.tensors[tensor].producer]
            if producer.piece >= 0:
                pending.extend(producer.needs_to_remake)
        return sorted(found)

    def _has_choice(self, tensor: TensorInfo) -> bool:
        if tensor.producer < 0 or not self._graph.operations[tensor.producer].is_forward:
            return False
        # Made outside, or handed out: it lives as recorded, unless a remake is to read it later.
        return tensor.is_planned or tensor.released_after is not None

    def _candidate(self, index: int, late_uses: list[int]) -> Candidate:
        tensor = self._graph.tensors[index]
        producer = self._graph.operations[tensor.producer]
        readers = self._readers(index, late_uses)
        options = []
        for way in self._ways:
            own = way.signatures(tensor, producer, readers)
            costs = tuple(self._costs.get(each, RunCost()) for each in own)
            saving = way.estimate(tensor, producer, costs, readers)
            is_own = producer.piece >= 0 and index not in self._handed_on
            if saving is None or (way is not Hold and not is_own):
                continue
            if saving.runs_producer and self._reads_what_goes(producer):
                continue
            if saving.is_encoded and not tensor.is_planned:
                continue  # somebody else holds it, and nobody is told when that ends
            if saving.readers_only and not {op.index for op in readers}.issuperset(late_uses):
                continue  # another formula would read what is not the tensor
            if way is Hold or saving.held_bytes < tensor.num_bytes:
                options.append(Option(way.name, saving))
        options = self._worth_their_error(options)
        if producer.piece >= 0 and index not in self._handed_on and tensor.is_planned:
            options += self._moved(tensor, producer, options)
        return Candidate(
            tensor=index,
            num_bytes=tensor.num_bytes,
            producer=tensor.producer,
            last_forward_use=self._end_of_first_life(tensor),
            late_uses=tuple(late_uses),
            options=tuple(options),
        )

    def _moved(
        self, tensor: TensorInfo, producer: OperationInfo, options: list[Option]
    ) -> list[Option]:
        """Forms in which it is held elsewhere, as it is or encoded first; see Note, rule 7."""
        encoded = [(each.way, each.saving) for each in options if each.saving.is_encoded]
        found = [
            Option(way, form, move.name)
            for move, speed in self._moves
            for way, saving in ((move.name, None), *encoded)
            for form in move.forms(tensor, producer, speed, saving)
        ]
        is_one_call = self._num_calls[producer.piece] == 1
        return [each for each in found if is_one_call or each.saving.waits]

    def _worth_their_error(self, options: list[Option]) -> list[Option]:
        """Leave out a form that is far less exact than another which is no larger.

        A plan takes the fastest, and would take it for a little time.
        """
        errors = {way.name: way.error for way in self._ways}

        def is_beaten(mine: Option) -> bool:
            return any(
                theirs.saving.is_encoded
                and theirs.saving.held_bytes <= _AS_LARGE * mine.saving.held_bytes
                and errors[theirs.way] < _FAR_LESS * errors[mine.way]
                for theirs in options
            )

        return [each for each in options if not (each.saving.is_encoded and is_beaten(each))]

    def _reads_what_goes(self, producer: OperationInfo) -> bool:
        """Whether it reads something from before the step that is let go within it."""
        needs = (self._graph.tensors[tensor] for tensor in producer.needs_to_remake)
        return any(each.producer < 0 and each.released_after is not None for each in needs)

    def _end_of_first_life(self, tensor: TensorInfo) -> int:
        end = self._last_forward_use.get(tensor.index, tensor.producer)
        if not tensor.is_planned and tensor.released_after is not None:
            end = max(end, tensor.released_after)
        return end

    def _ties(self, candidates: tuple[Candidate, ...]) -> tuple[tuple[int, ...], ...]:
        groups: dict[object, list[int]] = defaultdict(list)
        keys: list[object] = []
        for number, candidate in enumerate(candidates):
            op = self._graph.operations[candidate.producer]
            place = op.writes.index(candidate.tensor) if candidate.tensor in op.writes else -1
            ways = tuple(option.way for option in candidate.options)
            has_code = op.piece >= 0 and op.node and place >= 0
            keys.append((op.piece, op.node, place, ways) if has_code else number)
            groups[keys[-1]].append(number)
        return tuple(tuple(groups[key]) for key in keys)

    def _reruns(
        self, candidates: tuple[Candidate, ...], numbers: dict[int, int]
    ) -> dict[int, Rerun]:
        reruns = {}
        for position in sorted({each.producer for each in candidates}):
            op = self._graph.operations[position]
            makes = tuple(numbers[t] for t in op.writes if t in numbers)
            reruns[position] = Rerun(
                operation=position,
                needs=tuple(numbers[t] for t in op.needs_to_remake if t in numbers),
                makes=makes,
                passing_bytes=sum(
                    self._graph.tensors[t].num_bytes for t in op.writes if t not in numbers
                ),
                workspace_bytes=op.workspace_bytes,
                time_ms=op.time_ms,
            )
        return reruns

    def _base(self, candidates: tuple[Candidate, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See Note [Problem], rule 3."""
        operations = self._graph.operations
        ends = self._ends(candidates)
        changes = [0] * (len(operations) + 1)  # in effect from this position on
        for tensor in self._graph.tensors:
            end = ends[tensor.index]
            changes[max(tensor.producer, 0)] += tensor.num_bytes
            if end is not None and end < len(operations):
                changes[end + 1] -= tensor.num_bytes
        before, during, alive = [], [], 0
        born = self._bytes_born()
        for op in operations:
            alive += changes[op.index]
            during.append(alive + op.workspace_bytes)
            before.append(alive - born[op.index])
        return tuple(before), tuple(during)

    def _ends(self, candidates: tuple[Candidate, ...]) -> dict[int, int | None]:
        """The last position at which each tensor is alive whatever is chosen; None: it stays."""
        ends: dict[int, int | None] = {
            tensor.index: self._last_use.get(tensor.index, tensor.producer)
            if tensor.is_planned
            else tensor.released_after
            for tensor in self._graph.tensors
        }
        return ends | {each.tensor: each.last_forward_use for each in candidates}

    def _left_by_forward(self, candidates: tuple[Candidate, ...]) -> dict[int, int]:
        """See `Problem`."""
        ends = self._ends(candidates)
        found: dict[int, int] = {}
        is_ahead = False
        for op in self._graph.operations:
            if op.phase is Phase.BACKWARD and is_ahead:
                found[op.index - 1] = sum(
                    tensor.num_bytes
                    for tensor in self._graph.tensors
                    if tensor.kind is Kind.STASH
                    and max(tensor.producer, 0) < op.index
                    and ((end := ends[tensor.index]) is None or end >= op.index)
                )
            is_ahead = op.is_forward or (is_ahead and op.phase is not Phase.BACKWARD)
        return found

    def _bytes_born(self) -> dict[int, int]:
        born: dict[int, int] = defaultdict(int)
        for tensor in self._graph.tensors:
            if tensor.producer >= 0:
                born[tensor.producer] += tensor.num_bytes
        return born


def _late_uses(needs: dict[int, tuple[tuple[int, ...], ...]]) -> dict[int, list[int]]:
    """By candidate, the positions that read it."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, sets in needs.items():
        for number in sorted({each for reads in sets for each in reads}):
            found[number].append(position)
    return found


def _without_dominated(
    sets: list[tuple[str, tuple[int, ...]]],
) -> list[tuple[str, tuple[int, ...]]]:
    """Leave out alternatives that need all that another one needs, and more."""
    kept: list[tuple[str, tuple[int, ...]]] = []
    for name, needs in sets:
        mine = set(needs)
        others = [set(other) for _, other in sets if other is not needs]
        if any(other < mine for other in others):
            continue
        if any(set(each) == mine for _, each in kept):
            continue
        kept.append((name, needs))
    return kept


def kinds_at(graph: Graph, position: int) -> dict[Kind, int]:
    """Bytes of each kind that recorded lives have alive while an operation runs."""
    totals: dict[Kind, int] = defaultdict(int)
    for tensor in graph.tensors:
        end = tensor.released_after
        if max(tensor.producer, 0) <= position and (end is None or position <= end):
            totals[tensor.kind] += tensor.num_bytes
    workspace = graph.operations[position].workspace_bytes if graph.operations else 0
    if workspace:
        totals[Kind.WORKSPACE] += workspace
    return dict(totals)
