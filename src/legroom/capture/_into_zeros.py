"""Gradients of selections: one operation that writes into zeros, where a joint graph has two.

In goes a joint graph, which is changed. See Note [Into zeros].
"""

# Note [Into zeros]
# 1. The gradient of a maximum, a lookup or a gather is zero but for what was selected. Eager makes
#    zeros and writes into them. While it is traced it writes into a copy of them: one tensor more.
# 2. So a write that alone reads its zeros becomes one operation with them, in place inside, with
#    the same kernel and the same bits.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from legroom.capture._operations import FUNCTIONAL, LIBRARY

aten = torch.ops.aten

_ZEROS = frozenset({aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default})


def _scatter(size: Sequence[int], dim: int, index: Tensor, src: Tensor) -> Tensor:
    return src.new_zeros(size).scatter_(dim, index, src)


def _scatter_add(size: Sequence[int], dim: int, index: Tensor, src: Tensor) -> Tensor:
    return src.new_zeros(size).scatter_add_(dim, index, src)


def _index_put(
    size: Sequence[int],
    indices: list[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    # The method takes no None at the front, as `x[:, rows]` has it.
    made: Tensor = aten.index_put_.default(values.new_zeros(size), indices, values, accumulate)
    return made


def _define(name: str, arguments: str, function: Callable[..., Tensor]) -> Any:
    LIBRARY.define(f"{name}(int[] size, {arguments}) -> Tensor")
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    return getattr(torch.ops.legroom, name).default


_SCATTER = _define("scatter_into_zeros", "int dim, Tensor index, Tensor src", _scatter)
_SCATTER_ADD = _define("scatter_add_into_zeros", "int dim, Tensor index, Tensor src", _scatter_add)
_INDEX_PUT = _define(
    "index_put_into_zeros", "Tensor?[] indices, Tensor values, bool accumulate=False", _index_put
)
_WRITES: dict[Any, tuple[Any, int]] = {
    aten.scatter.src: (_SCATTER, 3),
    aten.scatter_add.default: (_SCATTER_ADD, 3),
    aten.index_put.default: (_INDEX_PUT, 2),
}
"""By operation, that of ours with the zeros inside, and where what is written stands."""
WRITES_INTO_ZEROS = frozenset(_WRITES)
"""What eager does in place in a backward that is not traced."""

FUNCTIONAL[_SCATTER] = lambda size, dim, index, src: src.new_zeros(size).scatter(dim, index, src)
FUNCTIONAL[_SCATTER_ADD] = lambda size, dim, index, src: src.new_zeros(size).scatter_add(
    dim, index, src
)
FUNCTIONAL[_INDEX_PUT] = lambda size, indices, values, accumulate=False: aten.index_put.default(
    values.new_zeros(size), indices, values, accumulate
)


def write_into_zeros(joint: fx.GraphModule) -> None:
    """Make one operation of zeros and the write that alone reads them; see Note [Into zeros]."""
    graph = joint.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _WRITES or node.kwargs:
            continue
        target, place = _WRITES[node.target]
        zeros, written = node.args[0], node.args[place]
        if not _is_replaceable(zeros, written):
            continue
        with graph.inserting_before(node):
            made = graph.call_function(target, (list(zeros.meta["val"].shape), *node.args[1:]))
        made.meta.update(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        graph.erase_node(zeros)


def _is_replaceable(zeros: Any, written: Any) -> bool:
    if not (isinstance(zeros, fx.Node) and zeros.target in _ZEROS and len(zeros.users) == 1):
        return False
    before, value = zeros.meta.get("val"), written.meta.get("val")
    return (
        isinstance(before, Tensor)
        and isinstance(value, Tensor)
        and before.dtype == value.dtype
        and before.device == value.device
        and before.is_contiguous()
        and all(isinstance(size, int) for size in before.shape)
    )
