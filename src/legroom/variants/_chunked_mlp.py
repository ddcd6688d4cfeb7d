"""Two linear layers with an activation between them, found in a graph, computed in chunks.

In goes a graph; each block whose middle nobody else reads becomes one operation that never holds
it. See Note [Blocks], and Note [Chunks of rows] in `legroom.layers` for what runs instead.
"""

# Note [Blocks]
# 1. A block is found from its end: a layer, and before it functions of single elements, up to one
#    layer, or two that read the same, of which one is multiplied with the activation of the other.
#    What the functions compute together is known by their values, however they are written.
# 2. A layer is `F.linear`, or a product with a weight stored the other way round (Conv1D of
#    transformers). Shapes may change in between as long as rows stay rows.
# 3. Where one block ends with the layer that another begins with, the wider middle goes first.
# 4. A block stays as it is where somebody else reads its middle, where a dropout inside draws
#    numbers, where types differ (autocast), where its middle is narrower than what goes in, and
#    where there are not two chunks of rows.
# 5. What goes in must not be changed between the layers: it is read later than before.

from __future__ import annotations

import functools
import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import fx
from torch.nn import functional

from legroom.layers import chunked_mlp, pointwise_name, rows_at_a_time
from legroom.variants._nodes import (
    LINEAR,
    evaluate,
    is_arithmetic,
    linear_arguments,
    reshaping_name,
    value_of,
)
from legroom.variants._rewrite import AbstractRewrite
from legroom.ways import Exactness

_FEWEST_BYTES = 2**18
"""Of the middle: nobody misses less."""
_MOST_STEPS = 24
_ACTIVATIONS: frozenset[Any] = frozenset(
    {
        functional.gelu, functional.silu, functional.mish, functional.relu, functional.leaky_relu,
        functional.elu, functional.softplus, torch.relu, torch.clamp,
    }
)  # fmt: skip
_METHODS = frozenset({"relu", "clamp", "clamp_min"})
_PRODUCTS: frozenset[Any] = frozenset({operator.mul, torch.mul, "mul"})
_IN_PLACE: frozenset[Any] = frozenset(
    {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv}
)


@final
class ChunkedMLP(AbstractRewrite):
    """See Note [Blocks]."""

    name = "chunked-mlp"
    summary = "linear, activation, linear (with a gate too) as one operation in chunks of rows"
    exactness = Exactness.ROUNDING
    origin = "chunked feed-forward layers (Reformer, Liger)"
    costs = "the first of the layers once more in backward; only where no plan fits without"
    when = "For the wide layers of transformers, where nothing else makes the step fit."
    not_with = (
        "A dropout between the layers that draws numbers, a middle that somebody else reads "
        "or that is narrower than what goes in, autocast, fewer than 512 rows, and gradients "
        "of gradients."
    )
    costs_time = True

    @classmethod
    def apply(cls, graph: fx.GraphModule) -> list[str]:
        """Change every block that can be."""
        left: Counter[str] = Counter()
        taken: set[fx.Node] = set()
        found = (_Block.ending_at(node) for node in graph.graph.nodes)
        blocks = [block for block in found if block is not None]
        for block in sorted(blocks, key=lambda each: -each.up.made.nbytes):
            nodes = {*block.middle.nodes, block.down.node}
            if taken & nodes:
                continue
            if block.why_not:
                left[block.why_not] += 1
                continue
            block.exchange()
            taken |= nodes
        return [
            f"linear layers that are not run in chunks, because {why}: {num_blocks} pairs"
            for why, num_blocks in left.items()
        ]


