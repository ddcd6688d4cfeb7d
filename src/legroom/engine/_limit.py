"""A limit on what the process may hold, so that an overrun is an error and not a swapped machine.

In goes a number of bytes; while the limit is on, an allocation beyond it fails. Out of that error
comes a sentence for its user.

See Note [Process limit].
"""

# Note [Process limit]
# 1. RLIMIT_DATA is held against VmData: private writable memory, touched or not. Since Linux 4.7
#    that includes what is mapped, and so every tensor; it also includes the stacks of threads that
#    start later (8 MiB each unless said otherwise), and the interpreter's own growth.
# 2. glibc keeps blocks that were released. They are in VmData, and can be given out again or, cut
#    up, not; without `return_freed_memory` the limit fails steps whose tensors would fit.
# 3. Only the soft limit is lowered, so it can be put back. Child processes inherit it: each of
#    them, too, may hold no more than this one.

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator

from legroom.capture import is_out_of_memory
from legroom.errors import UsageError
from legroom.units import format_bytes

_WITHOUT_WORDS = (
    "std::bad_alloc",  # C++ outside PyTorch's allocator
    "could not create a primitive",  # oneDNN: no memory for its scratchpad or its generated code
    "could not execute a primitive",
    "can't start new thread",  # no memory for its stack
)
"""What libraries below PyTorch say when an allocation of theirs failed; none names memory."""


@contextlib.contextmanager
def limit_process(num_bytes: int) -> Iterator[int]:
    """Limit the process to what it holds now and `num_bytes` more; afterwards, as before.

    Gives the limit on the process's data (`VmData`, see Note [Process limit]) in bytes. It never
    rises: a process that is limited to less (`ulimit -d`) stays so.

    Raises:
        UsageError: `num_bytes` is not positive, or this system cannot limit a process so.
    """
    if num_bytes <= 0:
        raise UsageError(f"a process limit must be at least 1 byte, got {num_bytes}")
    present_bytes = data_bytes()
    if present_bytes is None:
        raise UsageError(
            "limiting the process needs Linux's /proc/self/status, which cannot be read here "
            f"({sys.platform}).\n"
            "  try: without the limit; the budget holds for tensors all the same"
        )
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit_bytes = present_bytes + num_bytes
    for other in (soft, hard):
        if other != resource.RLIM_INFINITY:
            limit_bytes = min(limit_bytes, other)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
    try:
        yield limit_bytes
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_bytes() -> int | None:
    """The process's data now, as `RLIMIT_DATA` counts it; None where it cannot be read."""
    try:
        with open("/proc/self/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return 1024 * int(fields["VmData"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def describe_overrun(error: BaseException) -> str | None:
    """What to tell the user when a process met its limit; None if that is not what happened.

    Libraries below PyTorch may fail without naming memory. Their errors are taken for overruns, so
    ask only about errors that were raised under a limit.
    """
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    if asked is not None:
        what = f"PyTorch asked for {format_bytes(int(asked[1]))} more"
    elif is_out_of_memory(error):
        what = "an allocation failed"
    elif isinstance(error, RuntimeError) and any(each in str(error) for each in _WITHOUT_WORDS):
        what = f"a library got no memory for its own work ({error})"
    else:
        return None
    return (
        f"the process met its memory limit: {what}.\n"
        "  try: a higher budget, or without the limit to see how much the step really takes"
    )
