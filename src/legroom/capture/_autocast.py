"""Whether this program calls backward under autocast, which decides how backward is traced.

In come the autocast settings of the moment; out comes what AOTAutograd is told. PyTorch's
documentation has backward outside of `with torch.autocast`; then its operations run in the types
that forward left them. Inside, they are cast once more. At the time of the first forward nobody can
know: the former is assumed, until a backward shows otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, final

import torch


@final
class BackwardHabit:
    """What was seen of the backward passes of this process.

    Attributes:
        is_under_autocast: Whether one was called under autocast.
    """

    def __init__(self) -> None:
        self.is_under_autocast = False

    def note_backward(self) -> bool:
        """A backward pass begins; whether it is the first to be under autocast."""
        if self.is_under_autocast or not autocast_settings():
            return False
        self.is_under_autocast = True
        return True

    @contextlib.contextmanager
    def like_the_loop(self) -> Iterator[None]:
        """Inside, a backward of ours is what the program's own would be, where forward is called.

        That place is under autocast if the model is.
        """
        with contextlib.ExitStack() as stack:
            for device, _ in () if self.is_under_autocast else autocast_settings():
                stack.enter_context(torch.autocast(device, enabled=False))
            yield

    @property
    def setting(self) -> str:
        """In the words of `torch._functorch.config.backward_pass_autocast`."""
        return "same_as_forward" if self.is_under_autocast else "off"


backward_habit = BackwardHabit()


def autocast_settings() -> tuple[Any, ...]:
    """Devices for which autocast is on now, each with its type; empty: none."""
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )
