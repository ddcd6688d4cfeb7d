"""Gradients at the edge of planned pieces: delivered early, never lost, never differentiated twice.

In come the calls into the autograd engine, and each gradient of a leaf as soon as a backward graph
has made it; out goes the gradient into `.grad`, where that is what the engine would do with it. See
Note [Delivery].
"""

# Note [Delivery]
# 1. Autograd hands all gradients of a piece on together, when its backward has ended: a second
#    micro-batch, or an optimizer that updates during backward, would hold a whole extra set. So a
#    gradient is added to `.grad` where it is made, exactly as `AccumulateGrad` adds it.
# 2. Only where nothing else can happen to it: in `backward()` without `inputs=` and
#    `create_graph=`, for a leaf to which a single edge of the graph leads (several contributions
#    are added up before they are added to `.grad`), without hooks that look at the gradient, and
#    not in a distributed process, whose wrappers hook into `AccumulateGrad` itself.
# 3. Where `.grad` is empty and nobody waits for it, the gradient is handed on as usual: it becomes
#    `.grad` itself, and there is nothing to save.
# 4. Hooks that wait for a gradient (`register_post_accumulate_grad_hook`) are called where it is
#    delivered. `AccumulateGrad` would call them again, with nothing: until this call into the
#    engine ends, or another begins, they are put aside.
# 5. Outputs that were planned to receive no gradients carry a node that refuses them.

from __future__ import annotations

import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from legroom.capture import BackwardCall, backward_habit, nodes_behind, observe_backward
from legroom.errors import DoubleBackwardError, UnplannedGradientError

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_PIECE = "CompiledFunctionBackward"
_UNDER_AUTOCAST = (
    "backward() is called under autocast, which PyTorch advises against: this step's gradients are "
    "rounded as outside of it, the next call is planned for inside"
)
_log = logging.getLogger("legroom")


class BackwardGuard:
    """Looks at every call into the engine before it runs, for all fitted calls of a process.

    Attributes:
        accepting: Leaves whose gradients may be delivered in the call that is running, by identity.
        num_backwards: Calls into the engine that went through planned pieces.
        num_failed: Calls into the engine that ended with an exception.
        is_planning: Whether some target is being planned: calls of the others are part of that.
        has_pieces: Whether a planned piece has run in this process.
    """

    def __init__(self) -> None:
        self.accepting: frozenset[int] = frozenset()
        self.num_backwards = self.num_failed = 0
        self.is_planning = self.has_pieces = False
        self._num_users = 0
        self._put_aside: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._open = contextlib.ExitStack()

    @property
    def is_alone(self) -> bool:
        """Whether one target at most is fitted in this process."""
        return self._num_users <= 1

    def acquire(self) -> None:
        """Look from now on, until `release` was called as often."""
        self._num_users += 1
        if self._num_users == 1:
            self._open.enter_context(observe_backward(self._around))

    def release(self) -> None:
        """Look no longer, if nobody else wants it."""
        self._num_users -= 1
        if self._num_users == 0:
            self._open.close()

    @contextlib.contextmanager
    def _around(self, call: BackwardCall) -> Iterator[None]:
        before = self.accepting
        self.accepting = self._look(call)
        self._put_back()
        try:
            yield
        except BaseException:
            self.num_failed += 1
            raise
        finally:
            self.accepting = before
            self._put_back()

    def call_hooks(self, leaf: torch.Tensor) -> None:
        """Call the hooks that wait for the leaf's gradient; see Note [Delivery], rule 4."""
        waiting: dict[Any, Any] | None = leaf._post_accumulate_grad_hooks
        if not waiting:
            return
        for hook in tuple(waiting.values()):
            hook(leaf)
        self._put_aside.append((waiting, dict(waiting)))
        waiting.clear()

    def _put_back(self) -> None:
        while self._put_aside:
            waiting, hooks = self._put_aside.pop()
            added = dict(waiting)
            waiting.clear()
            waiting.update(hooks | added)

    def _look(self, call: BackwardCall) -> frozenset[int]:
        """Refuse what cannot be right; say for which leaves gradients may be delivered."""
        if not self.has_pieces:
            return frozenset()
        edges: Counter[Any] = Counter()
        has_pieces = False
        for node in nodes_behind(call.roots):
            name = node.name()
            if name == _PIECE:
                has_pieces = True
            elif name == _ACCUMULATE:
                continue
            edges.update(parent for parent, _ in node.next_functions if parent is not None)
        if not has_pieces:
            return frozenset()
        if call.creates_graph:
            raise DoubleBackwardError
        self.num_backwards += 1
        if backward_habit.note_backward():
            _log.warning(_UNDER_AUTOCAST)
        if not call.accumulates or call.is_restricted or is_distributed():
            return frozenset()
        return frozenset(
            id(node.variable)
            for node, count in edges.items()
            if count == 1 and node.name() == _ACCUMULATE and not node.variable._backward_hooks
        )


guard = BackwardGuard()


class Delivery:
    """Delivers the gradients of one piece; see Note [Delivery]."""

    def __init__(self) -> None:
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self._given_up: set[int] = set()

    def note_inputs(self, inputs: Iterable[Any]) -> None:
        """Remember which leaves the piece is called with; one that changes is left to autograd."""
        for place, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor) or not value.requires_grad or not value.is_leaf:
                continue
            known = self._leaves.get(place)
            if known is None:
                self._leaves[place] = weakref.ref(value)
            elif known() is not value:
                self._given_up.add(place)

    def deliver(self, place: int, gradient: Any) -> Any:
        """Add a gradient to its leaf's if that is all that would happen to it; None if so."""
        known = self._leaves.get(place)
        leaf = known() if known is not None and place not in self._given_up else None
        if leaf is None or id(leaf) not in guard.accepting:
            return gradient
        if leaf.grad is None:
            if not leaf._post_accumulate_grad_hooks or not _has_layout_of(gradient, leaf):
                return gradient
            leaf.grad = gradient
        elif leaf.grad.layout is not torch.strided or leaf.grad.requires_grad:
            return gradient
        else:
            leaf.grad.add_(gradient)
        guard.call_hooks(leaf)
        return None


def _has_layout_of(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    return gradient.stride() == leaf.stride() and gradient.dtype == leaf.dtype


def is_distributed() -> bool:
    """Whether this process trains together with others."""
    distributed: Any = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


class _Refuse(torch.autograd.Function):
    """Passes a tensor on as one that can be differentiated, and refuses its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnplannedGradientError


def refusing(outputs: tuple[Any, ...], places: frozenset[int]) -> tuple[Any, ...]:
    """The outputs, of which some refuse gradients; see Note [Delivery], rule 5."""
    if not places or not torch.is_grad_enabled():
        return outputs
    anchor = torch.zeros((), requires_grad=True)
    apply: Any = _Refuse.apply
    return tuple(
        apply(value, anchor) if place in places and isinstance(value, torch.Tensor) else value
        for place, value in enumerate(outputs)
    )
