"""Finds out which kinds of call have gradients of their gradients taken, before they are planned.

In come new kinds of call of a program that may do so; they run as they are for one step, and out
comes which of them must stay so. See Note [Probation].
"""

# Note [Probation]
# 1. What a plan drops cannot be differentiated twice, and when that is asked for it is too late:
#    a forward pass that is run again has another graph, in which gradients are added up in another
#    order. So it must be known before.
# 2. A program that does it says `create_graph=True` somewhere, or gives the call a leaf that wants
#    a gradient. Where the user's own code does, each new kind of call is on probation: it runs as
#    it is until a step has ended, its output carries a mark, and a call into the engine that
#    creates a graph tells whose marks are behind it.
# 3. Programs that do it otherwise (a library does it for them, to weights) are refused.

from __future__ import annotations

import contextlib
import functools
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import torch
from torch.utils import _pytree as pytree

from legroom.capture import BackwardCall, graph_of, is_user_code, nodes_behind
from legroom.engine._call_key import CallKey

_MARK = "legroom.probation"
_SAYS_SO = re.compile(r"create_graph\s*=\s*(?!False)|autograd\.functional\.(?:hessian|hvp|vhp)")
_LONGEST = 2**20

LOOKED_AT = "first calls, looked at for gradients of gradients before they are planned"
TWICE = "gradients of its gradients are taken (create_graph=True)"


@final
class Probation:
    """Kinds of call that are looked at for a step before they are planned; see Note [Probation].

    Args:
        leave: Called with a kind that must stay as it is, and why.
    """

    def __init__(self, leave: Callable[[CallKey, str], None]) -> None:
        self._leave = leave
        self._since: dict[CallKey, int] = {}

    def holds(self, key: CallKey, num_steps: int, arguments: object) -> bool:
        """Whether a kind of call is still to be looked at, after so many steps."""
        if not may_differentiate_twice() and not _has_leaf_that_wants_gradient(arguments):
            return False
        return self._since.setdefault(key, num_steps) == num_steps

    def call(
        self,
        key: CallKey,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the function as it is, and mark what it returns."""
        output = function(*args, **kwargs)
        myself = weakref.ref(self)

        def taken_twice() -> None:
            probation = myself()
            if probation is not None:
                probation._leave(key, TWICE)

        for leaf in pytree.tree_leaves(output):
            node = graph_of(leaf) if isinstance(leaf, torch.Tensor) else None
            if node is not None:
                node.metadata[_MARK] = taken_twice
        return output


@contextlib.contextmanager
def watched_for_marks(call: BackwardCall) -> Iterator[None]:
    """Tell those whose calls are behind a call into the engine that creates a graph."""
    if call.creates_graph:
        for node in nodes_behind(call.roots):
            told: Callable[[], None] | None = node.metadata.get(_MARK)
            if told is not None:
                told()
    yield


def _has_leaf_that_wants_gradient(arguments: object) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf
        for leaf in pytree.tree_leaves(arguments)
    )


def may_differentiate_twice() -> bool:
    """Whether the code of the program, as far as it is loaded, says so; looked at once."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main is not None and is_user_code(main) and _says_so_anywhere(main)


@functools.cache
def _says_so_anywhere(main: str) -> bool:
    files = {main, *(getattr(module, "__file__", None) for module in list(sys.modules.values()))}
    return any(_says_so(file) for file in files if file and is_user_code(file))


def _says_so(file: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        path = Path(file)
        if path.suffix == ".py" and path.stat().st_size < _LONGEST:
            return _SAYS_SO.search(path.read_text()) is not None
    return False
