"""Gradients that take the place of what they are made from.

In goes a joint graph, in which it is noted; and later a graph that is to run, in which operations
then write into one of their operands. See Note [In place].
"""

# Note [In place]
# 1. On the way back a gradient is made from the one before it, which nobody reads any more: that of
#    an activation, of a softmax, of a sum of branches. Eager has both in memory at that moment. For
#    whatever is largest in a model, logits or the middle of an MLP, that is often the peak.
# 2. An operation may write into an operand that was made in backward, that it alone reads, through
#    views or not, and that has the shape, the strides and the type of the result. What is made in
#    backward is never made again, so no plan can want the operand back. What forward made, what
#    somebody else owns and what is handed out stays as it is.
# 3. The kernel is the same, with the same layout, and reads each element before it writes it, so
#    the bits are the same. A softmax's gradient sums up a row before it writes any of it: on a CPU,
#    over a last dimension without gaps.
# 4. In the piece's code the result is the same storage as the operand, which the operation updates.
#    In the graph it is still an operation of its own, so that variants and ways see what they know.

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from legroom.capture._fused import FUSED, is_alike, run_into
from legroom.capture._nodes import nodes_of_backward

aten = torch.ops.aten
_NOTE = "legroom_written_into"
_FEWEST_BYTES = 1 << 16
"""Below, nobody misses the memory."""
_OWNERS = ("aten", "legroom")
"""Namespaces of operations that are known to hand out memory of their own."""

Writer = Callable[..., Any]
"""Is called with an operation's arguments, and the operand to write into as `out`."""


def _gradient(overload: Any) -> Writer:
    def write(*args: Any, out: torch.Tensor, **kwargs: Any) -> Any:
        return overload(*args, **kwargs, grad_input=out)

    return write


def _method(overload: Any) -> Writer:
    """Of an operation that writes into its first operand."""

    def write(*args: Any, out: torch.Tensor, **kwargs: Any) -> Any:
        del out
        return overload(*args, **kwargs)

    return write


def _any_operand() -> dict[Any, Writer]:
    """Operations that may write into whichever operand has the result's layout."""
    found: dict[Any, Writer] = {
        packet.Tensor: packet.out for packet in (aten.add, aten.sub, aten.mul, aten.div)
    }
    found[aten.where.self] = aten.where.self_out
    for packet in (aten.threshold_backward, aten.tanh_backward, aten.sigmoid_backward,
                   aten.gelu_backward, aten.silu_backward, aten.leaky_relu_backward,
                   aten.hardtanh_backward, aten.hardsigmoid_backward, aten.elu_backward,
                   aten.softplus_backward):  # fmt: skip
        found[packet.default] = _gradient(packet.grad_input)
    return found


def _first_operand() -> dict[Any, Writer]:
    """Operations that may write into their first operand only."""
    found = {
        packet.Scalar: _method(written.Scalar)
        for packet, written in (
            (aten.add, aten.add_),
            (aten.sub, aten.sub_),
            (aten.mul, aten.mul_),
            (aten.div, aten.div_),
            (aten.masked_fill, aten.masked_fill_),
        )
    }
    found[aten.neg.default] = _method(aten.neg_.default)
    return found


_ROWS: dict[Any, Writer] = {
    aten._softmax_backward_data.default: _gradient(aten._softmax_backward_data.out),
    aten._log_softmax_backward_data.default: aten._log_softmax_backward_data.out,
}
"""See Note [In place], rule 3; arguments are the gradient, the result, and the dimension."""
_ANY, _FIRST = _any_operand(), _first_operand()


def note_in_place(joint: fx.GraphModule) -> None:
    """Note in a joint graph which operations may write into an operand; see Note [In place]."""
    nodes = list(joint.graph.nodes)
    storages = _storages(nodes, nodes_of_backward(nodes))
    for node in nodes:
        if node.op != "call_function" or not _is_whole(node):
            continue
        if not storages[_key(node)].is_made_by(node):
            continue
        places = (
            place
            for place, operand in _operands(node)
            if _may_write(node, operand, storages[_key(operand)])
        )
        place = next(places, None)
        if place is not None:
            node.meta[_NOTE] = place


def written_into(node: fx.Node) -> fx.Node | None:
    """The operand that an operation of a joint graph may write into; None: it makes a tensor."""
    place = node.meta.get(_NOTE)
    return None if place is None else dict(_operands(node))[place]


