"""An optimizer's update by itself: what it does to tensors, and nothing that anybody hung on it.

In go optimizers; out comes a function that runs their bare updates, or the state that they make.
See Note [Update alone].
"""

# Note [Update alone]
# 1. Run is `type(optimizer).step`, without what PyTorch's profiling wrapper puts around it. What
#    was set on the object (learning-rate schedulers set a `step` that notes that it was called) is
#    not called, nor are hooks on optimizers, one or all. Hooks of legroom's own are: capture learns
#    from them which phase it is in.
# 2. Wrappers of frameworks are left aside for the optimizer inside that updates. An optimizer that
#    calls another one (Lookahead) calls that one without hooks as well.
# 3. Afterwards everything that Python sees of the optimizer is as it was, `optimizer.state` apart:
#    attributes, groups, numbers and flags in them, tensors of one element (rates, counters).
# 4. `step` of a class that somebody has replaced is that class's step.

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.errors import TorchInterfaceError

_TESTED = "2.13.0"
_module: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its name
_GUESSES: dict[torch.dtype, bool | complex] = {torch.bool: True, torch.complex64: 0.5 + 0j}
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def updating_optimizers(optimizers: Iterable[Optimizer]) -> tuple[Optimizer, ...]:
    """Those that update, each once: wrappers of frameworks are left for what they wrap.

    A wrapper is an `Optimizer` that was not made as one, but around one: `AcceleratedOptimizer`,
    `LightningOptimizer`, Fabric's.
    """
    found: dict[int, Optimizer] = {}
    for optimizer in optimizers:
        updating = _unwrapped(optimizer)
        found.setdefault(id(updating), updating)
    return tuple(found.values())


@contextlib.contextmanager
def update_alone(optimizers: Iterable[Optimizer]) -> Iterator[Callable[[], None]]:
    """Hand out a function that runs the bare update of each; see Note [Update alone].

    When the context ends everything is put back but `optimizer.state` and the tensors updated.

    Raises:
        TorchInterfaceError: PyTorch keeps hooks of optimizers elsewhere now.
    """
    optimizers = updating_optimizers(optimizers)

    def update() -> None:
        for optimizer in optimizers:
            _run(optimizer)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_global_hooks_detached())
        for optimizer in _with_inner(optimizers):
            stack.enter_context(_as_it_was(optimizer))
            _detach(optimizer)
        yield update


def make_state(optimizer: Optimizer) -> None:
    """Make the optimizer's state for all its parameters that require gradients.

    It is made by a bare update with empty gradients, on whatever tensors are there: give it fake
    ones, since the values of real ones are updated too. Parameters that have state keep it. All but
    the state is put back, `.grad` included. Values of fake tensors that the update reads, and
    nobody knows, are taken to be a half, 1 or True.

    Limits: L-BFGS takes that for having arrived, and makes next to nothing.

    Raises:
        TorchInterfaceError: See `update_alone`.
    """
    optimizer = _unwrapped(optimizer)
    if _requires_closure(optimizer) and optimizer.state:
        return  # one state for all: L-BFGS
    params = [param for group in optimizer.param_groups for param in group["params"]]
    gradients = [param.grad for param in params]
    answered = _AnsweredReads()  # type: ignore[no-untyped-call]
    try:
        for param in params:
            lacks_state = param.requires_grad and not optimizer.state.get(param)
            param.grad = _empty_gradient(optimizer, param) if lacks_state else None
        with update_alone([optimizer]) as update, answered:
            update()
    finally:
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient


def _empty_gradient(optimizer: Optimizer, param: torch.Tensor) -> torch.Tensor:
    if not isinstance(optimizer, torch.optim.SparseAdam):
        return torch.empty_like(param)
    return torch.zeros_like(param, layout=torch.sparse_coo)


class _AnsweredReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers reads of values where nobody inside does."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            return _GUESSES.get(args[0].dtype, 0.5 if args[0].is_floating_point() else 1)


# The update -------------------------------------------------------------------------------------


def _run(optimizer: Optimizer) -> None:
    step = _without_profiling(type(optimizer).step)
    before, after = _own_hooks()
    for hook in before:
        hook(optimizer, (), {})
    if _requires_closure(optimizer):
        step(optimizer, _no_loss)
    else:
        try:
            step(optimizer)
        except Exception as error:
            if not _asks_for_closure(optimizer, error):
                raise
            step(optimizer, closure=_no_loss)
    for hook in after:
        hook(optimizer, (), {})


def _no_loss() -> float:
    return 0.0


def _without_profiling(step: Callable[..., Any]) -> Callable[..., Any]:
    """What `Optimizer.profile_hook_step` was given.

    Others wrap `step` too, and take its marks over; that function is PyTorch's by its globals.
    """
    wrapped: Callable[..., Any] | None = getattr(step, "__wrapped__", None)
    is_profiling = getattr(step, "hooked", False) and wrapped is not None
    is_of_torch = getattr(step, "__globals__", None) is vars(_module)
    return wrapped if wrapped is not None and is_profiling and is_of_torch else step


def _requires_closure(optimizer: Optimizer) -> bool:
    """Whether it asks for the loss itself, as L-BFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _asks_for_closure(optimizer: Optimizer, error: Exception) -> bool:
    """Whether it failed for want of one, although its signature has a default: SAM does."""
    if "closure" not in inspect.signature(type(optimizer).step).parameters:
        return False
    return "closure" in str(error) or "'NoneType' object is not callable" in str(error)


# Wrappers ---------------------------------------------------------------------------------------


def _unwrapped(optimizer: Optimizer) -> Optimizer:
    seen = {id(optimizer)}
    while _HOOKS[0] not in vars(optimizer):  # `Optimizer.__init__` makes it
        inner = next(_inner(optimizer), None)
        if inner is None or id(inner) in seen:
            break
        seen.add(id(inner))
        optimizer = inner
    return optimizer


def _inner(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Optimizers that it holds."""
    for value in vars(optimizer).values():
        if issubclass(type(value), Optimizer) and value is not optimizer:
            yield value


