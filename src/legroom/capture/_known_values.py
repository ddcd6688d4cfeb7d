"""What a value will be, said while TorchDynamo traces: no graph has to end where it is asked for.

In goes a question that traced code asks about one of its tensors; out comes True or False, or None
where the answer is not known. See Note [Known values].
"""

# Note [Known values]
# 1. Eager reads values to choose a path: is there padding in this mask? TorchDynamo would end the
#    graph there. Where a tensor is made of numbers and of the graph's inputs by a few cheap
#    operations, it is computed while tracing, and the answer is a constant of the graph.
# 2. An answer that depends on an input holds for other inputs only if they give the same one: a
#    guard asks again at every call, as eager does, and another answer is another graph.
# 3. Everything else is not known: tensors that are written to, random ones, those of a module,
#    inputs that are fake. The caller then does as eager does, and the graph ends.

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

# At the top, because traced code looks it up. Who imports this module has TorchDynamo loaded.
from torch._dynamo.comptime import comptime
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_FUNCTIONS = frozenset(
    {
        torch.arange,
        torch.full,
        torch.ones,
        torch.ones_like,
        torch.zeros,
        torch.zeros_like,
        operator.add,
        operator.eq,
        operator.getitem,
        operator.ne,
        operator.sub,
    }
)
_METHODS = frozenset(
    "bool contiguous eq expand flatten int long ne reshape size to unsqueeze view".split()
)
_WRITERS = frozenset("iadd iand ifloordiv imul ior isub itruediv ixor setitem".split())
_MOST_NODES = 64

Question = Callable[[torch.Tensor], bool]


class _UnknownError(Exception):
    """The value of a node is not known while tracing."""


def is_known_full(mask: torch.Tensor) -> bool | None:
    """Whether a mask leaves nothing out; None where that is not known, and outside of tracing."""
    answer = None
    comptime(_answer_full)
    return answer


def is_known_as_one_sequence(positions: torch.Tensor) -> bool | None:
    """Whether each position follows the one before it in its row; None where it is not known."""
    answer = None
    comptime(_answer_one_sequence)
    return answer


def _answer_full(context: Any) -> None:
    _answer(context, "mask", _is_full)


def _answer_one_sequence(context: Any) -> None:
    _answer(context, "positions", _is_one_sequence)


def _is_full(mask: torch.Tensor) -> bool:
    return bool((mask != 0).all())


def _is_one_sequence(positions: torch.Tensor) -> bool:
    return bool((positions.diff(dim=-1) == 1).all())


def _answer(context: Any, name: str, question: Question) -> None:
    """Set the traced function's `answer`, if it is known."""
    variable = context.get_local(name)
    if not variable.is_proxy():
        return
    try:
        recipe = _recipe_of(variable.as_proxy().node)
        answer = recipe.ask(question, None if recipe.source is None else recipe.source.example)
    except _UnknownError:
        return
    if recipe.source is not None:
        _guard(recipe, question, answer)
    variables: Any = importlib.import_module("torch._dynamo.variables")
    translator = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
    translator.symbolic_locals["answer"] = variables.ConstantVariable.create(answer)


@dataclass(frozen=True)
class _Recipe:
    """How a tensor is computed.

    Attributes:
        module: Takes the input, if there is one, and returns the tensor.
        source: TorchDynamo's argument that is the input; None if it is made of numbers only.
    """

    module: fx.GraphModule
    source: Any

    def ask(self, question: Question, value: Any) -> bool:
        """The answer, were `value` the input."""
        is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        if self.source is not None and not is_real:
            raise _UnknownError
        # Neither a mode that records nor one that fakes may see this.
        with _disable_current_modes(), torch.no_grad():
            made = self.module(*([] if self.source is None else [value]))
            if not isinstance(made, torch.Tensor):
                raise _UnknownError
            return question(made)


def _recipe_of(node: fx.Node) -> _Recipe:
    used = _nodes_behind(node)
    inputs = [each for each in used if each.op == "placeholder"]
    if len(inputs) > 1:
        raise _UnknownError
    source = inputs[0].meta.get("grapharg") if inputs else None
    if inputs and (source is None or source.source is None):
        raise _UnknownError
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for each in used:
        if each.op == "placeholder":
            copies[each] = graph.placeholder("value")
        else:
            copies[each] = graph.node_copy(each, copies.__getitem__)
            copies[each].meta = {}
    graph.output(copies[node])
    return _Recipe(fx.GraphModule(nn.Module(), graph), source)


def _nodes_behind(node: fx.Node) -> list[fx.Node]:
    """The node and what it depends on, in order; only operations that are known to be cheap."""
    behind: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current not in behind:
            behind.add(current)
            if len(behind) > _MOST_NODES or not _is_computable(current):
                raise _UnknownError
            pending.extend(current.all_input_nodes)
    return [each for each in node.graph.nodes if each in behind]


def _is_computable(node: fx.Node) -> bool:
    if any(_writes(user) for user in node.users):
        return False
    if node.op == "call_function":
        return node.target in _FUNCTIONS and "out" not in node.kwargs
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "placeholder"


def _writes(node: fx.Node) -> bool:
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    return name in _WRITERS or name.endswith("_") or "out" in node.kwargs


def _guard(recipe: _Recipe, question: Question, answer: bool) -> None:
    """Let a graph be used only for inputs of which the same is true."""
    guards: Any = importlib.import_module("torch._dynamo.guards")
    source = recipe.source.source
    kept = _Recipe(recipe.module, source)

    def is_as_before(value: Any) -> bool:
        try:
            return kept.ask(question, value) is answer
        except _UnknownError:
            return False

    def legroom_value(builder: Any, guard: Any) -> None:
        builder.get_guard_manager(guard).add_lambda_guard(
            is_as_before, [f"{question.__name__}({source.name}) is {answer}"], None
        )

    guards.install_guard(source.make_guard(legroom_value))
