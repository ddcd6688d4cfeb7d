"""Questions about the nodes of TorchDynamo's graphs that several rewrites ask.

In goes a node; out come what it is, what it reads, and what it computes of numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.nn import functional

LINEAR: Any = (functional.linear, torch._C._nn.linear)
_RESHAPING = frozenset({"view", "reshape", "flatten"})
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


def value_of(node: object) -> torch.Tensor | None:
    """A tensor like the one that a node makes; None where it makes something else."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def linear_arguments(node: fx.Node) -> dict[str, Any]:
    """Input, weight and bias of a linear layer, by name."""
    names = ("input", "weight", "bias")
    return {**dict.fromkeys(names), **dict(zip(names, node.args, strict=False)), **node.kwargs}


def is_arithmetic(node: fx.Node) -> bool:
    """Whether it is one of the functions of elements that activations are written with."""
    is_function = node.op == "call_function" and node.target in _FUNCTIONS
    return is_function or (node.op == "call_method" and node.target in _METHODS)


def reshaping_name(node: fx.Node) -> str:
    """The name of what only gives another shape: `"view"`; nothing where it does more."""
    if node.op == "call_method":
        return str(node.target) if node.target in _RESHAPING else ""
    return "reshape" if node.target in (torch.reshape, torch.flatten) else ""


def evaluate(
    node: fx.Node,
    source: fx.Node,
    values: torch.Tensor,
    *,
    is_identity: Callable[[fx.Node], bool] = lambda node: False,
) -> Any:
    """What a node is where its source has these values.

    Args:
        is_identity: What gives back its first argument here, whatever it does to shapes.
    """
    known: dict[fx.Node, Any] = {source: values}

    def find(each: fx.Node) -> Any:
        if each not in known:
            args = fx.node.map_arg(each.args, find)
            kwargs = fx.node.map_arg(each.kwargs, find)
            target: Any = each.target
            call = target if each.op == "call_function" else getattr(torch.Tensor, target)
            known[each] = args[0] if is_identity(each) else call(*args, **kwargs)
        return known[each]

    return find(node)
