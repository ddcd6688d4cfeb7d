"""Finds the modules that a program trains, while it runs, and fits each at its first call.

In comes every call of a module; a call from outside all others, with gradients, makes its module
fitted right before it proceeds. See Note [Adoption].
"""

# Note [Adoption]
# 1. `nn.Module.__call__` is replaced while the door is open, and as PyTorch made it inside every
#    call that was let in: TorchDynamo takes its own path only through the original.
# 2. What is called from outside all others is adopted, whatever it is: a model, a part of one that
#    a Lightning module calls. Wrappers that only pass the call on (DDP) are looked through.
# 3. What has no parameters (a loss), nothing to differentiate, or is called inside a backward pass
#    or under saved-tensor hooks is not adopted.
# 4. Where optimizers are known, a module is adopted whose parameters one of them owns, or that
#    hands gradients on; until one is, a module whose parameters have gradients. So a forward pass
#    in an `__init__`, or before the optimizer is made, adopts nothing.
# 5. Some programs wrap their model anew in every step. A few modules of one class are adopted, and
#    further ones as long as planning has time left: looking at one takes longer than a small step.
# 6. A program that drops a model can: once the door is closed we hold it weakly.

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from legroom.capture import ModulePaths, is_in_backward, saving_is_hooked, scan_heap
from legroom.engine._fit import Fitted, fitted_around, fitted_within
from legroom.engine._plain_calls import NEW_SHAPES
from legroom.engine._run_report import RunReport
from legroom.errors import UsageError

_MOST_OF_A_CLASS = 4
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@final
class Adopted:
    """A module that was fitted because the program called it.

    Attributes:
        name: Its path in the model that it is part of; its class, where it is part of none.
    """

    def __init__(self, name: str, fitted: Fitted) -> None:
        self.name = name
        self._held: Fitted | None = fitted
        self._fitted = weakref.ref(fitted)
        self._last_report: RunReport | None = None
        self._num_plain = fitted.plain_calls.counts

    @property
    def report(self) -> RunReport | None:
        """What was planned and measured so far; None before it is planned."""
        fitted = self._fitted()
        if fitted is not None:
            with contextlib.suppress(UsageError):  # not planned yet
                self._last_report = fitted.report()
        return self._last_report

    @property
    def plan(self) -> Any:
        """The plan at work; None before there is one, and after the model is gone."""
        fitted = self._fitted()
        return None if fitted is None else fitted.plan

    @property
    def why_plain(self) -> tuple[str, ...]:
        """Why calls of it run as they are, where some do; known when the model is gone, too."""
        return tuple(self._num_plain)

    def let_go(self) -> None:
        """See Note [Adoption], rule 6."""
        self._last_report = self.report
        self._held = None

    def undo(self) -> None:
        """Leave the module as it was."""
        fitted = self._fitted()
        self._last_report = self.report
        if fitted is not None:
            fitted.undo()


