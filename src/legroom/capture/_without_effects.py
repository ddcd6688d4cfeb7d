"""Keeps a copy of a process from writing, sending or moving anything outside of itself.

In goes a process that is about to run a part of the user's program on made-up numbers; from then on
what it opens for writing goes to a folder of its own, what it sends goes nowhere, and files that it
reads have positions of their own. See Note [Without effects].
"""

# Note [Without effects]
# 1. Open descriptors are shared with the original. Files that are read are opened anew at the same
#    position; what is written to, pipes and sockets lead to nowhere.
# 2. What is opened for writing is a file of the same content in a scratch folder, and is found
#    there when it is read again. Folders that are made and files that are removed or moved are not.
# 3. `torch.save` writes nothing: it opens files in C++, and weights have no memory here.
# 4. Below all that Landlock, where the kernel has it (Linux 5.13), refuses to write anywhere else:
#    what libraries in other languages open, and child processes. They see "Permission denied".
#    Compilers write their intermediate files to the scratch folder (TMPDIR).
# 5. None of it can be taken back: it is for processes that end afterwards.

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from legroom.cache import cache_folder

_WRITES = frozenset("wax+")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg", "os.kill", "os.killpg")


def leave_no_effects(scratch: str, *, keep: tuple[int, ...] = ()) -> None:
    """From here on this process changes nothing outside of itself; see Note [Without effects].

    Args:
        scratch: An empty folder, which somebody else removes.
        keep: Descriptors that stay as they are.
    """
    scratch = os.path.realpath(scratch)
    with contextlib.suppress(OSError):  # without one, nothing is kept there
        cache_folder().mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    _part_with_descriptors({*keep})
    _Writes(scratch).install()
    sys.addaudithook(_refuse_to_send)
    torch.save = _save_nothing
    allowed = (scratch, str(cache_folder()), "/dev/null", "/dev/shm", "/dev/tty")
    _limit_writing(allowed)


def _save_nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for `torch.save`; see Note [Without effects], rule 3."""


def _refuse_to_send(event: str, args: tuple[Any, ...]) -> None:
    if event in _SENDS:
        raise PermissionError(f"legroom: nothing is sent while a step is captured ({event})")


# Descriptors -------------------------------------------------------------------------------------


def _part_with_descriptors(keep: set[int]) -> None:
    """See Note [Without effects], rule 1."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in _open_descriptors():
        if name in keep or name == nowhere:
            continue
        try:
            _part_with(name, nowhere)
        except OSError:  # closed meanwhile, or a file that is gone
            continue
    os.close(nowhere)


def _open_descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            return sorted(int(name) for name in os.listdir(folder))
    return list(range(256))


def _part_with(descriptor: int, nowhere: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and descriptor < 3):
        os.dup2(nowhere, descriptor)
    elif stat.S_ISREG(mode):
        import fcntl  # Windows has none

        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if access == os.O_WRONLY:
            os.dup2(nowhere, descriptor)
            return
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, descriptor)
        os.close(own)


# Files -------------------------------------------------------------------------------------------


class _Writes:
    """Leads what is opened for writing elsewhere; see Note [Without effects], rule 2."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._places: dict[str, str] = {}

    def install(self) -> None:
        """Stand in for Python's functions that open, make, move and remove."""
        plain_open, plain_os_open = io.open, os.open

        def open_elsewhere(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return plain_open(self._place(file, bool(_WRITES & set(mode))), mode, *args, **kwargs)

        def os_open_elsewhere(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            return plain_os_open(
                self._place(path, bool(flags & _WRITE_FLAGS)), flags, *args, **kwargs
            )

        builtins.open = io.open = open_elsewhere
        os.open = os_open_elsewhere
        for name in ("mkdir", "rmdir", "remove", "unlink", "chmod", "chown", "utime", "truncate"):
            setattr(os, name, _quiet(self._is_ours, getattr(os, name)))
        for name in ("rename", "replace", "link", "symlink"):
            setattr(os, name, self._moving(getattr(os, name)))

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and os.path.realpath(
            os.fsdecode(path)
        ).startswith((self._scratch, str(cache_folder()), "/dev/"))

    def _place(self, path: Any, writes: bool) -> Any:
        """Where a file is to be opened."""
        if not isinstance(path, str | bytes | os.PathLike) or self._is_ours(path):
            return path
        whole = os.path.realpath(os.fsdecode(path))
        if whole not in self._places:
            if not writes:
                return path
            place = os.path.join(self._scratch, str(len(self._places)))
            if os.path.isfile(whole):
                shutil.copyfile(whole, place)  # opens it: it must not have its place yet
            self._places[whole] = place
        return self._places[whole]

    def _moving(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def move(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            if self._is_ours(source) and self._is_ours(target):
                plain(source, target, *args, **kwargs)
                return
            known = self._places.get(os.path.realpath(os.fsdecode(source)))
            if known is not None:
                self._places[os.path.realpath(os.fsdecode(target))] = known

        return move


def _quiet(is_ours: Callable[[Any], bool], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function within our own folders; elsewhere nothing."""

    def run(path: Any, *args: Any, **kwargs: Any) -> None:
        if is_ours(_beneath(path, kwargs.get("dir_fd"))):
            plain(path, *args, **kwargs)

    return run


def _beneath(path: Any, descriptor: int | None) -> Any:
    """The path, where it is relative to an open folder: as `shutil.rmtree` removes files."""
    if descriptor is None or not isinstance(path, str | bytes | os.PathLike):
        return path
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), os.fsdecode(path))
    except OSError:  # no such folder on this system: not ours, then
        return None


# Landlock ----------------------------------------------------------------------------------------

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_WRITE_FILE, _MOVE, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGES = sum(1 << bit for bit in range(4, 13))
"""Removing and making files and folders of all kinds."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _limit_writing(allowed: tuple[str, ...]) -> bool:
    """Have the kernel refuse to write anywhere but there; whether it can."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    call = library.syscall
    call.restype = ctypes.c_long
    version = call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    access = _WRITE_FILE | _CHANGES
    access |= (_MOVE if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    ruleset = _Ruleset(access)
    rules = call(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if rules < 0:
        return False
    for path in allowed:
        try:
            place = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        is_folder = os.path.isdir(path)
        rule = _Beneath(access if is_folder else access & (_WRITE_FILE | _TRUNCATE), place)
        call(_ADD, rules, ctypes.c_int(1), ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(place)
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    is_limited = call(_RESTRICT, rules, ctypes.c_uint32(0)) == 0
    os.close(rules)
    return bool(is_limited)
