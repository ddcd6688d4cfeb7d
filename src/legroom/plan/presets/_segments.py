"""Recipes that cut forward into segments and keep what crosses a cut: Chen's and its kin.

Everything made inside a segment is run again when backward comes to it, except what later
segments read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import final

from legroom.capture import Graph, OperationInfo
from legroom.plan._problem import Choice, Problem
from legroom.plan._search import Search
from legroom.plan.presets._preset import AbstractPreset

_RESIDUAL_ADD = ("aten.add.Tensor", "aten.add_.Tensor")


@final
class PerBlock(AbstractPreset):
    """What users apply by hand: `torch.utils.checkpoint` around each block."""

    name = "per-block"
    summary = "keep the inputs of each repeated block, run the block again"
    origin = "torch.utils.checkpoint, gradient_checkpointing_enable()"
    costs = "forward of every block once more"
    when = (
        "To compare with checkpointing by hand. A search reaches the same peak for less time "
        "on the workloads of README."
    )
    not_with = "Models without repeated blocks."

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """None where no module repeats."""
        blocks = search.problem.graph.blocks
        if blocks:
            yield _by_segment(search, {block: number for number, block in enumerate(blocks)})


@final
class Sqrt(AbstractPreset):
    """Segments of √N blocks; where no module repeats, √N segments of operations."""

    name = "sqrt"
    summary = "keep what crosses √N cuts, run each segment again"
    origin = "Chen et al. 2016"
    costs = "almost all of forward once more"
    when = "For deep chains, where the inputs of all blocks together are too much."
    not_with = "Nothing."

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """√N first, then other numbers of segments."""
        blocks = search.problem.graph.blocks
        if len(blocks) >= 4:
            root = math.isqrt(len(blocks))
            for size in dict.fromkeys((root, 2, max(2, len(blocks) // 2))):
                yield _by_segment(search, {b: number // size for number, b in enumerate(blocks)})
            return
        positions = _forward_positions(search.problem)
        for number in dict.fromkeys((math.isqrt(len(positions)), 4, 8, 16)):
            if 2 <= number <= len(positions):
                size = math.ceil(len(positions) / number)
                yield _by_cuts(search, positions[size - 1 :: size])


@final
class ResidualBlocks(AbstractPreset):
    """Reverse checkpointing at residual blocks: keep the sums, run the branches again."""

    name = "residual-blocks"
    summary = "keep the sums of residual connections, run the branches again"
    origin = "Knowles 2018"
    costs = "the branches of residual connections once more"
    when = "For residual networks and transformers whose blocks are not modules of their own."
    not_with = (
        "Models in which nothing of the same size is added up, or only together with what is fused "
        "with it, as the sum behind a dropout is."
    )

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """None where nothing is added up."""
        problem = search.problem
        sums = [
            number
            for number, candidate in enumerate(problem.candidates)
            if _is_residual_sum(problem.graph, problem.graph.operations[candidate.producer])
        ]
        if sums:
            yield search.holding(sums)


@final
class TimeSteps(AbstractPreset):
    """Back-propagation through time with states kept at some steps only."""

    name = "bptt"
    summary = "keep an RNN's state every few time steps, run the steps between again"
    origin = "Gruslys et al. 2016 (one level of it)"
    costs = "the time steps between once more"
    when = "For recurrent networks whose time steps are written out in Python."
    not_with = (
        "`nn.LSTM`, which is one operation for each layer and direction, and networks of "
        "fewer than 8 time steps."
    )

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """None unless one line of code runs many times: an RNN whose time steps are visible."""
        positions = _time_steps(search.problem)
        if len(positions) < 8:
            return
        for size in dict.fromkeys((math.isqrt(len(positions)), 4, 8)):
            yield _by_cuts(search, positions[size - 1 :: size])


@final
class Separators(AbstractPreset):
    """Cuts where little crosses, for graphs that are not chains (U-Nets, many branches)."""

    name = "separators"
    summary = "keep what crosses the narrowest cuts through forward, run the parts between again"
    origin = "Kumar et al. 2019 (tree decompositions), as cuts of the order of operations"
    costs = "the parts between the cuts once more"
    when = (
        "For networks with skip connections and branches (U-Nets), where blocks are no good "
        "places to cut."
    )
    not_with = "Nothing."

    @classmethod
    def choices(cls, search: Search) -> Iterator[Choice]:
        """For several numbers of cuts, the narrowest ones that are well spread."""
        positions = _forward_positions(search.problem)
        crossing = _bytes_across(search.problem)
        for number in (3, 5, 8, 12, 20, 32):
            if len(positions) < 2 * number:
                return
            cuts = []
            for part in range(number):
                first = part * len(positions) // number
                end = (part + 1) * len(positions) // number
                cuts.append(min(positions[first:end], key=lambda p: (crossing[p], p)))
            yield _by_cuts(search, cuts)


def _by_segment(search: Search, segment_of_block: dict[str, int]) -> Choice:
    """Hold what is made outside all segments, and what another segment reads."""
    problem = search.problem
    graph = problem.graph
    homes = [_home(op, segment_of_block) for op in graph.operations]
    read_elsewhere: set[int] = set()
    for op in graph.operations:
        if op.is_forward:
            for tensor in op.reads:
                producer = graph.tensors[tensor].producer
                if producer >= 0 and homes[producer] != homes[op.index]:
                    read_elsewhere.add(tensor)
    held = []
    for number, candidate in enumerate(problem.candidates):
        if homes[candidate.producer] is None:
            if candidate.late_uses or candidate.tensor in read_elsewhere:
                held.append(number)
        elif candidate.tensor in read_elsewhere:
            held.append(number)
    return search.holding(held)


def _home(op: OperationInfo, segment_of_block: dict[str, int]) -> int | None:
    path = op.module
    while path:
        if path in segment_of_block:
            return segment_of_block[path]
        path = path.rpartition(".")[0]
    return None


def _by_cuts(search: Search, cuts: Sequence[int]) -> Choice:
    """Hold what is made before and read after one of these positions of forward."""
    problem = search.problem
    held = [
        number
        for number, candidate in enumerate(problem.candidates)
        if any(candidate.producer <= cut < candidate.last_forward_use for cut in cuts)
    ]
    return search.holding(held)


def _forward_positions(problem: Problem) -> list[int]:
    return [op.index for op in problem.graph.operations if op.is_forward and op.piece >= 0]


def _bytes_across(problem: Problem) -> list[int]:
    """For each position, bytes of candidates made up to it that forward reads after it."""
    changes = [0] * (problem.num_positions + 1)
    for candidate in problem.candidates:
        changes[candidate.producer] += candidate.num_bytes
        changes[candidate.last_forward_use] -= candidate.num_bytes
    total, across = 0, []
    for change in changes:
        total += change
        across.append(total)
    return across


def _is_residual_sum(graph: Graph, op: OperationInfo) -> bool:
    if op.name not in _RESIDUAL_ADD or len(op.reads) != 2 or not op.writes:
        return False
    size = graph.tensors[op.writes[0]].num_bytes
    inputs = [graph.tensors[tensor] for tensor in op.reads]
    return all(each.num_bytes == size and each.producer >= 0 for each in inputs)


def _time_steps(problem: Problem) -> list[int]:
    """Positions of the operation that runs most often from one line and module: once per step."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for op in problem.graph.operations:
        if op.is_forward and op.piece >= 0 and re.search(r"tanh|sigmoid", op.name):
            found.setdefault((op.line, op.module, op.name), []).append(op.index)
    return max(found.values(), key=len, default=[])
