"""Where bytes live besides the device: on the disk, in host memory.

In goes a tensor, out comes a ticket for it, and later the tensor again, bit for bit. `disk()` is
the one that plans and `legroom.offload` use; `use` puts another in its place.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from legroom.errors import UsageError
from legroom.registry import Registry
from legroom.tiers._accelerator import AbstractAccelerator, Cuda
from legroom.tiers._available import available_bytes
from legroom.tiers._disk import Disk
from legroom.tiers._file import AbstractFile, SystemFile
from legroom.tiers._folder import file_system_of
from legroom.tiers._host import Host
from legroom.tiers._layout import why_not_plain
from legroom.tiers._tier import AbstractTier, TierUse

__all__ = [
    "AbstractAccelerator",
    "AbstractFile",
    "AbstractTier",
    "Cuda",
    "Disk",
    "Host",
    "SystemFile",
    "TierUse",
    "available_bytes",
    "current",
    "disk",
    "file_system_of",
    "get",
    "names",
    "register",
    "set_folder",
    "unregister",
    "use",
    "why_not_plain",
]

_TIERS: Registry[type[AbstractTier]] = Registry("tier", (Host, Disk))
register, unregister, names, get = _TIERS.register, _TIERS.unregister, _TIERS.names, _TIERS.get

_current: dict[str, AbstractTier] = {}
_lock = threading.RLock()


def current(name: str) -> AbstractTier:
    """The tier of that name which the process uses; opened when it is first asked for.

    In a forked child, and where it was closed, a new one takes its place, in the same folder.

    Raises:
        UnknownNameError: There is none.
        TierError: It cannot be opened.
    """
    kind = get(name)
    with _lock:
        found = _current.get(name)
        if found is None or not found.is_usable:
            found = _current[name] = kind.open() if found is None else found.open_again()
        return found


def disk() -> AbstractTier:
    """The disk tier that the process uses; opened when it is first asked for."""
    return current("disk")


def set_folder(folder: str | os.PathLike[str]) -> None:
    """Let the process's disk tier be in this folder from now on.

    Raises:
        UsageError: It is in another one, and holds something there.
        TierError: There can be none in that folder. Everything is as it was.
    """
    wanted = os.path.realpath(folder)
    with _lock:
        before = _current.get(Disk.name)
        if before is not None and before.is_usable:
            where = os.path.realpath(before.describe()["where"])
            if where == wanted:
                return
            if before.in_use().num_slots:
                raise UsageError(
                    f"folder {wanted!r} was asked for, but tensors are held on the disk in "
                    f"{where!r}; use one folder for all models of a process"
                )
        fresh = Disk.open(wanted)
        if before is not None and before.is_usable:
            before.close()
        _current[Disk.name] = fresh


@contextlib.contextmanager
def use(
    tier: AbstractTier | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    threads: int = 2,
    synchronous: bool = False,
) -> Iterator[AbstractTier]:
    """Inside, the whole process uses another tier of its name; a new one is closed at the end.

    What was put inside must be got inside.

    Args:
        tier: One that is open and stays so. None: a new disk tier, with the options that follow.
        folder, threads, synchronous: See `Disk.open`.
    """
    own = tier is None
    inside = tier or Disk.open(folder, threads=threads, synchronous=synchronous)
    with _lock:
        before = _current.get(inside.name)
        _current[inside.name] = inside
    try:
        yield inside
    finally:
        with _lock:
            if before is None:
                _current.pop(inside.name, None)
            else:
                _current[inside.name] = before
        if own:
            inside.close()
