"""Names of modules, and which of them is running: what ties an operation to a part of a model.

In go PyTorch's global module hooks; out come paths as `named_modules()` has them, and one `Call`
for each time that a module was called from outside all others.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from legroom.capture._autograd import graph_of, nodes_behind
from legroom.capture._heap import nested_tensors

_CALL = "legroom.call"
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class FunctionShell(nn.Module):
    """A function as a module that has no parameters, so that its calls can be captured."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)


class ModulePaths:
    """Paths of modules, as their outermost owner's `named_modules()` has them.

    With several owners, the further ones are prefixed with their class name, so that a generator
    and a critic do not collide.
    """

    def __init__(self) -> None:
        self._path: dict[int, str] = {}
        self._roots: list[nn.Module] = []
        self._prefixes: set[str] = set()
        self._parent: dict[int, nn.Module] = {}
        self.class_of: dict[str, str] = {}

    @property
    def roots(self) -> tuple[nn.Module, ...]:
        """The outermost modules seen so far."""
        return tuple(self._roots)

    def learn_owners(self, modules: Iterable[nn.Module]) -> None:
        """Note which module belongs to which."""
        for module in modules:
            for child in (vars(module).get("_modules") or {}).values():
                if child is not None:
                    self._parent.setdefault(id(child), module)

    def add_root(self, module: nn.Module) -> None:
        """Name a module that is called from outside every known one, its owner and all it holds."""
        if id(module) in self._path or isinstance(module, FunctionShell):
            return
        root, seen = module, {id(module)}
        while (owner := self._parent.get(id(root))) is not None and id(owner) not in seen:
            root = owner
            seen.add(id(owner))
        prefix = "" if not self._roots else type(root).__name__
        if prefix in self._prefixes:
            prefix = f"{prefix}_{len(self._roots)}"
        self._prefixes |= {prefix, type(root).__name__}
        self._roots.append(root)
        for name, each in root.named_modules(remove_duplicate=True):
            path = ".".join(part for part in (prefix, name) if part) or type(root).__name__
            self._path.setdefault(id(each), path)
            self.class_of.setdefault(path, type(each).__name__)

    def path(self, module: nn.Module) -> str:
        """The module's path; its class name if it hangs on no known root."""
        path = self._path.get(id(module))
        if path is None:
            path = self._path[id(module)] = type(module).__name__
            self.class_of.setdefault(path, path)
            self._roots.append(module)  # keeps the identity from being reused
        return path

    def parameter_names(self) -> dict[int, tuple[str, str]]:
        """For each parameter and buffer (by identity): its name and its module's path."""
        names: dict[int, tuple[str, str]] = {}
        for root in self._roots:
            for module in root.modules():
                path = self.path(module)
                own = [*module._parameters.items(), *module._buffers.items()]
                for name, tensor in own:
                    if tensor is not None:
                        names.setdefault(id(tensor), (f"{path}.{name}", path))
        return names

    def path_of_identity(self, identity: int) -> str | None:
        """The path of the module with this `id()`; None if it is not known."""
        return self._path.get(identity)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter and buffer with its name."""
        for root in self._roots:
            for module in root.modules():
                path = self.path(module)
                for table in (module._parameters, module._buffers):
                    for name, tensor in table.items():
                        if tensor is not None:
                            yield f"{path}.{name}", tensor


@dataclass
class Call:
    """One call of a module from outside all others.

    Attributes:
        module: The module that was called.
        why_not: Why it cannot be captured as a piece; empty if it can.
    """

    module: nn.Module
    path: str
    why_not: str = ""


@dataclass
class ModuleWatch:
    """Follows modules as they run, on the thread that trains.

    Attributes:
        calls: Outermost calls, in order.
        entered: Paths of modules in the order in which they were first entered.
        num_operations: Operations in each module's own code, by path.
    """

    paths: ModulePaths
    calls: list[Call] = field(default_factory=list)
    entered: dict[str, type[nn.Module]] = field(default_factory=dict)
    num_operations: Counter[str] = field(default_factory=Counter)
    is_in_backward: bool = False
    _stack: list[tuple[nn.Module, str]] = field(default_factory=list)

    @property
    def current(self) -> str:
        """Path of the innermost module that is running; `""` outside all of them."""
        return self._stack[-1][1] if self._stack else ""

    @property
    def is_in_model(self) -> bool:
        """Whether a module that has parameters is running."""
        return any(has_parameters(module) for module, _ in self._stack)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have the hooks on while the context is open."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._stack.clear()

    def _enter(self, module: nn.Module, args: object) -> None:
        self.paths.add_root(module)
        if not self._stack:
            self.calls.append(Call(module, self.paths.path(module), self._why_not()))
        path = self.paths.path(module)
        self.entered.setdefault(path, type(module))
        self._stack.append((module, path))

    def _why_not(self) -> str:
        if self.is_in_backward:
            return "it is called during the backward pass, as by checkpointing"
        if not torch.is_grad_enabled():
            return "it runs without gradients"
        if saving_is_hooked():
            return "it is called under saved-tensor hooks, as by torch.utils.checkpoint"
        return ""

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        while any(entered is module for entered, _ in self._stack):
            inner, _ = self._stack.pop()
            if inner is module:
                break
        if self._stack or not self.calls:
            return
        call = self.calls[-1]
        if call.module is not module:
            return
        nodes = [
            node
            for _, tensor in nested_tensors("", output)
            if (node := graph_of(tensor)) is not None
        ]
        for node in nodes:
            # A mark on the node, not a reference to it: that would keep the graph alive.
            node.metadata[_CALL] = len(self.calls) - 1
        if not nodes and not call.why_not:
            call.why_not = "nothing it returns needs gradients"

    def forbid_double_backward(self, roots: Iterable[torch.Tensor]) -> None:
        """Note that gradients of gradients are taken through every call behind `roots`."""
        for node in nodes_behind(roots):
            number = node.metadata.get(_CALL)
            if number is not None and number < len(self.calls):
                call = self.calls[number]
                call.why_not = "gradients of its gradients are taken (create_graph=True)"


def has_parameters(module: nn.Module) -> bool:
    """Whether it, or a part of it, has parameters."""
    return any(True for _ in module.parameters())


def saving_is_hooked() -> bool:
    """Whether somebody packs what autograd saves, as torch.utils.checkpoint does."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


