"""The disk tier's file: opened without a name, grown, read, written, closed.

In go pieces of memory and an offset; out comes how many bytes were moved. Everything that the tier
asks of the system goes through here, so tests put disks of their own in its place.
"""

# Note [Past the page cache]
# Reads and writes go past the page cache wherever a file system lets them; `direct=False` is for
# comparison, and for file systems that do not. By `tier_speed` on a virtual machine of 2 cores that
# was busy with other things, ext4, one thread that computes, several runs:
#
#                     out, GB/s    in, GB/s     products of matrices meanwhile
#      direct         1.9 to 4.0   0.9 to 1.5   1.1 to 1.4 times as long
#      page cache     1.1 to 2.4   0.4 to 0.9   1.4 to 1.9 times as long
#
# What is read comes into new memory, whose pages the system must clear first: into memory that was
# there before, direct reads reach 1.5 to 2.7 GB/s.

# Note [What counts as memory]
# 1. What the allocator counts and what the process holds (resident memory, `VmRSS`) fall by a
#    tensor's bytes when it is settled.
# 2. Direct reads and writes leave nothing in the page cache. Through it, pages are written out and
#    dropped chunk by chunk, so it holds no more than a chunk for each thread. The page cache is not
#    part of a process's resident memory, but of what a control group (a container) may take.
# 3. The tier itself takes, once, a buffer of a chunk and two blocks for each thread: 8 MiB with the
#    defaults. The allocator does not see them; resident memory does.
# 4. A file system in memory (tmpfs) is memory, of the machine and of the control group.

from __future__ import annotations

import abc
import contextlib
import ctypes
import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import final

from legroom.errors import TierError, TierSpaceError
from legroom.tiers._extents import ALIGNMENT
from legroom.tiers._folder import VARIABLE

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_SET_ASIDE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_DIRECT = getattr(os, "O_DIRECT", 0)
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_WAIT_WRITE_WAIT = 1 | 2 | 4
"""Of `sync_file_range`: before, write, after."""


class AbstractFile(abc.ABC):
    """A file that the disk tier moves bytes to and from.

    Attributes:
        folder: Where it is, for messages.
        is_direct: Whether memory, offsets and lengths must be multiples of `ALIGNMENT`.
    """

    folder: Path
    is_direct: bool

    @abc.abstractmethod
    def write(self, pieces: Sequence[memoryview], offset: int) -> int:
        """Write pieces of memory one behind the other; how many bytes of them were written."""

    @abc.abstractmethod
    def read(self, pieces: Sequence[memoryview], offset: int) -> int:
        """Read into pieces of memory; how many bytes were there, 0 at the file's end."""

    @abc.abstractmethod
    def drop_pages(self, offset: int, num_bytes: int) -> None:
        """Have these bytes on the disk only; see Note [What counts as memory], rule 2."""

    @abc.abstractmethod
    def grow(self, old_bytes: int, new_bytes: int) -> None:
        """Set space aside up to there.

        Raises:
            TierSpaceError: There is not that much. The file is as it was.
        """

    @abc.abstractmethod
    def free_bytes(self) -> int:
        """What its file system has left for this user."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back to the system."""


