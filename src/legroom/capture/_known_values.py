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
# 3. Sizes can depend on values too. `bincount` of what `topk` chose among n is n long if that is
#    its `minlength`; then an operation of ours says so, and calls it.
# 4. Everything else is not known: tensors that are written to, random ones, those of a module,
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

from legroom.capture._real import real_tensors

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
    "bool clone contiguous detach eq expand flatten int long ne reshape size to unsqueeze "
    "view".split()
)
_RESHAPES = frozenset("contiguous flatten int long ravel reshape to view".split())
_VIEWS = _RESHAPES | frozenset(
    "bool chunk detach diagonal expand expand_as getitem movedim narrow permute select split "
    "squeeze swapaxes swapdims t transpose unbind unflatten unfold unsqueeze view_as".split()
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


def is_known_below(values: torch.Tensor, limit: int) -> bool | None:
    """Whether all values are places that `topk` chose among at most `limit`; None if unknown."""
    answer = None
    comptime(_answer_below)
    return answer


@torch.library.custom_op("legroom::count_below", mutates_args=())
def count_below(values: torch.Tensor, limit: int) -> torch.Tensor:
    """How often each number below the limit occurs among values that are all below it."""
    return torch.bincount(values, minlength=limit)


@count_below.register_fake
def _count_below_fake(values: torch.Tensor, limit: int) -> torch.Tensor:
    return values.new_empty(limit, dtype=torch.int64)


def _answer_full(context: Any) -> None:
    _answer(context, "mask", _is_full)


def _answer_one_sequence(context: Any) -> None:
    _answer(context, "positions", _is_one_sequence)


def _answer_below(context: Any) -> None:
    values, limit = context.get_local("values"), context.get_local("limit")
    if values.is_proxy() and limit.is_python_constant():
        num_choices = _num_choices(values.as_proxy().node)
        if num_choices is not None and num_choices <= limit.as_python_constant():
            _set_answer(context, True)


def _num_choices(node: fx.Node) -> int | None:
    """Among how many `topk` chose, if the node holds its choices."""
    while node.op == "call_method" and node.target in _RESHAPES and not _is_written(node):
        node = node.all_input_nodes[0]
    if node.target is not operator.getitem or node.args[1] != 1 or _is_written(node):
        return None
    chosen = node.all_input_nodes[0]
    if chosen.target not in (torch.topk, "topk"):
        return None
    among = chosen.all_input_nodes[0].meta["example_value"]
    named = dict(zip(("input", "k", "dim"), chosen.args, strict=False)) | chosen.kwargs
    return int(among.size(named.get("dim", -1)))


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
    _set_answer(context, answer)


def _set_answer(context: Any, answer: bool) -> None:
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
        with real_tensors(), torch.no_grad():
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
    if _is_written(node):
        return False
    if node.op == "call_function":
        return node.target in _FUNCTIONS and "out" not in node.kwargs
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "placeholder"


def _is_written(node: fx.Node) -> bool:
    """Whether somebody writes into the tensor, or into a view of it."""
    return any(
        _writes(user) or (_name(user) in _VIEWS and _is_written(user)) for user in node.users
    )


def _writes(node: fx.Node) -> bool:
    if getattr(node.target, "__module__", "") == "_operator":
        return _name(node) in _WRITERS  # and not `and_`, `or_`, `not_`
    return _name(node).endswith("_") or "out" in node.kwargs


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


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
