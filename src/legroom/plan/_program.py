"""A choice as a program: for each piece, what backward runs, in order, and what forward drops.

In go a search and a choice; out comes what the engine carries out. It is read off the simulation
itself, so that what runs is what was predicted.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from legroom.capture import OperationInfo
from legroom.plan._problem import Choice, Problem
from legroom.plan._search import Search
from legroom.plan._simulate import Trace


class Transfer(enum.Enum):
    """What is done about something that is held elsewhere, before it is given back."""

    SETTLE = "settle"
    FETCH = "fetch"


@final
@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation that backward runs.

    Attributes:
        node: Its name in the piece's joint graph.
        is_rerun: Whether it is an operation of forward, run again.
        decoded: Which of what the node wrote is decoded, rather than the node run; None: it runs.
        transfer: What is done about that instead of decoding it, where it is held elsewhere.
        variant: Name of the formula to use instead of PyTorch's own; empty for that.
    """

    node: str
    is_rerun: bool = False
    decoded: int | None = None
    transfer: Transfer | None = None
    variant: str = ""


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """A tensor that forward keeps in another form, or elsewhere.

    Attributes:
        node: What made it.
        place: Among what the node writes.
        way: Name of the encoding; empty where it is moved as it is.
        about: What its operations are told beside the tensor.
        move: Name of the way that moves it, encoded or as it is; empty where it stays.
        settled_before: The node of forward before which it has left; None: right after it was put,
            empty: a node of backward, which has an instruction for it.
        label: What plans and errors call it.
    """

    node: str
    place: int
    way: str = ""
    about: tuple[Any, ...] = ()
    move: str = ""
    settled_before: str | None = None
    label: str = ""


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
    backwards = _backwards(problem, choice, trace)
    calls = {piece: call for piece, (call, _) in backwards.items()}
    dropped = _dropped(problem, choice, trace)
    encoded = _encoded(problem, choice, trace, calls)
    return {
        piece: PieceProgram(backward, frozenset(dropped[piece]), tuple(encoded.get(piece, ())))
        for piece, (_, backward) in backwards.items()
    }


def _dropped(problem: Problem, choice: Choice, trace: Trace) -> dict[int, set[tuple[str, int]]]:
    """What is made again, and what would be held elsewhere but comes back with something else.

    What the loop holds until backward has read it is not made again: backward reads that.
    """
    found: dict[int, set[tuple[str, int]]] = defaultdict(set)
    put = set(trace.put)
    again = {operation for _, operation, _ in trace.instructions}
    for number, (candidate, index) in enumerate(
        zip(problem.candidates, choice.options, strict=True)
    ):
        op, saving = problem.graph.operations[candidate.producer], candidate.options[index].saving
        is_made_again = saving.runs_producer and candidate.producer in again
        is_gone = is_made_again or (saving.is_moved and number not in put)
        if is_gone and op.piece >= 0:
            found[op.piece].add((op.node, op.writes.index(candidate.tensor)))
    return found


def _encoded(
    problem: Problem, choice: Choice, trace: Trace, calls: dict[int, int]
) -> dict[int, list[Encoded]]:
    """What is put away in another form or elsewhere, in the order of the candidates.

    Args:
        calls: Of a piece that is called several times, the call whose backward it has.
    """
    operations = problem.graph.operations
    found: dict[int, dict[tuple[str, int], Encoded]] = defaultdict(dict)
    wanted = set(trace.put)
    for number, (candidate, index) in enumerate(
        zip(problem.candidates, choice.options, strict=True)
    ):
        option, op = candidate.options[index], operations[candidate.producer]
        if not option.saving.is_encoded or number not in wanted or op.piece < 0:
            continue
        settled = trace.timetable.settled_before.get(number, -1)
        made = Encoded(
            node=op.node,
            place=op.writes.index(candidate.tensor),
            way="" if option.way == option.move else option.way,
            about=option.saving.about,
            move=option.move,
            settled_before=_forward_node(operations, settled),
            label=problem.graph.tensors[candidate.tensor].name,
        )
        where = made.node, made.place
        if where not in found[op.piece] or calls.get(op.piece) == op.call:
            found[op.piece][where] = made
    return {piece: list(each.values()) for piece, each in found.items()}


def _forward_node(operations: tuple[OperationInfo, ...], position: int) -> str | None:
    """See `Encoded.settled_before`."""
    if position < 0:
        return None
    return operations[position].node if operations[position].is_forward else ""


def _backwards(
    problem: Problem, choice: Choice, trace: Trace
) -> dict[int, tuple[int, tuple[Instruction, ...]]]:
    """Of a piece that is called several times, the longest: the others need some of it.

    Beside each, the call that it is of.
    """
    inserted: dict[int, list[Instruction]] = defaultdict(list)
    for position, number, transfer in _transfers(problem, trace):
        inserted[position].append(_given_back(problem, number, transfer))
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
    longest: dict[int, tuple[int, tuple[Instruction, ...]]] = {}
    for (piece, call), program in of_call.items():
        if piece not in longest or len(program) > len(longest[piece][1]):
            longest[piece] = call, tuple(program)
    return longest


def _transfers(problem: Problem, trace: Trace) -> Iterator[tuple[int, int, Transfer]]:
    """What backward does about what is held elsewhere, in the order in which it does."""
    operations, made = problem.graph.operations, trace.timetable
    for number, position in made.settled_before.items():
        if not operations[position].is_forward:
            yield position, number, Transfer.SETTLE
    for number, position in made.fetched_before.items():
        yield position, number, Transfer.FETCH


def _inserted(problem: Problem, operation: int, number: int) -> Instruction:
    if operation >= 0:
        return Instruction(problem.graph.operations[operation].node, is_rerun=True)
    return _given_back(problem, number, None)


def _given_back(problem: Problem, number: int, transfer: Transfer | None) -> Instruction:
    candidate = problem.candidates[number]
    producer = problem.graph.operations[candidate.producer]
    place = producer.writes.index(candidate.tensor)
    return Instruction(producer.node, decoded=place, transfer=transfer)