@final
@dataclass(frozen=True)
class _Layer:
    """A linear layer.

    Attributes:
        is_turned: Whether its weight is stored as `(in, out)`.
    """

    node: fx.Node
    input: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    is_turned: bool

    @classmethod
    def at(cls, node: fx.Node) -> _Layer | None:
        if node.op != "call_function":
            return None
        if node.target in LINEAR:
            read, weight, bias = linear_arguments(node).values()
        elif node.target is torch.addmm and len(node.args) == 3 and not node.kwargs:
            bias, read, weight = node.args
        else:
            return None
        operands = (read, weight) if bias is None else (read, weight, bias)
        if not all(value_of(each) is not None for each in operands):
            return None
        found = cls(node, read, weight, bias, node.target is torch.addmm)
        return found if found._is_usual() else None

    def _is_usual(self) -> bool:
        """Whether everything is of one type, and of the usual shapes."""
        made, weight, bias = value_of(self.node), value_of(self.weight), value_of(self.bias)
        read = value_of(self.input)
        if made is None or weight is None or read is None:
            return False
        types = {each.dtype for each in (made, weight, read, bias) if each is not None}
        is_flat = weight.dim() == 2 and (bias is None or bias.dim() == 1)
        return is_flat and len(types) == 1 and made.is_floating_point() and read.dim() > 0

    @property
    def width(self) -> int:
        """Features that come out."""
        return int(self.made.shape[-1])

    @property
    def made(self) -> torch.Tensor:
        """Like what it makes."""
        return self.node.meta["example_value"]  # type: ignore[no-any-return]

    def plain_weight(self) -> fx.Node:
        """Its weight as `F.linear` takes it."""
        return self.node.graph.call_method("t", (self.weight,)) if self.is_turned else self.weight


@final
class _Middle:
    """What lies between a node and the layers that it is a function of.

    Attributes:
        layers: Those.
        nodes: Everything from them to the node.
        is_known: Whether all of it is functions of single elements.
        draws: Whether there is a dropout among it that draws numbers.
    """

    def __init__(self, top: fx.Node) -> None:
        self.layers: list[_Layer] = []
        self.nodes: set[fx.Node] = set()
        self.draws = False
        self.is_known = True
        waiting = [top]
        while waiting and self.is_known:
            node = waiting.pop()
            if node not in self.nodes:
                self.nodes.add(node)
                waiting += self._behind(node)

    def _behind(self, node: fx.Node) -> list[fx.Node]:
        layer = _Layer.at(node)
        if layer is not None:
            self.layers.append(layer)
            return []
        self.draws |= _draws(node)
        if _gives_back(node):
            return [node.all_input_nodes[0]]
        operands = node.all_input_nodes
        is_function = _is_function(node) and bool(operands)
        self.is_known = is_function and all(_are_alike(node, each) for each in operands)
        self.is_known &= len(self.nodes) <= _MOST_STEPS
        return operands if self.is_known else []


def _draws(node: fx.Node) -> bool:
    return node.target is functional.dropout and not _is_off(node)


def _is_off(dropout: fx.Node) -> bool:
    names = ("input", "p", "training")
    given: dict[str, Any] = {"p": 0.5, "training": True}
    given |= {**dict(zip(names, dropout.args, strict=False)), **dropout.kwargs}
    return bool(given["p"] == 0 or given["training"] is False)


def _gives_back(node: fx.Node) -> bool:
    """Whether it makes the same rows of the same numbers, a dropout left aside."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    before, after = value_of(node.args[0]), value_of(node)
    if before is None or after is None or before.dtype is not after.dtype:
        return False
    if node.target is functional.dropout:
        return True
    is_same = before.shape == after.shape and node.op == "call_method"
    if is_same and node.target in ("contiguous", "to", "type_as"):
        return before.device == after.device
    is_reshaped = bool(reshaping_name(node)) and before.dim() > 0 and after.dim() > 0
    return is_reshaped and int(before.shape[-1]) == int(after.shape[-1])


def _is_function(node: fx.Node) -> bool:
    is_activation = node.op == "call_function" and node.target in _ACTIVATIONS
    is_method = node.op == "call_method" and node.target in _METHODS
    return is_arithmetic(node) or is_activation or is_method


def _are_alike(node: fx.Node, other: fx.Node) -> bool:
    mine, theirs = value_of(node), value_of(other)
    if mine is None or theirs is None:
        return False
    return mine.shape == theirs.shape and mine.dtype is theirs.dtype


def _activation(top: fx.Node, layer: _Layer) -> str | None:
    """The name of what a node is of a layer's elements."""
    return pointwise_name(
        functools.partial(evaluate, top, layer.node, is_identity=_gives_back)  # a dropout is none
    )


