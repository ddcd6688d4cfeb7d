"""Switching PyTorch's profiler on and off, quietly, in a program that is not ours.

In goes a `torch.profiler.profile`; it then records, or has recorded. PyTorch allows one at a time:
of two nested ones the outer silently loses its events. See Note [Open scopes] and Note [Abandoned].
"""

# Note [Open scopes]
# An operation, or a `record_function`, that begins under one profiler and ends under another writes
# into events of the first, which are freed: PyTorch 2.13 corrupts its memory or crashes. Between
# stopping one profiler and starting the next, every scope that was open must have ended. DDP's
# forward is such a scope, and so is `Optimizer.step` around its hooks.

# Note [Abandoned]
# A program may end, or throw a fitted model away, in the middle of a measured step. A profiler that
# is on while the process ends crashes it (PyTorch 2.13), so ours is switched off before. One whose
# owner is gone is switched off by the next who asks, not when the owner goes: that may be inside
# a backward pass, which keeps the profiler's state and puts it back when it ends.

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from legroom.capture import is_in_backward


@final
@dataclass(frozen=True, slots=True)
class _Running:
    """A profiler of ours that is on: whose, and on which thread."""

    profiler: torch.profiler.profile
    owner: weakref.ref[object]
    thread: int


_running: list[_Running] = []
"""Ours that are on; one per thread at most."""


def profiler_is_running() -> bool:
    """Whether a profiler is on: PyTorch allows one at a time. See Note [Abandoned]."""
    if not is_in_backward():
        _stop([each for each in _running if each.owner() is None])
    return bool(torch._C._autograd._profiler_enabled())


def start_profiler(profiler: torch.profiler.profile, *, owner: object = None) -> None:
    """Switch it on; `owner` is who will switch it off, unless that is certain."""
    early = torch.empty(1)
    with quiet_stderr():
        profiler.start()
        # The allocator warns, once per process, when a block from before is released.
        del early
    _running.append(_Running(profiler, weakref.ref(owner or profiler), threading.get_ident()))


def stop_profiler(profiler: torch.profiler.profile) -> None:
    """Switch it off; its events can be read afterwards."""
    _running[:] = [each for each in _running if each.profiler is not profiler]
    with quiet_stderr():
        profiler.stop()


def _stop(found: list[_Running]) -> None:
    """Switch off those of this thread: a profiler hears one thread, and only that can stop it."""
    for each in [*found]:
        if each.thread == threading.get_ident():
            with contextlib.suppress(RuntimeError):
                stop_profiler(each.profiler)


atexit.register(_stop, _running)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep what PyTorch's C++ writes to stderr when a profiler starts or stops off the terminal."""
    try:
        sys.stderr.flush()
        saved, silence = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except (OSError, ValueError, AttributeError):  # no such descriptor: nothing to keep quiet
        yield
        return
    try:
        os.dup2(silence, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(silence)
