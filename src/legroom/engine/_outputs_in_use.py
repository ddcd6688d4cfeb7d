"""Finds out of which outputs of a call the training takes gradients, before its plan is followed.

In go kinds of call that return more than what their plan takes for the loss; they run as they are
for one step, and out comes which outputs received gradients. See Note [Outputs in use].
"""

# Note [Outputs in use]
# 1. A plan is made for gradients of certain outputs: the loss, where a call returns one. A loop may
#    take gradients of others: of logits with a loss of its own, of an auxiliary loss. When backward
#    asks for them under a plan, it is too late. So it must be known before.
# 2. Where a call returns more than its plan is made for, and memory has room for the call as it is,
#    its first step runs as it is. Its nodes are told by their sequence numbers. An edge from a node
#    outside of the call to one of its own says which outputs are in use.
# 3. If those are the ones that the plan was made for, it is followed from the next step on; else
#    the call is planned anew. What is in use besides of what is returned (a loss that a module
#    keeps as an attribute) cannot be planned: such calls stay as they are.
# 4. Where memory has no room, the plan is followed at once, and other gradients are an error.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from legroom.capture import BackwardCall, graph_of, next_sequence_number, nodes_behind
from legroom.engine._call_key import CallKey

KEPT = (
    "gradients are taken of what the model keeps in an attribute, and not only of what it returns"
)

Places = frozenset[int]
"""Which of the tensors that a call returns, in their order."""


@dataclass
class _Witnessed:
    """One call that ran as it is.

    Attributes:
        first, end: Sequence numbers of its nodes.
        nodes: Of the tensors that it returned, in order; None for those without a graph.
        planned: Those of them that a plan is made for.
        used: Nodes of the call that something outside of it hands gradients to.
    """

    first: int
    end: int
    nodes: list[Any]
    planned: Places
    used: set[Any] = field(default_factory=set)

    def has(self, node: Any) -> bool:
        """Whether the call made this node."""
        return bool(self.first <= node._sequence_nr() < self.end)

    def look(self, roots: Sequence[torch.Tensor]) -> None:
        """Note what a call into the engine hands gradients to."""
        self.used |= {node for root in roots if (node := graph_of(root)) and self.has(node)}
        for node in nodes_behind(roots):
            if not self.has(node):
                parents = (parent for parent, _ in node.next_functions if parent is not None)
                self.used |= {parent for parent in parents if self.has(parent)}


@final
class OutputsInUse:
    """What is known of the outputs of each kind of call; see Note [Outputs in use].

    Args:
        outputs_of: Lists the tensors that a call returned, in their order.
        planned_of: Lists those of them that a plan is made for.
    """

    def __init__(
        self,
        outputs_of: Callable[[Any], list[torch.Tensor]],
        planned_of: Callable[[Any], Iterator[torch.Tensor]],
    ) -> None:
        self._outputs_of, self._planned_of = outputs_of, planned_of
        self._since: dict[CallKey, int] = {}
        self._calls: dict[CallKey, list[_Witnessed]] = {}
        self._known: dict[CallKey, Places | None] = {}

    def places(self, key: CallKey) -> Places | None:
        """The outputs that are in use, where those are others than plans are made for."""
        return self._known.get(key)

    def holds(self, key: CallKey, num_steps: int) -> bool:
        """Whether calls of a kind still run as they are, after so many steps."""
        return key not in self._known and self._since.setdefault(key, num_steps) == num_steps

    def has_seen(self, key: CallKey) -> bool:
        """Whether a backward pass went through a call of the kind that was looked at."""
        return any(each.used for each in self._calls.get(key, ()))

    def is_open(self, key: CallKey) -> bool:
        """Whether a call of the kind was looked at, and what it showed is still to be read."""
        return key in self._calls

    def call(
        self,
        key: CallKey,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the function as it is, and remember what it made."""
        first = next_sequence_number()
        output = function(*args, **kwargs)
        outputs = self._outputs_of(output)
        planned = {id(each) for each in self._planned_of(output)}
        made = _Witnessed(
            first,
            next_sequence_number(),
            [graph_of(each) for each in outputs],
            frozenset(place for place, each in enumerate(outputs) if id(each) in planned),
        )
        self._calls.setdefault(key, []).append(made)
        return output

    @contextlib.contextmanager
    def watched(self, call: BackwardCall) -> Iterator[None]:
        """Look at a call into the engine."""
        for calls in self._calls.values():
            for each in calls:
                each.look(call.roots)
        yield

    def end(self, key: CallKey) -> bool:
        """The step has ended: know which outputs are in use; whether all of those were returned."""
        places: set[int] = set()
        planned: set[int] = set()
        has_others = False
        for each in self._calls.pop(key, []):
            planned |= each.planned
            has_others |= any(node not in each.nodes for node in each.used)
            places |= {place for place, node in enumerate(each.nodes) if node and node in each.used}
        self._known[key] = None if places <= planned else frozenset(places)
        return not has_others