@final
class Adoption:
    """Fits what a program calls; see Note [Adoption].

    Args:
        fit: Makes a module fitted, given its name.
        leave: Names of classes and paths of modules that stay as they are.
        owned: Says what the optimizers of the program update so far; None: not to be asked.
        has_time: Whether planning has time left; see rule 5.

    Attributes:
        adopted: What was fitted, in order.
        left: What was not although it trains, and why.
    """

    def __init__(
        self,
        fit: Callable[[nn.Module, str], Fitted],
        *,
        leave: tuple[str, ...] = (),
        owned: Callable[[], list[torch.Tensor]] | None = None,
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        self._has_time = has_time
        self._num_adopted: Counter[type] = Counter()
        self._owned = owned
        self.adopted: list[Adopted] = []
        self.left: Counter[tuple[str, str]] = Counter()
        self.is_open = False
        self._fit = fit
        self._leave = leave
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._stay_plain: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._original: Any = nn.Module.__call__
        self._num_inside = 0
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Adopt while the context is open; in the end every module is as it was."""
        self.open()
        try:
            yield
        finally:
            self.close()
            for each in self.adopted:
                each.undo()

    def open(self) -> None:
        """Look at every call from here on."""
        with self._lock:
            self.is_open = True
            self._put_up()

    def close(self) -> None:
        """Look at no more calls; what is fitted stays so."""
        with self._lock:
            self.is_open = False
            self._take_down()
        for each in self.adopted:
            each.let_go()

    # The door ------------------------------------------------------------------------------------

    def _put_up(self) -> None:
        module_class: Any = nn.Module
        if self.is_open and not self._num_inside and not _is_ours(module_class.__call__):
            self._original = original = module_class.__call__

            def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling():
                    return original(module, *args, **kwargs)
                return self._pass(original, module, args, kwargs)

            call.legroom_adopts = True  # type: ignore[attr-defined]
            module_class.__call__ = call

    def _take_down(self) -> None:
        module_class: Any = nn.Module
        if _is_ours(module_class.__call__):
            module_class.__call__ = self._original

    def _pass(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if (
            not self.is_open
            or isinstance(module, _WRAPPERS)
            or not self._trains(module, args, kwargs)
        ):
            return original(module, *args, **kwargs)
        with self._inside():
            self._adopt(module)
            return original(module, *args, **kwargs)

    def _trains(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call keeps something for a backward pass of its own; see Note [Adoption]."""
        if not torch.is_grad_enabled():
            return False
        params = list(module.parameters())
        trained = [param for param in params if param.requires_grad]
        if trained and self._owned is not None:
            owned = {id(tensor) for tensor in self._owned()}
            if owned and any(id(param) in owned for param in trained):
                return True
            if not owned and any(param.grad is not None for param in trained):
                return True
        elif trained:
            return True
        return bool(params) and any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for leaf in pytree.tree_leaves((args, kwargs))
        )

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """See Note [Adoption], rule 1."""
        with self._lock:
            self._num_inside += 1
            self._take_down()
        try:
            yield
        finally:
            with self._lock:
                self._num_inside -= 1
                self._put_up()

    def _adopt(self, module: nn.Module) -> None:
        if module in self._known or module in self._stay_plain:
            return
        why_not = _why_not()
        if why_not:
            self.left[type(module).__name__, why_not] += 1
            return
        if self._num_adopted[type(module)] >= _MOST_OF_A_CLASS and not self._has_time():
            self._stay_plain.add(module)
            self.left[type(module).__name__, NEW_SHAPES] += 1
            return
        name = self._name(module)
        if {name, type(module).__name__, type(_unwrapped(module)).__name__} & {*self._leave}:
            self._stay_plain.add(module)
            self.left[name, "left as it is: --leave"] += 1
            return
        self._known.add(module)
        whole = fitted_around(module)
        if whole is not None:
            self.left[name, "called alone, although part of what is planned"] += 1
            return
        for part in fitted_within(module):
            part.undo()
        fitted = self._fit(module, name)
        fitted.install()
        self._num_adopted[type(module)] += 1
        self.adopted.append(Adopted(name, fitted))

    def _name(self, module: nn.Module) -> str:
        paths = ModulePaths()
        paths.learn_owners(scan_heap().modules)
        paths.add_root(module)
        path = paths.path(module)
        path = path.removeprefix("module.") if path != "module" else type(module).__name__
        path = type(_unwrapped(module)).__name__ if path == type(module).__name__ else path
        taken = {each.name for each in self.adopted}
        unique = (path, *(f"{path}_{number}" for number in range(1, len(taken) + 1)))
        return next(name for name in unique if name not in taken)


def _is_ours(call: Any) -> bool:
    return hasattr(call, "legroom_adopts")


def _unwrapped(module: nn.Module) -> nn.Module:
    """The model that torch.compile was called on."""
    return dict(module.named_children()).get("_orig_mod", module)


def _why_not() -> str:
    if is_in_backward():
        return "called during a backward pass, as by checkpointing"
    if saving_is_hooked():
        return "called under saved-tensor hooks, as by torch.utils.checkpoint"
    return ""
