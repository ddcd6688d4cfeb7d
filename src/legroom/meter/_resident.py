"""What the process really holds, as the operating system counts it.

In goes nothing; out come resident bytes now and the highest since the last reset. Linux only:
elsewhere, and where `/proc` is closed, the answers are None and the report says so.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResidentPeak:
    """Resident memory around a stretch of work, in bytes.

    Attributes:
        before_bytes: Held when the stretch began.
        peak_bytes: The most held since.
    """

    before_bytes: int
    peak_bytes: int

    @property
    def growth_bytes(self) -> int:
        """How much the process grew at its highest."""
        return max(0, self.peak_bytes - self.before_bytes)


def resident_bytes() -> int | None:
    """What the process holds now; None where it cannot be read."""
    return _status("VmRSS:")


def highest_resident_bytes() -> int | None:
    """The most the process has held since `reset_highest`; None where it cannot be read."""
    return _status("VmHWM:")


def reset_highest() -> bool:
    """Make the highest start from now. False where the system does not allow it."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True


def release_free_heap() -> None:
    """Give memory that glibc keeps for reuse back to the system, so that growth means growth."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> int | None:
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith(key):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
