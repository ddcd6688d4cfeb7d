"""Where the disk tier's file lies: the folder, and on what kind of file system.

In goes a folder or nothing; out comes one that is not memory in disguise.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from legroom.errors import TierError

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
VARIABLE = "LEGROOM_DISK"


def choose_folder(folder: str | os.PathLike[str] | None, *, allow_tmpfs: bool = False) -> Path:
    """The folder given, else the one that `LEGROOM_DISK` names, else that for temporary files.

    Raises:
        TierError: It is no folder, or its files lie in memory.
    """
    chosen = Path(folder or os.environ.get(VARIABLE) or tempfile.gettempdir()).absolute()
    if not chosen.is_dir():
        raise TierError(
            f"the disk tier's folder {str(chosen)!r} is not there.\n"
            f"  try: make it, or name another one (folder=, or {VARIABLE})"
        )
    kind = file_system_of(chosen)
    if kind in _IN_MEMORY and not allow_tmpfs:
        raise TierError(
            f"the disk tier's folder {str(chosen)!r} is on a {kind}, so what is put there stays in "
            f"memory.\n  try: name a folder on a disk (folder=, or {VARIABLE}=/var/tmp)"
        )
    return chosen


def file_system_of(folder: Path) -> str:
    """The kind of file system, as `"ext4"`; empty where the system does not tell.

    Limits: an overlay says that it is one, not whether its files lie in memory.
    """
    try:
        number = os.stat(folder).st_dev
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    device = f"{os.major(number)}:{os.minor(number)}"
    best, kind = -1, ""
    for line in lines:
        mount, _, source = line.partition(" - ")
        _, _, of_device, _, point = mount.split()[:5]
        point = point.replace("\\040", " ")
        matches = of_device == device or Path(point) in (folder, *folder.parents)
        weight = len(point) + (1 << 20 if of_device == device else 0)
        if matches and weight > best:
            best, kind = weight, source.split()[0]
    return kind
