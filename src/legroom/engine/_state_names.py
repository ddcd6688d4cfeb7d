"""Names for everything that training changes, the same in every run of one program.

In go the optimizers of a program; out come its parameters, buffers and optimizer states, each with
a key by which two runs are compared, a name for people, and the module that it belongs to.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import fx, nn
from torch.optim import Optimizer

from legroom.capture import FunctionShell, nested_tensors, scan_heap

_WRAPPERS = ("module", "_orig_mod", "_forward_module", "_original_module")


@final
@dataclass(frozen=True, slots=True)
class Named:
    """A tensor with what it is called.

    Attributes:
        key: Equal in two runs of one program for what is to be compared.
        name: For people: `"h.0.attn.c_attn.weight"`.
        module: Path of its module in the model; empty if it has none.
    """

    key: str
    name: str
    module: str
    tensor: torch.Tensor


@final
class StateNames:
    """Names what optimizers update and the models that they belong to.

    Keys follow the order in which optimizers list their parameters, not the order of the heap, and
    not what is wrapped around a model: that is the same with and without a plan at work.
    """

    def __init__(self) -> None:
        self._optimizers: list[Optimizer] = []
        self._roots: list[nn.Module] = []
        self._names: dict[int, tuple[str, str]] = {}

    def add_optimizer(self, optimizer: Optimizer) -> int:
        """Its number; new ones are given the next."""
        for number, known in enumerate(self._optimizers):
            if known is optimizer:
                return number
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1

    def learn(self, models: Iterable[nn.Module] = ()) -> None:
        """Name everything that the optimizers update, and the models given or found."""
        params = [param for each in self._optimizers for param in params_of(each)]
        if all(id(param) in self._names for param in params) and self._roots:
            return
        heap = scan_heap()
        modules = [m for m in heap.modules if not isinstance(m, fx.GraphModule | FunctionShell)]
        if not params:
            params = [p for m in (models or modules) for p in m.parameters()]
        self._roots = _roots_of(params, modules)
        self._names = {id(each.tensor): (each.name, each.module) for each in self._owned()}

    def gradients(self, optimizer: Optimizer | None = None) -> Iterator[Named]:
        """The gradients of what an optimizer updates; of all parameters without one."""
        if optimizer is None:
            tensors = [each.tensor for each in self.parameters()]
            prefix = ""
        else:
            prefix, tensors = f"{self.add_optimizer(optimizer)}.", params_of(optimizer)
        for number, param in enumerate(tensors):
            if param.grad is not None:
                name, module = self._name(param, f"{prefix}{number}")
                yield Named(f"{prefix}{number}", name, module, param.grad)

    def parameters(self) -> Iterator[Named]:
        """Every parameter of the models, and whatever else the optimizers update."""
        places = {
            id(param): f"{number}.{place}"
            for number, optimizer in enumerate(self._optimizers)
            for place, param in enumerate(params_of(optimizer))
        }
        seen: set[int] = set()
        for each in self._owned(buffers=False):
            seen.add(id(each.tensor))
            known = places.get(id(each.tensor))
            yield each if known is None else replace(each, key=f"optimizer {known}")
        for number, optimizer in enumerate(self._optimizers):
            for place, param in enumerate(params_of(optimizer)):
                if id(param) not in seen:
                    seen.add(id(param))
                    key = f"{number}.{place}"
                    yield Named(f"optimizer {key}", f"parameter {key}", "", param)

    def buffers(self) -> Iterator[Named]:
        """Every buffer of the models."""
        return self._owned(parameters=False)

    def optimizer_states(self) -> Iterator[Named]:
        """Every tensor that the optimizers keep."""
        for number, optimizer in enumerate(self._optimizers):
            for place, param in enumerate(params_of(optimizer)):
                name, module = self._name(param, f"{number}.{place}")
                found = nested_tensors("", optimizer.state.get(param, {}))
                for index, (field, tensor) in enumerate(found):
                    key = f"{number}.{place}.{field}.{index}"
                    yield Named(key, f"{name}.{field}", module, tensor)

    def _owned(self, *, parameters: bool = True, buffers: bool = True) -> Iterator[Named]:
        for number, root in enumerate(self._roots):
            prefix = f"{type(root).__name__}_{number}." if len(self._roots) > 1 else ""
            tables: list[Iterable[tuple[str, torch.Tensor]]] = []
            tables += [root.named_parameters()] if parameters else []
            tables += [root.named_buffers()] if buffers else []
            for table in tables:
                for name, tensor in table:
                    key = f"{number}.{_without_wrappers(name)}"
                    yield Named(key, prefix + name, name.rpartition(".")[0], tensor)

    def _name(self, param: torch.Tensor, otherwise: str) -> tuple[str, str]:
        return self._names.get(id(param), (f"parameter {otherwise}", ""))


def _without_wrappers(name: str) -> str:
    """The name without what wrappers put into it: `module.` (DDP), `_orig_mod.` (compiled)."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def params_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """What an optimizer updates, in its order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def random_states() -> Iterator[tuple[str, bytes]]:
    """The state of every generator that a training program shares, by whose it is."""
    yield "torch", bytes(torch.get_rng_state().numpy())
    if torch.cuda.is_available():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            yield f"cuda:{number}", bytes(state.numpy())
    yield "python", repr(random.getstate()).encode()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        yield "numpy", f"{name} {rest}".encode() + keys.tobytes()


def _roots_of(params: Iterable[torch.Tensor], modules: list[nn.Module]) -> list[nn.Module]:
    """The outermost modules that own these, in their order."""
    owner: dict[int, nn.Module] = {}
    parent: dict[int, nn.Module] = {}
    for module in modules:
        for param in (vars(module).get("_parameters") or {}).values():
            owner.setdefault(id(param), module)
        for child in (vars(module).get("_modules") or {}).values():
            parent.setdefault(id(child), module)
    roots: dict[int, nn.Module] = {}
    for param in params:
        root, climbed = owner.get(id(param)), set[int]()
        while root is not None and id(root) in parent and id(root) not in climbed:
            climbed.add(id(root))
            root = parent[id(root)]
        if root is not None:
            roots.setdefault(id(root), root)
    return list(roots.values())