def repeated_blocks(watch: ModuleWatch) -> tuple[str, ...]:
    """Paths of the modules that repeat, in forward order.

    A family is every module of one class that was called, if at least two of them are siblings.
    Of the families that hold nearly as many operations as any, the one is taken whose number of
    members is nearest to the square root of the number of operations: that is where checkpointing
    at its members pays most. Families beside it, as in the other arm of a U-Net, are added.
    """
    inside: Counter[str] = Counter()
    for path, count in watch.num_operations.items():
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            inside[".".join(parts[:depth])] += count
    parents = {path.rpartition(".")[0] for path in watch.entered}
    parents |= {path.rpartition(".")[0] for path in parents}
    families: dict[type[nn.Module], list[str]] = defaultdict(list)
    for path, kind in watch.entered.items():
        if not issubclass(kind, _CONTAINERS) and (path in parents or issubclass(kind, nn.RNNBase)):
            families[kind].append(path)
    candidates: list[tuple[int, tuple[str, ...]]] = []
    for paths in families.values():
        outermost = [path for path in paths if not _is_below(path, paths)]
        siblings = Counter(path.rpartition(".")[0] for path in outermost)
        if siblings and max(siblings.values()) > 1:
            candidates.append((sum(inside[path] for path in outermost), tuple(outermost)))
    if not candidates:
        return ()
    most = max(count for count, _ in candidates)
    ideal = math.sqrt(max(1, sum(watch.num_operations.values())))

    def distance(members: tuple[str, ...]) -> float:
        return max(len(members) / ideal, ideal / len(members))

    near = [members for count, members in candidates if count >= 0.6 * most]
    chosen = [*min(near, key=distance)]
    for _, members in sorted(candidates, reverse=True):
        if not any(_overlap(path, other) for path in members for other in chosen):
            chosen.extend(members)
    order = {path: place for place, path in enumerate(watch.entered)}
    return tuple(sorted(chosen, key=order.__getitem__))


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _is_below(path: str, others: list[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others if other != path)