def _with_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers, and those that they call."""
    found: dict[int, Optimizer] = {}
    waiting = list(optimizers)
    while waiting:
        optimizer = waiting.pop()
        if id(optimizer) not in found:
            found[id(optimizer)] = optimizer
            waiting.extend(_inner(optimizer))
    return list(found.values())


# Hooks ------------------------------------------------------------------------------------------


def _detach(optimizer: Optimizer) -> None:
    """Take off hooks and a `step` that was set; `_as_it_was` puts them back."""
    attributes = vars(optimizer)
    for name in _HOOKS:
        if name in attributes:
            attributes[name] = OrderedDict()
    attributes.pop("step", None)


@contextlib.contextmanager
def _global_hooks_detached() -> Iterator[None]:
    """Let optimizers that call others find no hooks.

    The tables are exchanged and not emptied: PyTorch may be walking through them.
    """
    tables = {name: _global_table(name) for name in _GLOBAL_HOOKS}
    try:
        for name, table in tables.items():
            setattr(_module, name, _OwnHooks(table))
        yield
    finally:
        for name, table in tables.items():
            setattr(_module, name, table)


class _OwnHooks(OrderedDict[int, Any]):
    """A table of global hooks that shows none, and knows those of legroom."""

    def __init__(self, table: dict[int, Any]) -> None:
        super().__init__()
        known = table.own if isinstance(table, _OwnHooks) else list(table.values())
        self.own: list[Callable[..., object]] = [hook for hook in known if _is_own(hook)]


def _own_hooks() -> tuple[list[Callable[..., object]], list[Callable[..., object]]]:
    before, after = (_global_table(name) for name in _GLOBAL_HOOKS)
    assert isinstance(before, _OwnHooks), "bug in legroom: an update outside `update_alone`"
    assert isinstance(after, _OwnHooks), "bug in legroom: an update outside `update_alone`"
    return before.own, after.own


def _is_own(hook: Callable[..., object]) -> bool:
    return (getattr(hook, "__module__", None) or "").partition(".")[0] == "legroom"


def _global_table(name: str) -> dict[int, Any]:
    table = getattr(_module, name, None)
    if not isinstance(table, dict):
        raise TorchInterfaceError(f"torch.optim.optimizer.{name}", tested=_TESTED)
    return table


# What Python sees -------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_it_was(optimizer: Optimizer) -> Iterator[None]:
    """Put back all but its state; see Note [Update alone], rule 3."""
    attributes = vars(optimizer)
    if _HOOKS[0] in attributes and _HOOKS[1] not in attributes:
        raise TorchInterfaceError(f"torch.optim.Optimizer.{_HOOKS[1]}", tested=_TESTED)
    kept = {name: value for name, value in attributes.items() if name != "state"}
    apart = {id(param) for group in optimizer.param_groups for param in group["params"]}
    apart |= {id(attributes[name]) for name in ("state", *_HOOKS) if name in attributes}
    put_back = _memory_of(kept, apart)
    try:
        yield
    finally:
        state = {"state": attributes["state"]} if "state" in attributes else {}
        put_back()
        attributes.clear()
        attributes.update({**kept, **state})


def _memory_of(value: Any, apart: set[int]) -> Callable[[], None]:
    """A function that puts containers, and tensors of one element, back in place."""
    if id(value) in apart:
        return _nothing
    apart.add(id(value))
    if isinstance(value, torch.Tensor):
        return _memory_of_tensor(value)
    if isinstance(value, dict):
        return _memory_of_container(value, value.items, value.update, value.values(), apart)
    if isinstance(value, list | deque):
        return _memory_of_container(value, lambda: value, value.extend, value, apart)
    if isinstance(value, set):
        return _memory_of_container(value, lambda: value, value.update, (), apart)
    parts = value if isinstance(value, tuple) else ()
    return _all_of([_memory_of(item, apart) for item in parts])


def _memory_of_container(
    container: Any,
    items: Callable[[], Iterable[Any]],
    fill: Callable[[list[Any]], object],
    parts: Iterable[Any],
    apart: set[int],
) -> Callable[[], None]:
    before = list(items())
    put_parts_back = _all_of([_memory_of(part, apart) for part in parts])

    def put_back() -> None:
        if not _is_same(list(items()), before):
            container.clear()
            fill(before)
        put_parts_back()

    return put_back


def _is_same(items: list[Any], before: list[Any]) -> bool:
    """Whether these are the same objects; asking tensors whether they are equal is not free."""
    if len(items) != len(before):
        return False
    pairs = zip(items, before, strict=True)
    return all(
        _is_same(list(a), list(b)) if isinstance(a, tuple) and isinstance(b, tuple) else a is b
        for a, b in pairs
    )


def _memory_of_tensor(tensor: torch.Tensor) -> Callable[[], None]:
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    if not is_plain or tensor.numel() != 1 or tensor.is_inference():
        return _nothing
    before, version = tensor.detach().clone(), tensor._version

    def put_back() -> None:
        if tensor._version != version:
            with torch.no_grad():
                tensor.copy_(before)

    return put_back


def _all_of(actions: Iterable[Callable[[], None]]) -> Callable[[], None]:
    actions = [action for action in actions if action is not _nothing]

    def act() -> None:
        for action in actions:
            action()

    return act if actions else _nothing


def _nothing() -> None:
    """Nothing to put back."""
