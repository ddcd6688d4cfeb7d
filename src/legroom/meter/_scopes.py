"""Names that legroom writes into PyTorch's own event stream, so that order needs no clock.

A scope opened here becomes an event in the profiler's tree: what happens inside it is its child.
In goes a tag and a number; out, after the run, comes the same pair parsed from the event's name.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

from legroom.errors import TorchInterfaceError

_PREFIX = "legroom|"


class Tag(enum.Enum):
    """What a scope means; the number says which one."""

    SITE = "site"  # a call from one source line
    MODULE = "module"  # a module's forward, number = site of the call
    ROOT = "root"  # the outermost module's forward
    BACKWARD = "backward"  # one call into the autograd engine
    OPTIMIZER = "optimizer"  # one optimizer step
    LOSS = "loss"  # a call to a loss function, number = site
    SNAPSHOT = "snapshot"  # a moment at which legroom looked; what it saw is kept under the number
    FREED = "freed"  # a storage from before the recording died
    PIECE = "piece"  # a run of a planned piece; what it was is kept under the number
    BOUNDARY = "boundary"  # a training step ended
    OVERHEAD = "overhead"  # legroom's own work


def open_scope(tag: Tag, number: int = 0) -> Any:
    """A context manager that marks an interval in the profiler's event tree; about 1 µs."""
    # A record_function whose cost is paid in C++; torch.profiler.record_function takes 10 µs.
    try:
        return torch._C._profiler._RecordFunctionFast(f"{_PREFIX}{tag.value}|{number}")
    except AttributeError:
        raise TorchInterfaceError(
            "torch._C._profiler._RecordFunctionFast", tested="2.13.0"
        ) from None


def mark(tag: Tag, number: int = 0) -> None:
    """Mark a moment in the profiler's event tree."""
    with open_scope(tag, number):
        pass


def parse_scope(name: str) -> tuple[Tag, int] | None:
    """The tag and number in an event's name; None if legroom did not write it."""
    if not name.startswith(_PREFIX):
        return None
    _, tag, number = name.split("|")
    return Tag(tag), int(number)
