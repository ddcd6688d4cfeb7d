"""An activation that a model spells out, found in a graph by what it computes, as one operation."""

from __future__ import annotations

import functools
import operator
from typing import Any, final

import torch
from torch import fx
from torch.nn import functional

from legroom.layers import known_activation
from legroom.variants._rewrite import AbstractRewrite
from legroom.ways import Exactness

_FEWEST_STEPS = 2
_MOST_STEPS = 24
_MOST_SOURCES = 40

_FUNCTIONS: frozenset[Any] = frozenset(
    {
        operator.mul, operator.add, operator.sub, operator.truediv, operator.neg, operator.pow,
        torch.mul, torch.add, torch.sub, torch.div, torch.neg, torch.pow, torch.square, torch.exp,
        torch.erf, torch.tanh, torch.sigmoid, torch.log1p, torch.rsub,
        functional.softplus, functional.sigmoid, functional.tanh,
    }
)  # fmt: skip
"""Functions of elements that activations are written with."""
_METHODS = frozenset(
    {"mul", "add", "sub", "div", "neg", "pow", "square", "exp", "erf", "tanh", "sigmoid", "log1p"}
)


@final
class SpelledOut(AbstractRewrite):
    """A GELU written as products, sums and a tanh keeps four tensors; PyTorch's own keeps one."""

    name = "spelled-out"
    summary = "an activation that a model writes out (gelu_new) as PyTorch's own operation"
    exactness = Exactness.ROUNDING
    origin = "Tempo, torch.compile's fusions"
    costs = "nothing: one operation instead of about eight"

    @classmethod
    def apply(cls, graph: fx.GraphModule) -> list[str]:
        """Change every activation that is known by its values."""
        sources = _sources(graph.graph)
        for node in reversed(list(graph.graph.nodes)):
            if node.users and len(sources.get(node, ())) > 1:
                _exchange(node, sources[node])
        graph.graph.eliminate_dead_code(lambda node: not _is_pure(node))
        return []


def _is_pure(node: fx.Node) -> bool:
    is_function = node.op == "call_function" and node.target in _FUNCTIONS
    return is_function or (node.op == "call_method" and node.target in _METHODS)


def _sources(graph: fx.Graph) -> dict[fx.Node, dict[fx.Node, int]]:
    """By node: the nodes that it is a function of, each alone, with numbers; and in how many steps.

    The farthest come last.
    """
    found: dict[fx.Node, dict[fx.Node, int]] = {}
    for node in graph.nodes:
        own = {node: 0}
        if _is_pure(node) and _has_elements(node):
            operands = [each for each in node.all_input_nodes if _has_elements(each)]
            if operands and len(operands) == len(node.all_input_nodes):
                first, *others = (found[each] for each in operands)
                shared = [each for each in first if all(each in other for other in others)]
                for each in shared[:_MOST_SOURCES]:
                    own[each] = 1 + sum(found[operand][each] for operand in operands)
        found[node] = own
    return found


def _has_elements(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0


def _exchange(node: fx.Node, sources: dict[fx.Node, int]) -> None:
    """Put PyTorch's own in place of a node, where it is one of something."""
    shape = node.meta["example_value"].shape
    for source, num_steps in sources.items():
        if not _FEWEST_STEPS <= num_steps <= _MOST_STEPS:
            continue
        if source.meta["example_value"].shape != shape:
            continue
        known = known_activation(functools.partial(_evaluate, node, source))
        if known is None:
            continue
        function, options = known
        with node.graph.inserting_after(node):
            made = node.graph.call_function(function, (source,), dict(options))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        return


def _evaluate(node: fx.Node, source: fx.Node, values: torch.Tensor) -> Any:
    """What a node is where its source has these values."""
    known: dict[fx.Node, Any] = {source: values}

    def value_of(each: fx.Node) -> Any:
        if each not in known:
            args = fx.node.map_arg(each.args, value_of)
            kwargs = fx.node.map_arg(each.kwargs, value_of)
            target: Any = each.target
            call = target if each.op == "call_function" else getattr(torch.Tensor, target)
            known[each] = call(*args, **kwargs)
        return known[each]

    return value_of(node)
