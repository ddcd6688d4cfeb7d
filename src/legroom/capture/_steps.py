"""Finds the training steps of a script that knows nothing of legroom.

In go PyTorch's global optimizer hooks and the autograd engine's calls; out comes one call of
`on_boundary` at the end of each step. A step ends when the optimizer that steps most rarely has
stepped: with gradient accumulation that is every few backward passes, with a GAN once all its
optimizers have had their turn.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from legroom.capture._autograd import BackwardCall, observe_backward
from legroom.capture._children import Children
from legroom.capture._moments import StepCount
from legroom.capture._script import StopScript

_PATIENCE = 10
"""Steps of one optimizer to wait for others that were made but have not stepped yet."""


@contextlib.contextmanager
def kept_out_of_the_script(
    finder: StepFinder, on_failure: Callable[[Exception], None]
) -> Iterator[None]:
    """Keep a failure of legroom's own out of the script: end it; whoever asked reports it."""
    try:
        yield
    except Exception as error:
        on_failure(error)
        finder.retire()
        raise StopScript from error


class AbstractTrainingObserver:
    """Is told what a training loop does, as it does it; this one hears and does nothing."""

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""

    def optimizer_starts(self, optimizer: Optimizer) -> None:
        """An optimizer step begins."""

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """An optimizer step has ended."""

    def around_backward(self, call: BackwardCall) -> contextlib.AbstractContextManager[object]:
        """A context to run one call into the autograd engine in."""
        return contextlib.nullcontext()


class StepFinder:
    """Watches a running program and reports the end of every training step.

    Where no optimizer was ever made, a step ends with its `backward()`.

    Args:
        on_boundary: Called at the end of each step.
        on_start: Called once, when the first optimizer is made: the model exists by then, and the
            first forward pass has usually not begun.

    Attributes:
        observer: Who else is told of optimizer steps and backward passes; may be replaced.
        steps: Those that have ended.
        children: Processes that the program has started.
    """

    def __init__(
        self, on_boundary: Callable[[], None], *, on_start: Callable[[], None] | None = None
    ) -> None:
        self.observer = AbstractTrainingObserver()
        self.steps = StepCount()
        self.children = Children()
        self._on_boundary = on_boundary
        self._on_start = on_start
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._step_counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._anchor: weakref.ref[Optimizer] | None = None
        self._call_depth = 0
        self._backwards_at_entry = 0
        self._hooks = contextlib.ExitStack()
        self._is_retired = False
        self._is_paused = False
        self.num_backwards = 0
        self.num_optimizer_steps = 0
        self.num_optimizers = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the context is open; everything is taken off again at its end."""
        with self._hooks as hooks:
            hooks.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            hooks.callback(register_optimizer_step_post_hook(self._after_step).remove)
            hooks.enter_context(self.children.noticed())
            hooks.enter_context(self._noticing_optimizers())
            hooks.enter_context(observe_backward(self._around_backward))
            hooks.enter_context(self._noticing_calls_of_backward())
            yield

    def owned_tensors(self) -> list[torch.Tensor]:
        """Everything that the optimizers made so far update."""
        return [
            param
            for optimizer in self._made
            for group in optimizer.param_groups
            for param in group["params"]
        ]

    def retire(self) -> None:
        """Report nothing more, and take every hook off at the next safe moment.

        PyTorch walks its table of optimizer hooks while it calls us, so it must not change then:
        the hooks go when the next backward pass begins.
        """
        self._is_retired = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Hear nothing while the context is open: what runs in it is no training of the script."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @property
    def _is_deaf(self) -> bool:
        return self._is_retired or self._is_paused

    @contextlib.contextmanager
    def _noticing_optimizers(self) -> Iterator[None]:
        optimizer_class: Any = Optimizer
        original = optimizer_class.__init__

        @functools.wraps(original)
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self._is_paused:
                return
            self.num_optimizers += 1
            self._made.add(optimizer)
            self.observer.optimizer_made(optimizer)
            if self.num_optimizers == 1 and self._on_start is not None:
                self._on_start()

        optimizer_class.__init__ = init
        try:
            yield
        finally:
            optimizer_class.__init__ = original

    @contextlib.contextmanager
    def _noticing_calls_of_backward(self) -> Iterator[None]:
        """Know when the user's own call of backward has returned.

        The engine's return is too early to end a step: PyTorch is still inside the call then,
        with its function modes put aside, and they must not change under it.
        """
        places: list[tuple[Any, Any]] = [
            (torch.Tensor, torch.Tensor.backward),
            (torch.autograd, torch.autograd.backward),
        ]
        for owner, original in places:
            owner.backward = self._counting_calls(original)
        try:
            yield
        finally:
            for owner, original in places:
                owner.backward = original

    def _counting_calls(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._call_depth == 0:
                self._backwards_at_entry = self.num_backwards
            self._call_depth += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._call_depth -= 1
            if self._call_depth == 0:
                self._backward_returned()
            return result

        return backward

    def _backward_returned(self) -> None:
        has_run = self.num_backwards > self._backwards_at_entry
        has_optimizer = self.num_optimizers or self.num_optimizer_steps
        if has_run and not has_optimizer and not self._is_deaf:
            self._step_ends()

    def _before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if not self._is_deaf:
            self.observer.optimizer_starts(optimizer)

    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._is_deaf:
            return
        self.observer.optimizer_ends(optimizer)
        self.num_optimizer_steps += 1
        count = self._step_counts[optimizer] = self._step_counts.get(optimizer, 0) + 1
        anchor = self._anchor() if self._anchor is not None else None
        if anchor is None:
            waiting = set(self._made) - set(self._step_counts)
            if waiting and count < _PATIENCE:
                return
            anchor = min(self._step_counts, key=lambda each: self._step_counts[each])
            if self._step_counts[anchor] == count:
                anchor = optimizer  # all equally often: the one that closes the round
            self._anchor = weakref.ref(anchor)
        if optimizer is anchor:
            self._step_ends()

    def _step_ends(self) -> None:
        self.steps.step_ends()
        self._on_boundary()

    @contextlib.contextmanager
    def _around_backward(self, call: BackwardCall) -> Iterator[None]:
        if self._is_retired:
            self._hooks.close()
            yield
            return
        if self._is_paused:
            yield
            return
        with self.observer.around_backward(call):
            yield
        self.num_backwards += call.accumulates