def write_in_place(graph: fx.Graph) -> None:
    """Let operations of a graph that is to run write into operands, as was noted of them."""
    for node in list(graph.nodes):
        place = node.meta.get(_NOTE)
        if place is None:
            continue
        with graph.inserting_before(node):
            if node.target is FUSED:
                made = graph.call_function(run_into, (*node.args, place))
            else:
                write = _ANY.get(node.target) or _FIRST.get(node.target) or _ROWS[node.target]
                kwargs = {**node.kwargs, "out": node.args[place]}
                made = graph.call_function(write, node.args, kwargs)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


# -- what may be written into ---------------------------------------------------------------------


@dataclass
class _Storage:
    """What a joint graph does with one storage.

    Attributes:
        maker: The node that stands for it first; None: it was given.
        readers: Operations that read it, as often as they do; views do not count.
        is_own: Whether backward makes it, in memory that nothing else refers to.
        is_handed_out: Whether it is among what the graph returns.
    """

    maker: fx.Node | None = None
    readers: list[fx.Node] = field(default_factory=list)
    is_own: bool = False
    is_handed_out: bool = False

    def is_made_by(self, node: fx.Node) -> bool:
        """Whether a node makes it, for others in the graph."""
        return self.maker is node and not self.is_handed_out


def _storages(nodes: list[fx.Node], late: set[fx.Node]) -> dict[int | None, _Storage]:
    """By key; under None is whatever is no tensor, which nobody asks about."""
    found: dict[int | None, _Storage] = defaultdict(_Storage)
    for node in nodes:
        key = _key(node)
        sources = [source for source in node.all_input_nodes if _key(source) == key]
        if not sources and found[key].maker is None:
            found[key].maker = node
            found[key].is_own = node in late and _is_fresh(node)
        elif not sources:
            found[key].is_own = False  # two outputs of an operation share it
        _note_readers(node, key, found)
    return found


def _note_readers(node: fx.Node, key: int | None, found: dict[int | None, _Storage]) -> None:
    def note(source: fx.Node) -> fx.Node:
        read = _key(source)
        if node.op == "output":
            found[read].is_handed_out = True
        elif read != key:
            found[read].readers.append(node)
        return source

    fx.node.map_arg((node.args, node.kwargs), note)


def _key(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return int(value.untyped_storage()._cdata)
    return None


def _is_fresh(node: fx.Node) -> bool:
    """Whether an operation has made it that hands out memory of its own."""
    whole: Any = node.args[0] if node.target is operator.getitem else node
    target = whole.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace in _OWNERS
        and not target._schema.is_mutable
    )


def _is_whole(node: fx.Node) -> bool:
    """Whether a tensor fills its storage, without gaps."""
    value: Any = node.meta.get("val")
    if _key(node) is None or not all(isinstance(size, int) for size in value.shape):
        return False
    num_bytes: int = value.numel() * value.dtype.itemsize
    whole_bytes: int = value.untyped_storage().nbytes()
    return num_bytes >= _FEWEST_BYTES and value.storage_offset() == 0 and whole_bytes == num_bytes


def _operands(node: fx.Node) -> Iterator[tuple[int, fx.Node]]:
    """Operands that a kernel may write into, and where they stand."""
    if node.target is FUSED:
        given: Any = node.args[0]
    elif node.target in _ANY:
        given = node.args
    elif node.target in _FIRST or (node.target in _ROWS and _is_over_rows(node)):
        given = node.args[:1]
    else:
        return
    for place, operand in enumerate(given):
        if isinstance(operand, fx.Node):
            yield place, operand


def _is_over_rows(node: fx.Node) -> bool:
    value, dim = node.meta["val"], node.args[2]
    is_last = dim in (-1, value.dim() - 1)
    return is_last and value.is_contiguous() and value.device.type == "cpu"


def _may_write(node: fx.Node, operand: fx.Node, storage: _Storage) -> bool:
    """See Note [In place], rule 2."""
    if not storage.is_own or storage.is_handed_out or storage.readers != [node]:
        return False
    before, after = operand.meta["val"], node.meta["val"]
    return (
        _is_whole(operand)
        and is_alike(before, after)
        and before.dtype == after.dtype
        and before.device == after.device
    )
