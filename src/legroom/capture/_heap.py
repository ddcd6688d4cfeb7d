"""Everything alive in the program that concerns training: tensors, modules, optimizers.

In goes the running process; out comes a `Heap`, found through Python's garbage collector.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from legroom.capture._update import updating_optimizers


@final
@dataclass(frozen=True, slots=True)
class Heap:
    """What was alive at one look. Drop it soon: it keeps everything in it alive.

    Attributes:
        optimizers: Those that update; wrappers of frameworks around them are left out.
        helpers: Learning-rate schedulers and gradient scalers.
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    helpers: list[object] = field(default_factory=list)


def scan_heap() -> Heap:
    """Every live tensor, module and optimizer that Python's garbage collector knows of.

    Cost: one pass over all Python objects, about 0.1 s per million.
    """
    heap = Heap()
    for thing in _all_objects():
        kind = type(thing)  # isinstance() would run __class__ of lazy proxies
        if issubclass(kind, torch.Tensor):
            heap.tensors.append(thing)
        elif issubclass(kind, nn.Module):
            heap.modules.append(thing)
        elif issubclass(kind, Optimizer):
            heap.optimizers.append(thing)
        elif issubclass(kind, LRScheduler | torch.amp.GradScaler):
            heap.helpers.append(thing)
    heap.optimizers[:] = updating_optimizers(heap.optimizers)
    return heap


def _all_objects() -> list[Any]:
    """What the garbage collector tracks, what the program has frozen out of its sight included."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()


def shape_and_dtype(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and type for people; a nested tensor has no one shape."""
    shape = () if tensor.is_nested else tuple(int(size) for size in tensor.shape)
    return shape, str(tensor.dtype).removeprefix("torch.")


def nested_tensors(key: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested containers, with the innermost name on its way."""
    if isinstance(value, torch.Tensor):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from nested_tensors(str(name), item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nested_tensors(key, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from nested_tensors(field.name, getattr(value, field.name))
