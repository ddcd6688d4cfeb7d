"""Ties every operation to the source line and module that asked for it, while it runs.

In go PyTorch's function mode and global module hooks; out come scopes in the profiler's tree. A
dispatch mode would see more, but it switches off autograd's in-place accumulation and so changes
the very peak that is being measured; a function mode sits above autograd and changes nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from legroom.capture import ModulePaths, SiteTable
from legroom.meter._scopes import Tag, open_scope

# Calls that compute nothing: they get no scope of their own, which keeps the overhead down.
_QUIET = frozenset(
    "__get__ __set__ __delete__ size dim stride numel is_floating_point is_complex data_ptr "
    "storage_offset is_contiguous element_size untyped_storage get_device ndimension "
    "requires_grad_ is_grad_enabled _record_function_enter_new "
    "_record_function_exit._RecordFunction __hash__ __len__ __repr__ register_hook "
    "is_inference is_nonzero __format__".split()
)


def _loss_functions() -> frozenset[str]:
    """Names of torch's loss functions, taken from `torch.nn.functional` itself."""
    return frozenset(
        name
        for name in dir(nn.functional)
        if not name.startswith("_") and ("loss" in name or name in _LOSSES_BY_OTHER_NAMES)
    )


_LOSSES_BY_OTHER_NAMES = frozenset(
    {
        "cross_entropy",
        "linear_cross_entropy",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "kl_div",
    }
)


def _transform_is_running() -> bool:
    """Whether this is inside torch.func's vmap, grad or another of its transforms."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class _LineMode(TorchFunctionMode):
    """Opens a scope with the caller's line around every torch function."""

    def __init__(self, sites: SiteTable, current_module: Callable[[], str]) -> None:
        super().__init__()
        self._here = sites.here
        self._module = current_module
        self._losses = _loss_functions()
        self.saw_transform = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _QUIET:
            return func(*args, **(kwargs or {}))
        if _transform_is_running():
            self.saw_transform = True
        tag = Tag.LOSS if name in self._losses else Tag.SITE
        with open_scope(tag, self._here(self._module())):
            return func(*args, **(kwargs or {}))


class LineHooks:
    """Function mode and module hooks that write lines and modules into the event stream."""

    def __init__(self, sites: SiteTable, names: ModulePaths) -> None:
        self._sites = sites
        self._names = names
        self._stack: list[tuple[nn.Module, str, Any]] = []
        self._thread = 0
        self._mode = _LineMode(sites, self.current_module)

    @property
    def saw_transform(self) -> bool:
        """Whether a transform of torch.func was seen at work."""
        return self._mode.saw_transform

    def current_module(self) -> str:
        """Path of the innermost module that is running; `""` outside all of them."""
        return self._stack[-1][1] if self._stack else ""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have the hooks on while the context is open, for modules that run on this thread."""
        self._thread = threading.get_ident()
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with self._mode:
                yield
        finally:
            for handle in handles:
                handle.remove()
            while self._stack:
                self._stack.pop()[2].__exit__(None, None, None)

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        """Have the function mode on inside a call that it intercepted itself.

        `Tensor.backward` is a torch function: while it runs, the mode is off, and what a
        checkpointed block computes again would have no line.
        """
        overrides: Any = torch.overrides
        if self._mode in overrides._get_current_function_mode_stack():
            yield
            return
        with self._mode:
            yield

    def _enter(self, module: nn.Module, args: object) -> None:
        # Global hooks fire on every thread; scopes nest within one.
        if threading.get_ident() != self._thread:
            return
        if not self._stack:
            self._names.add_root(module)
        path = self._names.path(module)
        tag = Tag.MODULE if self._stack else Tag.ROOT
        scope = open_scope(tag, self._sites.here(path))
        scope.__enter__()
        self._stack.append((module, path, scope))

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        if threading.get_ident() != self._thread:
            return
        # A forward hook of the user's that raised may have skipped ours: unwind to this module.
        while any(entered is module for entered, _, _ in self._stack):
            inner, _, scope = self._stack.pop()
            scope.__exit__(None, None, None)
            if inner is module:
                break
