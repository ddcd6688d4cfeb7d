"""Memory by its address: a view of it for the system's calls, a copy without the interpreter lock.

In go an address and a number of bytes; nothing here keeps memory alive or looks whether it is.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import final

from legroom.tiers._extents import ALIGNMENT

_WRITABLE = 0x200
"""`PyBUF_WRITE` of Python's C interface."""

_view_of_memory = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))

copy_memory: Callable[[int, int, int], object] = ctypes.memmove
"""To an address, from an address, so many bytes; other threads of Python run meanwhile."""


def memory_at(address: int, num_bytes: int) -> memoryview:
    """A view that may be written to."""
    view: memoryview = _view_of_memory(address, num_bytes, _WRITABLE)
    return view


@final
class Buffer:
    """Aligned memory of one thread: room for a chunk, and for the two blocks at its edges.

    Attributes:
        address: Of the room for a chunk.
        head_address, tail_address: Of the two blocks.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._memory = mmap.mmap(-1, chunk_bytes + 2 * ALIGNMENT)
        first = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(first)
        del first
        self.head_address = self.address + chunk_bytes
        self.tail_address = self.head_address + ALIGNMENT
