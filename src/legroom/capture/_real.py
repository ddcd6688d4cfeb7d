"""Running operations for real in the middle of a program that only pretends to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from legroom.errors import TorchInterfaceError


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Operations inside run for real, whatever modes (fake tensors, recorders) are on outside."""
    try:
        from torch.utils._python_dispatch import _disable_current_modes as disable
    except ImportError:
        raise TorchInterfaceError(
            "torch.utils._python_dispatch._disable_current_modes", tested="2.13.0"
        ) from None
    with disable():
        yield
