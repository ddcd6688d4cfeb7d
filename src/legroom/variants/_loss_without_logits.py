"""A last layer and its cross entropy, found in a graph, as one operation without the logits."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import fx
from torch.nn import functional

from legroom.layers import linear_cross_entropy
from legroom.variants._nodes import LINEAR, linear_arguments, reshaping_name, value_of
from legroom.variants._rewrite import AbstractRewrite
from legroom.ways import Exactness

_FEWEST_BYTES = 2**20
"""Of logits: nobody misses less."""
_WITHOUT_GRADIENT = frozenset({"detach", "argmax"})
_AS_IT_IS = frozenset({"contiguous", "float", "clone"})
_LOG_SOFTMAX = (functional.log_softmax, torch.log_softmax)


@final
class LossWithoutLogits(AbstractRewrite):
    """See Note [Tiles] in `legroom.layers` for what runs instead."""

    name = "loss-without-logits"
    summary = "a last layer and its cross entropy as one operation that never holds all logits"
    exactness = Exactness.ROUNDING
    origin = "chunked losses (Liger, cut cross entropy)"
    costs = "the last layer's forward once more, in tiles that fit the cache"
    when = (
        "For language models and others with many classes. Fit a function that returns the "
        "loss alone, and the logits are never there."
    )
    not_with = (
        "Targets that are probabilities, logits below 1 MiB, and logits that anything else "
        "than the loss computes with. A model that returns its logits keeps them once."
    )

    @classmethod
    def apply(cls, graph: fx.GraphModule) -> list[str]:
        """Change every cross entropy whose logits come from a linear layer."""
        notes: list[str] = []
        for node in list(graph.graph.nodes):
            loss = _Loss.at(node)
            if loss is not None and loss.logits_bytes >= _FEWEST_BYTES:
                notes += loss.rewrite()
        return notes


@final
class _Loss:
    """A cross entropy and what leads from a linear layer to it.

    Attributes:
        node: The cross entropy.
        linear: The layer that makes the logits.
        path: What is done to the logits in between, in order.
        options: Arguments of ours, the tensors apart.
    """

    def __init__(
        self, node: fx.Node, linear: fx.Node, path: list[fx.Node], options: dict[str, Any]
    ) -> None:
        self.node = node
        self.linear = linear
        self.path = path
        self.options = options

    @classmethod
    def at(cls, node: fx.Node) -> _Loss | None:
        """The loss that ends at a node; None if none of this kind does."""
        options = _options_of(node)
        if options is None:
            return None
        path: list[fx.Node] = options.pop("between")
        found: Any = options.pop("input")
        while isinstance(found, fx.Node) and _keeps_rows(found):
            path.insert(0, found)
            found = found.args[0]
        if not isinstance(found, fx.Node) or found.target not in LINEAR:
            return None
        return cls(node, found, path, options)

    @property
    def logits_bytes(self) -> int:
        """Of all logits."""
        value = value_of(self.linear)
        return 0 if value is None else value.numel() * value.itemsize

    def rewrite(self) -> list[str]:
        """Change the graph; says where logits remain."""
        others = list(self._other_users())
        name = str(self.linear.name)
        if any(each.target not in _WITHOUT_GRADIENT for each in others):
            return [f"the logits {name!r} have other uses beside the loss: they are kept"]
        graph = self.node.graph
        with graph.inserting_before(self.node):
            features, weight, bias = linear_arguments(self.linear).values()
            for each in self.path:
                features = _same_rows(graph, each, features)
            loss = graph.call_function(
                linear_cross_entropy,
                (features, weight, self.options.pop("target")),
                {"bias": bias, **self.options},
            )
            plain = value_of(self.node)
            if plain is not None and plain.dtype is not torch.float32:
                loss = graph.call_method("to", (loss, plain.dtype))
        self.node.replace_all_uses_with(loss)
        for node in (self.node, *reversed(self.path), self.linear):
            if not node.users:
                graph.erase_node(node)
        return [f"the logits {name!r} are returned too: they are kept once"] if others else []

    def _other_users(self) -> Iterator[fx.Node]:
        """Who reads logits, beside what leads to the loss."""
        own = {self.node, *self.path}
        for node in (self.linear, *self.path):
            yield from (user for user in node.users if user not in own)


def _options_of(node: fx.Node) -> dict[str, Any] | None:
    """Arguments of a cross entropy as ours takes them; None where it is none that ours can be."""
    between: list[fx.Node] = []
    if node.target is functional.cross_entropy:
        given = _bound(functional.cross_entropy, node)
    elif node.target is functional.nll_loss:
        given = _bound(functional.nll_loss, node)
        scores = given["input"]
        if not isinstance(scores, fx.Node) or scores.target not in _LOG_SOFTMAX:
            return None
        if _bound(functional.log_softmax, scores)["dim"] not in (-1, 1):
            return None
        given["input"] = scores.args[0]
        between.append(scores)
    else:
        return None
    logits, target = given["input"], given["target"]
    value, answers = value_of(logits), value_of(target)
    if value is None or answers is None or value.dim() != 2 or answers.is_floating_point():
        return None
    if given["size_average"] is not None or given["reduce"] is not None:
        return None
    return {
        "input": logits,
        "between": between,
        "target": target,
        "class_weight": given["weight"],
        "ignore_index": given["ignore_index"],
        "reduction": given["reduction"],
        "label_smoothing": given.get("label_smoothing", 0.0),
    }


def _bound(function: Callable[..., Any], node: fx.Node) -> dict[str, Any]:
    """A node's arguments by name, defaults filled in."""
    bound = inspect.signature(function).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _keeps_rows(node: fx.Node) -> bool:
    """Whether it does to rows of logits what could be done to rows of features."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    before, after = value_of(node.args[0]), value_of(node)
    if before is None or after is None or not after.dim() or before.shape[-1] != after.shape[-1]:
        return False
    name = _name(node)
    if name == "to":
        return node.args[1:] in ((torch.float32,), ()) and after.dtype is torch.float32
    if name == "getitem":
        return _selects_rows(node.args[1], before.dim())
    return name in _AS_IT_IS or bool(reshaping_name(node))


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return "getitem" if node.target is operator.getitem else ""


def _selects_rows(index: Any, num_dims: int) -> bool:
    """Whether the last dimension is taken whole."""
    if isinstance(index, fx.Node):
        chosen = value_of(index)
        return chosen is not None and (chosen.dtype is not torch.bool or chosen.dim() < num_dims)
    entries = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(each, slice | int) or each is Ellipsis for each in entries):
        return False
    if Ellipsis not in entries and len(entries) < num_dims:
        return True
    return entries[-1] is Ellipsis or entries[-1] == slice(None)


def _same_rows(graph: fx.Graph, step: fx.Node, features: Any) -> Any:
    """Do to features what was done to logits."""
    name = _name(step)
    if name == "getitem":
        return graph.call_function(operator.getitem, (features, step.args[1]))
    if reshaping_name(step):
        shape = value_of(step)
        assert shape is not None, "bug in legroom: a shape that was known is not"
        return graph.call_function(_with_rows, (features, list(shape.shape[:-1])))
    return features


def _with_rows(features: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return features.reshape(*rows, features.shape[-1])
