"""Finds operations on the same elements in a joint graph and makes one of each group.

In goes the joint graph of a piece; it is changed in place: what only such operations read is gone,
worked out anew by each reader, in forward and in backward. See Note [Fusing].
"""

# Note [Fusing]
# 1. A tensor that something else reads (a matrix product, a sum, a caller) must be there: it is the
#    result of a fused operation. One that only operations on its elements read need not be, if
#    a. it can be had from no more bytes than its own: then whoever reads it, in backward too, reads
#       those instead. Nothing is kept longer that is larger. Or
#    b. it has a part in one result only, of the same pass, with nothing but such operations in
#       between: then its operands live no longer than they did.
# 2. What takes longer to run again than to read (exp, tanh) is there if it has several readers, so
#    that the plan can choose.
# 3. Each fused operation returns one tensor, so that a plan which makes it again makes nothing
#    else. Two of them may work out the same thing twice: in the cache that costs little.

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from legroom.capture._fused import FUSED, FUSIBLE, is_alike, runs_of
from legroom.capture._nodes import nodes_of_backward
from legroom.capture._program import Place, Step, write_program

_NUMBERS = (bool, int, float)
_WORDS = (*_NUMBERS, torch.dtype, torch.device, torch.layout)
_FEWEST_ELEMENTS = 1 << 12
"""Below, calling the operations one by one takes no longer, and nobody misses the memory."""
_MOST_STEPS = 40
_MOST_GIVEN = 16
_ABOUT = 1.05
"""A bias or a number beside the tensor is no reason to keep another."""


def fuse(joint: fx.GraphModule) -> None:
    """Change a joint graph so that operations on the same elements are one; see Note [Fusing]."""
    _Fuser(joint.graph).run()


@dataclass(slots=True)
class _Group:
    """What it takes to work out one tensor, in the graph's order.

    Attributes:
        members: The operations, that of the tensor last.
        sources: What they read that is there.
    """

    members: dict[fx.Node, None] = field(default_factory=dict)
    sources: dict[fx.Node, None] = field(default_factory=dict)


class _Fuser:
    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._nodes = list(graph.nodes)
        self._eligible = dict.fromkeys(node for node in self._nodes if _is_eligible(node))
        self._late = nodes_of_backward(self._nodes)
        self._num_others: dict[fx.Node, int] = {}
        self._absorbed: set[fx.Node] = set()
        self._groups: dict[fx.Node, _Group] = {}
        self._made: dict[fx.Node, fx.Node] = {}

    def run(self) -> None:
        self._see_through_detach()
        self._note_positions()
        self._absorb_into_any()
        self._absorb_into_one()
        for node in self._eligible:
            self._groups[node] = self._group_of(node)
        for node in self._eligible:
            if node not in self._absorbed:
                self._make(node)
        for node, made in self._made.items():
            node.replace_all_uses_with(made)
        for node in reversed(self._eligible):
            if not node.users:
                self._graph.erase_node(node)

    def _see_through_detach(self) -> None:
        """What is detached has the same elements."""
        for node in self._nodes:
            if node.target is torch.ops.aten.detach.default:
                source = node.args[0]
                while source.target is torch.ops.aten.detach.default:
                    source = source.args[0]
                node.replace_all_uses_with(source, delete_user_cb=self._eligible.__contains__)

    def _note_positions(self) -> None:
        """How many other operations come before each node."""
        num_others = 0
        for node in self._nodes:
            if node.op == "call_function" and node not in self._eligible and not _is_view(node):
                num_others += 1
            self._num_others[node] = num_others

    def _absorb_into_any(self) -> None:
        """See Note [Fusing], rule 1a."""
        sources: dict[fx.Node, set[fx.Node]] = {}
        for node in self._eligible:
            found = sources[node] = set()
            for each in node.all_input_nodes:
                found |= sources[each] if each in self._absorbed else {each}
            if FUSIBLE[node.target].is_costly or not self._only_such_read(node):
                continue
            if sum(map(_num_bytes, found)) <= _num_bytes(node) * _ABOUT:
                self._absorbed.add(node)

    def _absorb_into_one(self) -> None:
        """See Note [Fusing], rule 1b."""
        ends: dict[fx.Node, set[fx.Node]] = {}  # in which results a node has a part
        for node in reversed(self._eligible):
            if not self._only_such_read(node):
                ends[node] = {node}
                continue
            ends[node] = set().union(*(ends[reader] for reader in node.users))
            if node in self._absorbed:
                continue
            if len(ends[node]) == 1 and self._is_right_before(node, *ends[node]):
                self._absorbed.add(node)
            else:
                ends[node] = {node}

    def _only_such_read(self, node: fx.Node) -> bool:
        return all(each in self._eligible and _is_like(each, node) for each in node.users)

    def _is_right_before(self, node: fx.Node, end: fx.Node) -> bool:
        is_same_pass = (node in self._late) == (end in self._late)
        return is_same_pass and self._num_others[node] == self._num_others[end]

    def _group_of(self, node: fx.Node) -> _Group:
        group = _Group()
        for source in node.all_input_nodes:
            if source in self._absorbed:
                group.members.update(self._groups[source].members)
                group.sources.update(self._groups[source].sources)
            else:
                group.sources[source] = None
        if not _can_be_one(group, node):
            self._absorbed.difference_update(node.all_input_nodes)
            group = _Group(sources=dict.fromkeys(node.all_input_nodes))
        group.members[node] = None
        return group

    def _make(self, node: fx.Node) -> None:
        group = self._groups[node]
        if len(group.members) == 1 and not FUSIBLE[node.target].is_several:
            return
        # The first one given has the shape of the result.
        given = sorted(group.sources, key=lambda each: not _is_like(each, node))
        places = {each: Place(number) for number, each in enumerate(given)}
        steps: list[Step] = []
        for member in group.members:
            args = tuple(places[arg] if isinstance(arg, fx.Node) else arg for arg in member.args)
            dtype = member.meta["val"].dtype
            places[member] = Place(len(given) + len(steps))
            steps.append(Step(member.target, args, _said(member.kwargs), dtype))
        with self._graph.inserting_before(node):
            made = self._graph.create_node(
                "call_function",
                FUSED,
                ([self._made.get(each, each) for each in given], write_program(steps)),
                name=f"{node.name}_fused",
            )
        made.meta = dict(node.meta)
        self._made[node] = made