@final
class SystemFile(AbstractFile):
    """A real file; nothing leads to it but the descriptor, so it goes with the process.

    Args:
        descriptor: Of the open file.
    """

    def __init__(self, folder: Path, descriptor: int, *, is_direct: bool) -> None:
        self.folder, self.is_direct = folder, is_direct
        self._descriptor = descriptor

    @classmethod
    def open(cls, folder: Path, *, direct: bool | None = None) -> SystemFile:
        """A new file in that folder.

        Args:
            direct: Whether to go past the page cache; None: where the file system can.

        Raises:
            TierError: The folder may not be written to, or direct was asked for and cannot be.
        """
        if direct is not False and _DIRECT:
            with contextlib.suppress(OSError):
                file = cls(folder, _open_nameless(folder, _DIRECT), is_direct=True)
                if _carries_blocks(file):
                    return file
                file.close()
        if direct:
            raise TierError(
                f"files in {str(folder)!r} cannot be read and written past the page cache.\n"
                f"  try: direct=None, or a folder on another file system (folder=, or {VARIABLE})"
            )
        try:
            return cls(folder, _open_nameless(folder, 0), is_direct=False)
        except OSError as error:
            raise TierError(
                f"the disk tier cannot make a file in {str(folder)!r}: {error.strerror}.\n"
                f"  try: a folder that you may write to (folder=, or {VARIABLE})"
            ) from error

    def write(self, pieces: Sequence[memoryview], offset: int) -> int:
        """Write pieces of memory one behind the other; how many bytes of them were written."""
        return os.pwritev(self._descriptor, pieces, offset)

    def read(self, pieces: Sequence[memoryview], offset: int) -> int:
        """Read into pieces of memory; how many bytes were there, 0 at the file's end."""
        return os.preadv(self._descriptor, pieces, offset)

    def drop_pages(self, offset: int, num_bytes: int) -> None:
        """Have these bytes on the disk only; see Note [What counts as memory], rule 2."""
        _write_out(self._descriptor, offset, num_bytes)
        if sys.platform == "linux":
            os.posix_fadvise(self._descriptor, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def grow(self, old_bytes: int, new_bytes: int) -> None:
        """Set space aside up to there."""
        try:
            self._set_aside(old_bytes, new_bytes)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, old_bytes)
            if error.errno not in _FULL:
                raise TierError(
                    f"the disk tier's file in {str(self.folder)!r} cannot grow to {new_bytes} "
                    f"bytes: {error.strerror}.\n  try: another folder (folder=, or {VARIABLE})"
                ) from error
            raise TierSpaceError(
                folder=str(self.folder),
                wanted_bytes=new_bytes - old_bytes,
                free_bytes=self.free_bytes(),
                reason=error.strerror or "",
            ) from error

    def _set_aside(self, old_bytes: int, new_bytes: int) -> None:
        try:
            if sys.platform != "linux":
                raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
            os.posix_fallocate(self._descriptor, old_bytes, new_bytes - old_bytes)
        except OSError as error:
            if error.errno not in _CANNOT_SET_ASIDE:
                raise
            if self.free_bytes() < new_bytes - old_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            os.ftruncate(self._descriptor, new_bytes)

    def free_bytes(self) -> int:
        """What its file system has left for this user."""
        # Also where somebody has removed the folder.
        found = os.statvfs(self._descriptor if self._descriptor >= 0 else self.folder)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Give everything back to the system."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _open_nameless(folder: Path, flags: int) -> int:
    """A file without a name; where the file system knows no such, one that loses it at once."""
    flags |= os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
    if _NAMELESS:
        with contextlib.suppress(OSError):
            return os.open(folder, flags | _NAMELESS, 0o600)
    path = Path(tempfile.mktemp(prefix="legroom-", dir=folder))
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    path.unlink()
    return descriptor


def _carries_blocks(file: SystemFile) -> bool:
    """Whether blocks of `ALIGNMENT` really go there and come back."""
    with mmap.mmap(-1, 2 * ALIGNMENT) as memory:
        memory[:ALIGNMENT] = os.urandom(ALIGNMENT)
        with memoryview(memory) as view, view[:ALIGNMENT] as out, view[ALIGNMENT:] as back:
            return (
                file.write([out], 0) == ALIGNMENT
                and file.read([back], 0) == ALIGNMENT
                and bool(out == back)
            )


def _write_out(descriptor: int, offset: int, num_bytes: int) -> None:
    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except AttributeError:
        os.fsync(descriptor)
        return
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if call(descriptor, offset, num_bytes, _WAIT_WRITE_WAIT) < 0:
        os.fsync(descriptor)
