"""What can be told about the nodes of a joint graph."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx


def is_tangent(node: fx.Node) -> bool:
    """Whether a node is a gradient that backward is given."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def nodes_of_backward(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on a gradient given to backward, out of all in their order."""
    found: set[fx.Node] = set()
    for node in nodes:
        if is_tangent(node) or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found