def _is_eligible(node: fx.Node) -> bool:
    """Whether a node is an operation on elements that can be fused; see Note [Fused]."""
    if node.op != "call_function" or node.target not in FUSIBLE or not _is_tensor_on_cpu(node):
        return False
    if not node.meta["val"].dim() or node.meta["val"].numel() < _FEWEST_ELEMENTS:
        return False
    if not all(value is None or isinstance(value, _WORDS) for value in node.kwargs.values()):
        return False
    if not all(
        _is_tensor_on_cpu(arg) if isinstance(arg, fx.Node) else isinstance(arg, _NUMBERS)
        for arg in node.args
    ):
        return False
    return _is_dense(node) and _can_broadcast(node.all_input_nodes, node)


def _can_be_one(group: _Group, node: fx.Node) -> bool:
    return (
        len(group.members) < _MOST_STEPS
        and len(group.sources) <= _MOST_GIVEN
        and _can_broadcast(group.sources, node)
    )


def _can_broadcast(sources: Iterable[fx.Node], node: fx.Node) -> bool:
    """See Note [Fused], rule 1."""
    value = node.meta["val"]
    others = [
        each.meta["val"].shape
        for each in sources
        if each.meta["val"].dim() and not _is_like(each, node)
    ]
    if value.shape in others:
        return False  # it lies otherwise in memory
    return not others or (value.is_contiguous() and runs_of(value.shape, others) is not None)


def _said(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Without where a result is to be: where the operands are."""
    return {
        key: value
        for key, value in kwargs.items()
        if value is not None and not isinstance(value, torch.device | torch.layout)
    }


def _is_tensor_on_cpu(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and all(isinstance(size, int) for size in value.shape)
    )


def _is_like(node: fx.Node, other: fx.Node) -> bool:
    return is_alike(node.meta["val"], other.meta["val"])


def _is_dense(node: fx.Node) -> bool:
    """Whether a tensor's elements lie one after the other in memory, in whatever order."""
    value = node.meta["val"]
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _is_view(node: fx.Node) -> bool:
    return getattr(node.target, "is_view", False) or node.target is operator.getitem


def _num_bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel() * value.dtype.itemsize)
