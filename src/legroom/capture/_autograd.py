"""What autograd holds and when it runs: saved tensors of a graph, and calls into the engine.

In goes a tensor with a graph; out comes every tensor that the graph keeps, with the operation and
the field that keep it. Reading is passive: packed tensors are looked at, never unpacked, so a
checkpointed block is not run again and offloaded tensors do not come back.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"
_RAW_FIELDS: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that one node of an autograd graph keeps.

    Attributes:
        node: The node's name, `"GeluBackward0"`.
        field: The name it is kept under, `"self"` or `"result"`.
        sequence: The number that ties the node to the forward operation that made it; -1 if none.
        tensor: The tensor itself. Drop it soon: holding it keeps the memory alive.
    """

    node: str
    field: str
    sequence: int
    tensor: torch.Tensor


def graph_of(tensor: torch.Tensor) -> Any:
    """The node that made the tensor; None if it is a leaf, or a view that was written over.

    PyTorch refuses to say for views whose base was changed in a way that autograd cannot follow.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether no operation made the tensor; False where PyTorch refuses to say (see `graph_of`)."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def nodes_behind(roots: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Every node of the graphs of `roots`, once."""
    pending = [node for root in roots if (node := graph_of(root)) is not None]
    seen = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)
        yield node


def saved_tensors(roots: Iterable[torch.Tensor]) -> tuple[list[SavedTensor], set[str]]:
    """Every tensor kept by the graphs of `roots`, and names of nodes that cannot be looked into.

    Nodes written in C++ by third parties show no fields to Python; they are named, not guessed at.
    """
    saved: list[SavedTensor] = []
    opaque: set[str] = set()
    for node in nodes_behind(roots):
        name = node.name()
        if type(node).__name__ == "CppFunction" and name != "torch::autograd::AccumulateGrad":
            opaque.add(name)
        sequence = _sequence_number(node)
        for field, tensor in _kept_by(node):
            saved.append(SavedTensor(name, field, sequence, tensor))
    return saved, opaque


def _sequence_number(node: Any) -> int:
    number = node._sequence_nr()
    return number if 0 <= number < 2**63 else -1


def _kept_by(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    kind = type(node)
    fields = _RAW_FIELDS.get(kind)
    if fields is None:
        fields = tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
        _RAW_FIELDS[kind] = fields
    for field in fields:
        with contextlib.suppress(RuntimeError):  # already freed by an earlier backward
            raw = getattr(node, field)
            for item in raw if isinstance(raw, tuple | list) else (raw,):
                for tensor in _tensors_in(_packed(item)):
                    yield field.removeprefix("_raw_saved_"), tensor
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        for field, value in vars(node).items():
            for tensor in _tensors_in(value):
                yield field, tensor


def _packed(saved: Any) -> Any:
    """What a saved variable really holds: the tensor, or what a pack hook made of it."""
    if saved is None:
        return None
    try:
        return saved.data
    except AttributeError:
        raise TorchInterfaceError("SavedTensor.data", tested=_TESTED) from None


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors_in(item)


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """One call into the autograd engine.

    Attributes:
        roots: What gradients are taken of.
        accumulates: True for `backward()`, false for `torch.autograd.grad()`.
        creates_graph: Whether the gradients can be differentiated again.
        is_restricted: Whether only some inputs get gradients (`inputs=`).
    """

    roots: tuple[torch.Tensor, ...]
    accumulates: bool
    creates_graph: bool
    is_restricted: bool


Around = Callable[[BackwardCall], contextlib.AbstractContextManager[object]]
_observers: list[Around] = []


@contextlib.contextmanager
def observe_backward(around: Around) -> Iterator[None]:
    """Enter `around(call)` for every call into the autograd engine; several may observe at once."""
    # See torch/autograd/graph.py: backward() and grad() both go through this one function, which
    # torch/autograd/__init__.py has imported by name.
    autograd: Any = torch.autograd
    original = getattr(autograd, "_engine_run_backward", None)
    if original is None:
        raise TorchInterfaceError("torch.autograd._engine_run_backward", tested=_TESTED)
    if not hasattr(original, "legroom_original"):
        autograd._engine_run_backward = _observed(original)
    _observers.append(around)
    try:
        yield
    finally:
        _observers.remove(around)
        installed = autograd._engine_run_backward
        if not _observers and hasattr(installed, "legroom_original"):
            autograd._engine_run_backward = installed.legroom_original


def _observed(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        outputs: Any,
        gradients: Any = None,
        retain_graph: bool = False,
        create_graph: bool = False,
        inputs: Any = (),
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        accumulates = bool(kwargs.get("accumulate_grad", False))
        call = BackwardCall(
            roots=tuple(item for item in outputs if isinstance(item, torch.Tensor)),
            accumulates=accumulates,
            creates_graph=bool(create_graph),
            is_restricted=accumulates and bool(inputs),
        )
        with contextlib.ExitStack() as stack:
            for around in tuple(_observers):
                stack.enter_context(around(call))
            return original(outputs, gradients, retain_graph, create_graph, inputs, *args, **kwargs)

    run.legroom_original = original  # type: ignore[attr-defined]
    return run


def next_sequence_number() -> int:
    """The number that the next node gets which this thread makes."""
    number: Any = getattr(torch.autograd, "_get_sequence_nr", None)
    if number is None:
        raise TorchInterfaceError("torch.autograd._get_sequence_nr", tested=_TESTED)
    return int(number())


def is_in_backward() -> bool:
    """Whether the autograd engine is running on this thread."""
    current: Any = getattr(torch._C, "_current_graph_task_id", None)
    if current is None:
        raise TorchInterfaceError("torch._C._current_graph_task_id", tested=_TESTED)
    return bool(current() != -1)


def is_in_transform() -> bool:
    """Whether a function transform of torch.func is at work."""
    functorch: Any = getattr(torch._C, "_functorch", None)
    if not hasattr(functorch, "peek_interpreter_stack"):
        raise TorchInterfaceError("torch._C._functorch.peek_interpreter_stack", tested=_TESTED)
    return functorch.peek_interpreter_stack() is not None
