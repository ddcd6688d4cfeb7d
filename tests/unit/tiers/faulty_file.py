"""A disk that does what a test wants: fails, stops early, is slow, is full."""

import errno
import os
import threading

from legroom.errors import TierSpaceError
from legroom.tiers import AbstractFile, SystemFile


class FaultyFile(AbstractFile):
    """A real file with faults in front of it.

    Attributes:
        on_write, on_read: Called with pieces and offset before the real one; may raise, or return
            how many bytes to move at most.
        gate: Reads and writes wait until it is open.
        limit_bytes: The file does not grow beyond it.
        moves: Every read and write, in order: `("write", offset)`.
    """

    def __init__(self, folder, *, direct=None, limit_bytes=None, full=errno.ENOSPC):
        self._inner = SystemFile.open(folder, direct=direct)
        self.folder, self.is_direct = self._inner.folder, self._inner.is_direct
        self.on_write = self.on_read = None
        self.gate = threading.Event()
        self.gate.set()
        self.limit_bytes, self.full = limit_bytes, full
        self.moves = []
        self.num_grown = 0

    def write(self, pieces, offset):
        return self._move("write", self.on_write, self._inner.write, pieces, offset)

    def read(self, pieces, offset):
        return self._move("read", self.on_read, self._inner.read, pieces, offset)

    def _move(self, verb, fault, move, pieces, offset):
        self.moves.append((verb, offset))
        assert self.gate.wait(60)
        most = fault(pieces, offset) if fault is not None else None
        return move(pieces if most is None else first_bytes(pieces, most), offset)

    def drop_pages(self, offset, num_bytes):
        self._inner.drop_pages(offset, num_bytes)

    def grow(self, old_bytes, new_bytes):
        if self.limit_bytes is not None and new_bytes > self.limit_bytes:
            raise TierSpaceError(
                folder=str(self.folder),
                wanted_bytes=new_bytes - old_bytes,
                free_bytes=self.limit_bytes - old_bytes,
                reason=os.strerror(self.full),
            ) from OSError(self.full, os.strerror(self.full))
        self.num_grown += 1
        self._inner.grow(old_bytes, new_bytes)

    def free_bytes(self):
        return self._inner.free_bytes()

    def truncate(self, num_bytes):
        os.ftruncate(self._inner._descriptor, num_bytes)

    def close(self):
        self.gate.set()
        self._inner.close()


def first_bytes(pieces, count):
    kept = []
    for piece in pieces:
        kept.append(piece[:count])
        count -= len(kept[-1])
        if count <= 0:
            break
    return kept


def failing(number, *, times=None):
    """A fault that raises this error, always or so many times."""
    left = [times]

    def fault(pieces, offset):
        if left[0] is not None:
            if left[0] == 0:
                return
            left[0] -= 1
        raise OSError(number, os.strerror(number))

    return fault
