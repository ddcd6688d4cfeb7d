"""Switching PyTorch's profiler on and off, quietly, in a program that is not ours.

In goes a `torch.profiler.profile`; it then records, or has recorded. PyTorch allows one at a time:
of two nested ones the outer silently loses its events. See Note [Open scopes].
"""

# Note [Open scopes]
# An operation, or a `record_function`, that begins under one profiler and ends under another writes
# into events of the first, which are freed: PyTorch 2.13 corrupts its memory or crashes. Between
# stopping one profiler and starting the next, every scope that was open must have ended. DDP's
# forward is such a scope, and so is `Optimizer.step` around its hooks.

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import torch


def profiler_is_running() -> bool:
    """Whether somebody else's profiler is on: PyTorch allows one at a time."""
    return bool(torch._C._autograd._profiler_enabled())


def start_profiler(profiler: torch.profiler.profile) -> None:
    """Switch it on."""
    early = torch.empty(1)
    with quiet_stderr():
        profiler.start()
        # The allocator warns, once per process, when a block from before is released.
        del early


def stop_profiler(profiler: torch.profiler.profile) -> None:
    """Switch it off; its events can be read afterwards."""
    with quiet_stderr():
        profiler.stop()


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
