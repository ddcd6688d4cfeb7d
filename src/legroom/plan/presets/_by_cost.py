"""Recipes that decide operation by operation: what is cheap is run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from legroom.capture import OperationInfo
from legroom.plan._problem import Choice, Problem
from legroom.plan._search import Search
from legroom.plan.presets._preset import AbstractPreset

_EXPENSIVE = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "attention", "rnn", "lstm", "linear",
    "grouped_mm", "matmul", "einsum", "sort", "topk", "embedding_bag",
)  # fmt: skip
"""Parts of the names of operations that no recipe runs again lightly."""


def is_expensive(op: OperationInfo) -> bool:
    """Whether torch's partitioner and Echo would call it compute-intensive, or it is random."""
    return op.is_random or any(part in op.name for part in _EXPENSIVE)


@final
class SaveAll(AbstractPreset):
    """What backward reads is held: PyTorch's own habit, within the captured pieces."""

    name = "save-all"
    summary = "keep everything that backward reads"
    origin = "AOTAutograd's default partition"
    costs = "its bytes, no time"
    when = (
        "To see what the captured step needs when nothing is run again: fused operations and "
        "other formulas alone."
    )
    not_with = "Nothing."
    uses = ("hold",)

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """Always applies."""
        yield search.hold_all()


@final
class MinCut(AbstractPreset):
    """The smallest set of bytes from which cheap operations give the rest."""

    name = "min-cut"
    summary = "keep the fewest bytes from which cheap operations remake the rest"
    origin = "torch.compile's min-cut partitioner"
    costs = "cheap operations once more"
    when = "To compare with `torch.compile`, which does this by itself."
    not_with = (
        "Matrix products, convolutions, attention and random operations, which it never runs again."
    )

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """Always applies."""
        yield search.holding(_minimum_cut(search.problem))


@final
class Echo(AbstractPreset):
    """Selective recomputation: cheap operations, in groups, where more is released than kept."""

    name = "echo"
    summary = "run cheap operations again, a group together, where it releases more than it keeps"
    origin = "Echo 2020"
    costs = "cheap operations once more, where that releases more bytes than it keeps"
    when = (
        "For recurrent networks and attention written out, with many small operations on the "
        "same tensors."
    )
    not_with = (
        "Matrix products, convolutions, attention and random operations, which it never runs again."
    )

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """Always applies."""
        problem = search.problem
        held = {n for n, each in enumerate(problem.candidates) if each.late_uses}
        for group in _groups(problem):
            inputs = {
                need
                for number in group
                for need in problem.reruns[problem.candidates[number].producer].needs
            } - set(group)
            released = sum(problem.candidates[n].num_bytes for n in group if n in held)
            allocated = sum(problem.candidates[n].num_bytes for n in inputs if n not in held)
            if released >= allocated and released:
                held = (held - set(group)) | inputs
        yield search.holding(held)


@final
class Tempo(AbstractPreset):
    """Of an activation, a norm and a dropout, one of input and output is kept.

    Tempo keeps the output and works the input out from it; here the input is kept and the output
    made again. That is the same bytes, and the bits stay.
    """

    name = "tempo"
    summary = "of activations, norms and dropouts keep the input (and mask), remake the output"
    origin = "Tempo 2022 (there, the output is kept and the input worked out from it)"
    costs = "activations, norms and dropouts once more"
    when = "For transformers: of what they keep, what takes the least time to make again."
    not_with = "Models without GELU, SiLU, layer norms and dropouts."

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """Applies where there are such operations."""
        problem = search.problem
        read = {number for number, each in enumerate(problem.candidates) if each.late_uses}
        remade = {
            number
            for number in read
            if _is_layer_of_elements(problem.graph.operations[problem.candidates[number].producer])
        }
        if remade:
            sources = {
                need
                for number in remade
                for need in problem.reruns[problem.candidates[number].producer].needs
            }
            yield search.holding((read | sources) - remade)


def _is_layer_of_elements(op: OperationInfo) -> bool:
    """Whether Tempo has its own layer for the operation, or it is one written out."""
    parts = ("gelu", "silu", "layer_norm", "apply_mask", "legroom.fused")
    return any(part in op.name for part in parts)


def _groups(problem: Problem) -> Iterator[list[int]]:
    """Cheap candidates that hang together: one is made from another, or both from the same."""
    cheap = [
        number
        for number, candidate in enumerate(problem.candidates)
        if not is_expensive(problem.graph.operations[candidate.producer])
    ]
    parent = {number: number for number in cheap}

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for number in cheap:
        rerun = problem.reruns[problem.candidates[number].producer]
        for other in (*rerun.needs, *rerun.makes):
            if other in parent:
                parent[root(number)] = root(other)
    groups: dict[int, list[int]] = {}
    for number in cheap:
        groups.setdefault(root(number), []).append(number)
    yield from groups.values()


def _minimum_cut(problem: Problem) -> list[int]:
    """Candidates to hold, by a minimum cut between what is given and what backward reads."""
    import networkx as nx  # type: ignore[import-untyped]  # torch depends on it

    network = nx.DiGraph()
    for number, candidate in enumerate(problem.candidates):
        op = problem.graph.operations[candidate.producer]
        inside, outside = ("in", number), ("out", number)
        network.add_edge(inside, outside, capacity=candidate.num_bytes)
        can_run_again = any(option.saving.runs_producer for option in candidate.options)
        if is_expensive(op) or not can_run_again:
            network.add_edge("given", inside)
        else:
            needs = problem.reruns[candidate.producer].needs
            for need in needs:
                network.add_edge(("out", need), inside)
            if not needs:
                continue  # made from weights and batches alone: free to drop
        if any(number in problem.needs[p][0] for p in candidate.late_uses):
            network.add_edge(outside, "read")
    if "given" not in network or "read" not in network:
        return []
    _, (reachable, _) = nx.minimum_cut(network, "given", "read")
    return [
        number
        for number in range(len(problem.candidates))
        if ("in", number) in reachable and ("out", number) not in reachable
    ]
