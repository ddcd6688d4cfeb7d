"""A choice as a program: for each piece, what backward runs, in order, and what forward drops.

In go a search and a choice; out comes what the engine carries out. It is read off the simulation
itself, so that what runs is what was predicted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, final

from legroom.plan._problem import Choice, Problem
from legroom.plan._search import Search
from legroom.plan._simulate import Trace


@final
@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation that backward runs.

    Attributes:
        node: Its name in the piece's joint graph.
        is_rerun: Whether it is an operation of forward, run again.
        decoded: Which of what the node wrote is decoded, rather than the node run; None: it runs.
        variant: Name of the formula to use instead of PyTorch's own; empty for that.
    """

    node: str
    is_rerun: bool = False
    decoded: int | None = None
    variant: str = ""


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """A tensor that forward keeps in another form.

    Attributes:
        node: What made it.
        place: Among what the node writes.
        way: Name of the encoding.
        about: What its operations are told beside the tensor.
    """

    node: str
    place: int
    way: str
    about: tuple[Any, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class PieceProgram:
    """What one piece does; whatever is not dropped and is needed later is kept.

    Attributes:
        backward: In order.
        dropped: What forward does not keep: the node that made it, and its place among what that
            writes.
        encoded: What forward keeps in another form, in the order in which that is made where
            several are due at once.
    """

    backward: tuple[Instruction, ...]
    dropped: frozenset[tuple[str, int]]
    encoded: tuple[Encoded, ...] = ()


def programs_of(search: Search, choice: Choice) -> dict[int, PieceProgram]:
    """The program of each piece, by its number."""
    trace = Trace()
    search.simulator.run(choice, trace)
    problem = search.problem
    dropped, encoded = _dropped(problem, choice), _encoded(problem, choice, trace)
    return {
        piece: PieceProgram(backward, frozenset(dropped[piece]), tuple(encoded[piece]))
        for piece, backward in _backwards(problem, choice, trace).items()
    }


def _dropped(problem: Problem, choice: Choice) -> dict[int, set[tuple[str, int]]]:
    found: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for candidate, option in zip(problem.candidates, choice.options, strict=True):
        op = problem.graph.operations[candidate.producer]
        if candidate.options[option].saving.runs_producer and op.piece >= 0:
            found[op.piece].add((op.node, op.writes.index(candidate.tensor)))
    return found


def _encoded(problem: Problem, choice: Choice, trace: Trace) -> dict[int, dict[Encoded, None]]:
    """What is put away in another form, in the order of the candidates."""
    found: dict[int, dict[Encoded, None]] = defaultdict(dict)
    wanted = set(trace.put)
    for number, (candidate, index) in enumerate(
        zip(problem.candidates, choice.options, strict=True)
    ):
        option = candidate.options[index]
        op = problem.graph.operations[candidate.producer]
        if option.saving.is_encoded and number in wanted and op.piece >= 0:
            place = op.writes.index(candidate.tensor)
            found[op.piece][Encoded(op.node, place, option.way, option.saving.about)] = None
    return found


def _backwards(
    problem: Problem, choice: Choice, trace: Trace
) -> dict[int, tuple[Instruction, ...]]:
    """Of a piece that is called several times, the longest: the others need some of it."""
    inserted: dict[int, list[Instruction]] = defaultdict(list)
    for position, operation, number in trace.instructions:
        inserted[position].append(_inserted(problem, operation, number))
    picked = dict(choice.variants)
    of_call: dict[tuple[int, int], list[Instruction]] = defaultdict(list)
    for op in problem.graph.operations:
        if op.piece < 0 or op.is_forward:
            continue
        program = of_call[op.piece, op.call]
        program.extend(inserted.get(op.index, ()))
        names = problem.variant_names.get(op.index, ("",))
        program.append(Instruction(op.node, variant=names[picked.get(op.index, 0)]))
    longest: dict[int, tuple[Instruction, ...]] = {}
    for (piece, _), program in of_call.items():
        if len(program) > len(longest.get(piece, ())):
            longest[piece] = tuple(program)
    return longest


def _inserted(problem: Problem, operation: int, number: int) -> Instruction:
    if operation >= 0:
        return Instruction(problem.graph.operations[operation].node, is_rerun=True)
    candidate = problem.candidates[number]
    producer = problem.graph.operations[candidate.producer]
    return Instruction(producer.node, decoded=producer.writes.index(candidate.tensor))
