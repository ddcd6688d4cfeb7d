"""An activation that a model spells out, found in a graph by what it computes, as one operation."""

from __future__ import annotations

import functools
from typing import final

from torch import fx

from legroom.layers import known_activation
from legroom.variants._nodes import evaluate, is_arithmetic, value_of
from legroom.variants._rewrite import AbstractRewrite
from legroom.ways import Exactness

_FEWEST_STEPS = 2
_MOST_STEPS = 24
_MOST_SOURCES = 40


@final
class SpelledOut(AbstractRewrite):
    """A GELU written as products, sums and a tanh keeps four tensors; PyTorch's own keeps one."""

    name = "spelled-out"
    summary = "an activation that a model writes out (gelu_new) as PyTorch's own operation"
    exactness = Exactness.ROUNDING
    origin = "Tempo, torch.compile's fusions"
    costs = "nothing: one operation instead of about eight"
    when = (
        "For models that write their activation as a formula, as `gelu_new` of Hugging Face's"
        " GPT-2 does."
    )
    not_with = (
        "Functions other than GELU, SiLU and Mish, and functions of two tensors, such as gates."
    )

    @classmethod
    def apply(cls, graph: fx.GraphModule) -> list[str]:
        """Change every activation that is known by its values."""
        sources = _sources(graph.graph)
        for node in reversed(list(graph.graph.nodes)):
            if node.users and len(sources.get(node, ())) > 1:
                _exchange(node, sources[node])
        graph.graph.eliminate_dead_code(lambda node: not is_arithmetic(node))
        return []


def _sources(graph: fx.Graph) -> dict[fx.Node, dict[fx.Node, int]]:
    """By node: the nodes that it is a function of, each alone, with numbers; and in how many steps.

    The farthest come last.
    """
    found: dict[fx.Node, dict[fx.Node, int]] = {}
    for node in graph.nodes:
        own = {node: 0}
        if is_arithmetic(node) and _has_elements(node):
            operands = [each for each in node.all_input_nodes if _has_elements(each)]
            if operands and len(operands) == len(node.all_input_nodes):
                first, *others = (found[each] for each in operands)
                shared = [each for each in first if all(each in other for other in others)]
                for each in shared[:_MOST_SOURCES]:
                    own[each] = 1 + sum(found[operand][each] for operand in operands)
        found[node] = own
    return found


def _has_elements(node: fx.Node) -> bool:
    value = value_of(node)
    return value is not None and value.is_floating_point() and value.dim() > 0


def _exchange(node: fx.Node, sources: dict[fx.Node, int]) -> None:
    """Put PyTorch's own in place of a node, where it is one of something."""
    shape = node.meta["example_value"].shape
    for source, num_steps in sources.items():
        if not _FEWEST_STEPS <= num_steps <= _MOST_STEPS:
            continue
        if source.meta["example_value"].shape != shape:
            continue
        known = known_activation(functools.partial(evaluate, node, source))
        if known is None:
            continue
        function, options = known
        with node.graph.inserting_after(node):
            made = node.graph.call_function(function, (source,), dict(options))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        return
