"""The state of a training program, kept outside PyTorch, and put back as it was.

In go models and optimizers; out comes a `Snapshot`. Tensors are kept as bytes of Python's, so that
they do not count as memory of the step.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer


@final
class Snapshot:
    """Parameters, buffers, gradients, optimizer state, schedulers and random states at one moment.

    Args:
        models: Whose parameters, buffers and gradients to keep.
        optimizers: Whose parameters, state and settings to keep.
        helpers: Learning-rate schedulers and gradient scalers.

    Limits: attributes of modules that are no tensors are not kept, nor is what a step keeps
    elsewhere: a counter, an iterator over batches.
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        helpers: Iterable[Any] = (),
    ) -> None:
        tensors: dict[int, torch.Tensor] = {}
        for model in models:
            for tensor in (*model.parameters(), *model.buffers()):
                tensors.setdefault(id(tensor), tensor)
        optimizers = tuple(optimizers)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                tensors.update((id(tensor), tensor) for tensor in group["params"])
        self._tensors = [(tensor, _Stored(tensor)) for tensor in tensors.values()]
        self._gradients = [(tensor, _stored(tensor.grad)) for tensor in tensors.values()]
        self._optimizers = [(each, _state_of(each), _settings_of(each)) for each in optimizers]
        self._helpers = [(each, copy.deepcopy(each.state_dict())) for each in helpers]
        self._restore_random = remember_random()

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back. May be called as often as one likes."""
        for tensor, stored in self._tensors:
            stored.copy_to(tensor)
        for tensor, gradient in self._gradients:
            tensor.grad = None if gradient is None else gradient.make()
        for optimizer, state, settings in self._optimizers:
            optimizer.state.clear()
            optimizer.state.update({param: _made(kept) for param, kept in state})
            for group, kept in zip(optimizer.param_groups, settings, strict=True):
                group.update(copy.deepcopy(kept))
        for helper, state in self._helpers:
            helper.load_state_dict(copy.deepcopy(state))
        self._restore_random()


def remember_buffers(module: nn.Module) -> Callable[[], None]:
    """A function that puts the module's buffers and all random states back as they are now."""
    stored = [(buffer, _Stored(buffer)) for buffer in module.buffers() if _is_plain(buffer)]
    restore_random = remember_random()

    @torch.no_grad()
    def restore() -> None:
        for buffer, kept in stored:
            kept.copy_to(buffer)
        restore_random()

    return restore


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Buffer) and tensor.layout is torch.strided


class _Stored:
    """A tensor as bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        self._shape, self._strides = tuple(tensor.shape), tensor.stride()
        self._dtype, self._device = tensor.dtype, tensor.device
        flat = tensor.cpu().contiguous().reshape(-1)
        self._bits = bytearray(flat.view(torch.uint8).numpy().tobytes())

    def copy_to(self, tensor: torch.Tensor) -> None:
        """Give a tensor the kept values."""
        tensor.detach().copy_(self._values())

    def make(self) -> torch.Tensor:
        """A new tensor with the kept values."""
        made = torch.empty_strided(
            self._shape, self._strides, dtype=self._dtype, device=self._device
        )
        made.copy_(self._values())
        return made

    def _values(self) -> torch.Tensor:
        if not self._bits:
            return torch.empty(self._shape, dtype=self._dtype)
        flat = torch.frombuffer(self._bits, dtype=torch.uint8).view(self._dtype)
        return flat.reshape(self._shape)


def _stored(tensor: torch.Tensor | None) -> _Stored | None:
    return None if tensor is None else _Stored(tensor)


def _state_of(optimizer: Optimizer) -> list[tuple[torch.Tensor, Any]]:
    return [(param, _kept(state)) for param, state in optimizer.state.items()]


def _settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Stored(value)
    if isinstance(value, dict):
        return {name: _kept(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_kept(item) for item in value)
    return copy.deepcopy(value)


def _made(value: Any) -> Any:
    if isinstance(value, _Stored):
        return value.make()
    if isinstance(value, dict):
        return {name: _made(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_made(item) for item in value)
    return copy.deepcopy(value)


def remember_random() -> Callable[[], None]:
    ours, python = bytes(torch.get_rng_state().numpy()), random.getstate()
    has_cuda = torch.cuda.is_available()
    cuda = torch.cuda.get_rng_state_all() if has_cuda else []
    numpy: Any = sys.modules.get("numpy")
    numpys = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(ours), dtype=torch.uint8))
        random.setstate(python)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(numpys)

    return restore


@contextlib.contextmanager
def everything_put_back(
    module: nn.Module, parameters: Sequence[nn.Parameter]
) -> Iterator[Callable[[], None]]:
    """What steps on trial change beside the parameters is put back: gradients, buffers, random
    states. Yields what does so in between, with gradients gone."""
    gradients = [param.grad for param in parameters]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    restore_random = remember_random()

    def put_back() -> None:
        for param in parameters:
            param.grad = None
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
        restore_random()

    try:
        yield put_back
    finally:
        put_back()
        for param, gradient in zip(parameters, gradients, strict=True):
            param.grad = gradient
