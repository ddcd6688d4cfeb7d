"""A choice in words: what it does to which tensor and why, and what is alive at its peak.

In go a search and a choice; out come the parts of a `Plan` that people read.
"""

from __future__ import annotations

from legroom.capture import Kind, TensorInfo
from legroom.plan._plan import Decision, LiveTensor
from legroom.plan._problem import Choice, Problem
from legroom.plan._search import Search
from legroom.plan._simulate import Trace
from legroom.ways import Saving

_MOST_POINTS = 400


def decisions_of(search: Search, choice: Choice) -> tuple[Decision, ...]:
    """One for each tensor that backward reads, or that is kept to remake another."""
    problem, trace = search.problem, Trace()
    search.simulator.run(choice, trace)
    charged: set[int] = set()
    put, fetched = set(trace.put), set(trace.fetched)
    decisions = []
    for number, candidate in enumerate(problem.candidates):
        if number not in trace.needed:
            continue
        tensor = problem.graph.tensors[candidate.tensor]
        producer = problem.graph.operations[candidate.producer]
        option = candidate.options[choice.options[number]]
        added_ms = option.saving.put_ms if number in put else 0.0
        if option.saving.runs_producer and producer.index in trace.runs_again:
            if producer.index not in charged:  # its other outputs come back with it
                added_ms += producer.time_ms
            charged.add(producer.index)
        elif number in fetched:
            added_ms += option.saving.get_ms + trace.timetable.waited_ms.get(number, 0.0)
        decisions.append(
            Decision(
                tensor=tensor.name,
                way=option.way,
                num_bytes=tensor.num_bytes if candidate.late_uses else 0,
                held_bytes=option.saving.held_bytes,
                added_ms=added_ms,
                module=tensor.module or producer.module,
                line=tensor.line or producer.line,
                operation=producer.name,
                reason=_reason(problem, number, choice),
                tier=option.saving.tier,
                moved_bytes=option.saving.moved_bytes if number in put else 0,
            )
        )
    return tuple(decisions)


def _reason(problem: Problem, number: int, choice: Choice) -> str:
    candidate = problem.candidates[number]
    option = candidate.options[choice.options[number]]
    if option.saving.keeps_whole:
        if not candidate.late_uses:
            return "backward does not read it, but what is remade starts from it"
        if len(candidate.options) == 1:
            return "there is no other way for it"
        return "its bytes cost more time to give back than others'"
    producer = problem.graph.operations[candidate.producer]
    if not candidate.late_uses:
        return "on the way to something else that is remade"
    if option.saving.runs_producer:
        rate = candidate.num_bytes / 2**20 / max(producer.time_ms, 1e-6)
        return f"running {producer.name.split('.')[1]} again gives {rate:,.0f} MiB per ms"
    return _reason_of_form(option.saving, candidate.num_bytes)


def _reason_of_form(saving: Saving, num_bytes: int) -> str:
    if saving.is_moved:
        how = "waited for" if saving.waits else "behind what is computed"
        return f"{saving.leave_ms:.1f} ms there, {saving.return_ms:.1f} ms back, {how}"
    share = saving.held_bytes / max(1, num_bytes)
    return f"held in {100 * share:.0f} % of its bytes for {saving.put_ms + saving.get_ms:.2f} ms"


def variants_of(problem: Problem, choice: Choice) -> tuple[tuple[str, str], ...]:
    """Operations of backward with another formula: their node and the formula's name."""
    picked = dict(choice.variants)
    found = []
    for position, names in sorted(problem.variant_names.items()):
        name = names[picked.get(position, 0)]
        if name:
            op = problem.graph.operations[position]
            found.append((op.node or op.name, name))
    return tuple(found)


def alive_at_peak(search: Search, choice: Choice) -> tuple[LiveTensor, ...]:
    """Everything that is alive at the peak, the largest first; state summed up by kind."""
    problem, trace = search.problem, Trace()
    outcome = search.simulator.run(choice, trace)
    position = outcome.peak_position
    extra = {
        problem.candidates[number].tensor: num_bytes
        for number, num_bytes in trace.alive_at_peak.items()
    }
    alive = [
        tensor
        for tensor in problem.graph.tensors
        if tensor.index in extra
        or (
            _in_base(problem, tensor, position)
            and not (trace.peak_is_between and tensor.producer == position)
        )
    ]
    sums: dict[Kind, int] = {}
    single: list[LiveTensor] = []
    for tensor in alive:
        num_bytes = extra.get(tensor.index, tensor.num_bytes)
        if tensor.kind in (Kind.WEIGHTS, Kind.OPTIMIZER_STATE, Kind.GRADIENTS, Kind.INPUTS):
            sums[tensor.kind] = sums.get(tensor.kind, 0) + num_bytes
        else:
            single.append(
                LiveTensor(tensor.name, tensor.kind.value, num_bytes, tensor.module, tensor.line)
            )
    totals = [LiveTensor(f"all {k.title}", k.value, num, "", "") for k, num in sums.items()]
    return tuple(sorted((*totals, *single), key=lambda each: (-each.num_bytes, each.name)))


def _in_base(problem: Problem, tensor: TensorInfo, position: int) -> bool:
    """Whether the tensor is alive at a position whatever is chosen; Note [Problem], rule 3."""
    number = problem.candidate_of.get(tensor.index)
    if number is not None:
        end: int | None = problem.candidates[number].last_forward_use
    elif tensor.is_planned:
        end = problem.last_use.get(tensor.index, tensor.producer)
    else:
        end = tensor.released_after
    return max(tensor.producer, 0) <= position and (end is None or position <= end)


def timeline_of(search: Search, choice: Choice) -> tuple[tuple[int, int], ...]:
    """Bytes alive while operations run: position, and the highest in its stretch of the step."""
    problem = search.problem
    during = search.simulator.profile(choice)
    width = -(-len(during) // _MOST_POINTS) or 1
    points = []
    for first in range(0, problem.num_positions, width):
        stretch = during[first : first + width]
        points.append((first + stretch.index(max(stretch)), max(stretch)))
    return tuple(points)
