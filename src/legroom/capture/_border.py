"""The border of a script: the moment at which its parameters meet data for the first time.

In go the calls of modules in a running program; out comes one call of `on_border`, right before the
first that trains. Everything before it, loading data among it, is no part of a training step. See
Note [Border].
"""

# Note [Border]
# 1. A call trains if gradients are on, its module is in training mode, and an optimizer owns one of
#    its parameters or of the tensors that it is given. So a forward pass in an `__init__`, a check
#    before training and an evaluation are on this side of the border.
# 2. Where no optimizer of PyTorch's was made until a backward pass has ended, the next call of a
#    module with parameters that require gradients is taken for one that trains.
# 3. What trains without such a call (in evaluation mode, without modules) has its border where its
#    first step has ended: whoever sees that says so.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from legroom.capture._steps import StepFinder


@final
class Border:
    """Watches a running program for its border; see Note [Border].

    Args:
        finder: Knows the optimizers and backward passes so far.
        on_border: Called once, right before the first call that trains.

    Attributes:
        is_passed: Whether it was called.
    """

    def __init__(self, finder: StepFinder, on_border: Callable[[], None]) -> None:
        self.is_passed = False
        self._finder = finder
        self._on_border = on_border
        self._original: Any = nn.Module.__call__
        self._depth = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the context is open."""
        module_class: Any = nn.Module
        self._original = original = module_class.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.is_passed:
                return original(module, *args, **kwargs)
            if not self._depth and self._trains(module, args, kwargs):
                self.passes()
                return original(module, *args, **kwargs)
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        module_class.__call__ = call
        try:
            yield
        finally:
            module_class.__call__ = original

    def passes(self) -> None:
        """The border is here; nothing happens where it was passed before."""
        if self.is_passed:
            return
        self.is_passed = True
        module_class: Any = nn.Module
        module_class.__call__ = self._original  # TorchDynamo takes its own path only through it
        self._on_border()

    def _trains(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not torch.is_grad_enabled() or not module.training:
            return False
        trained = (param for param in module.parameters() if param.requires_grad)
        owned = {id(tensor) for tensor in self._finder.owned_tensors()}
        if owned:
            given = (
                leaf
                for leaf in pytree.tree_leaves((args, kwargs))
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            )
            return any(id(tensor) in owned for tensors in (trained, given) for tensor in tensors)
        return self._finder.num_backwards > 0 and any(True for _ in trained)