@final
@dataclass(frozen=True)
class _Block:
    """A block; see Note [Blocks], rule 1.

    Attributes:
        gate: The layer that the activation is of, where there are two.
    """

    up: _Layer
    gate: _Layer | None
    down: _Layer
    middle: _Middle
    activation: str

    @classmethod
    def ending_at(cls, node: fx.Node) -> _Block | None:
        """The block whose last layer a node is; None where it is none."""
        down = _Layer.at(node)
        if down is None or not down.made.requires_grad:
            return None
        middle = _Middle(down.input)
        if not middle.is_known or not 1 <= len(middle.layers) <= 2:
            return None
        found = _plain(middle, down) if len(middle.layers) == 1 else _gated(middle, down)
        return found if found is not None and found._is_worth_it() else None

    def _is_worth_it(self) -> bool:
        """See Note [Blocks], rule 4."""
        hidden, read = self.up.made, value_of(self.up.input)
        assert read is not None, "bug in legroom: a layer that reads nothing"
        num_rows = hidden.numel() // max(1, hidden.shape[-1])
        return (
            hidden.nbytes >= _FEWEST_BYTES
            and hidden.shape[-1] >= read.shape[-1]
            and num_rows >= 2 * rows_at_a_time(hidden.device)
        )

    @property
    def why_not(self) -> str:
        """Why it stays as it is; nothing where it does not. See Note [Blocks], rules 4 and 5."""
        if self.middle.draws:
            return "a dropout between them draws numbers"
        own = {*self.middle.nodes, self.down.node}
        if any(user not in own for node in self.middle.nodes for user in node.users):
            return "what is between them is used elsewhere"
        return "what they read is changed between them" if self._input_changes() else ""

    def _input_changes(self) -> bool:
        """See Note [Blocks], rule 5."""
        order = {node: place for place, node in enumerate(self.down.node.graph.nodes)}
        first, last = order[self.up.node], order[self.down.node]
        if self.gate is not None:
            first = min(first, order[self.gate.node])
        return any(
            first < order[user] < last and _changes(user, self.up.input)
            for user in self.up.input.users
        )

    def exchange(self) -> None:
        """Put one operation in place of the block."""
        node, graph, gate = self.down.node, self.down.node.graph, self.gate
        shape = self.down.made.shape
        with graph.inserting_before(node):
            options: dict[str, Any] = {
                "up_bias": self.up.bias,
                "down_bias": self.down.bias,
                "gate": None if gate is None else gate.plain_weight(),
                "gate_bias": None if gate is None else gate.bias,
                "activation": self.activation,
            }
            weights = self.up.plain_weight(), self.down.plain_weight()
            made = graph.call_function(chunked_mlp, (self.up.input, *weights), options)
            made.meta = dict(node.meta)
            if self.up.made.shape[:-1] != shape[:-1]:
                made = graph.call_method("reshape", (made, *shape))
                made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        for each in reversed(list(graph.nodes)):
            if each in self.middle.nodes:
                graph.erase_node(each)


def _changes(node: fx.Node, value: fx.Node) -> bool:
    name = str(node.target)
    is_method = node.op == "call_method" and name.endswith("_") and not name.endswith("__")
    is_told = bool(node.kwargs.get("inplace"))
    return (is_method or is_told or node.target in _IN_PLACE) and node.args[0] is value


def _plain(middle: _Middle, down: _Layer) -> _Block | None:
    (up,) = middle.layers
    name = _activation(down.input, up)
    return None if name is None else _Block(up, None, down, middle, name)


def _gated(middle: _Middle, down: _Layer) -> _Block | None:
    product = down.input
    while _gives_back(product):
        product = product.all_input_nodes[0]
    operands = product.all_input_nodes
    if product.target not in _PRODUCTS or len(product.args) != 2 or len(operands) != 2:
        return None
    sides = [_Middle(each) for each in operands]
    if [len(side.layers) for side in sides] != [1, 1]:
        return None
    for place in (0, 1):
        gate, up = sides[place].layers[0], sides[1 - place].layers[0]
        is_bare = all(each is up.node or _gives_back(each) for each in sides[1 - place].nodes)
        if is_bare and gate.input is up.input and gate.width == up.width:
            name = _activation(operands[place], gate)
            if name is not None:
                return _Block(up, gate, down, middle, name)
    return None
