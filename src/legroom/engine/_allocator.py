"""What becomes of memory that tensors release, on Linux with glibc: it goes back, or it stays.

In goes nothing; out comes a sentence that says what was done. glibc as it comes does some of both:
see Note [Freed memory].
"""

# Note [Freed memory]
# 1. glibc raises the size from which it maps blocks as blocks are freed, up to 32 MiB; smaller ones
#    share one heap, whose holes stay with the process. A fixed threshold maps each larger block on
#    its own, and a release gives it back.
# 2. But a hole in the heap is used before anything is mapped, and planning leaves many. So holes
#    are closed: after the heap's free pages went back, blocks that fit into them are taken and
#    never touched. They cost address space, and no memory.
# 3. The price is touching new pages, all through the step. Processor time of a step as a multiple
#    of what it is with glibc as it comes, and the highest resident growth in MiB. One thread on a
#    virtual machine of 2 cores that was busy with other things (load 5 to 12), so take the times
#    as an indication; interleaved, medians of 7 and 5 for gpt2, of 3 and 2 for resnet50.
#    "Blocks" is per-block checkpointing, after plain steps in the same process.
#
#                        gpt2 plain   gpt2 blocks   resnet50 plain   resnet50 blocks
#      as it comes       1.00   892   1.00   764      1.00   660       1.00   620
#      trim every step   1.32   907   1.30   617
#      32 MiB            0.97   934   1.11   786
#      4 MiB             1.30   829   1.05   650
#      1 MiB             1.79   705   1.92   222      2.12   461       2.18   279
#      128 KiB           1.79   696   2.14   215      2.24   441       2.21   269
#      as it comes, huge 1.41   831   1.01   603
#      4 MiB, huge       1.44   869   1.01   623
#      1 MiB, huge       1.83   714   1.53   229      1.74   460       1.41   301
#
#    Only a threshold below the size of most activations makes the process follow its tensors.
# 4. At a low budget the rest of the heap counts. GPT-2 at its floor, where the allocator counts 96:
#    growth in MiB with holes open 132 to 139, closed 118 to 128, closed and a threshold of 256 KiB
#    108 to 116, of 128 KiB 96 to 110. Hence 128 KiB.
# 5. Blocks are not aligned to huge pages: of 2 MiB blocks 3 % is in them, of 4 MiB blocks half, of
#    8 MiB blocks three quarters, of 32 MiB blocks nearly all.
# 6. As it comes, glibc returns what is free at the heap's end and every block that it mapped, so a
#    step touches 80 to 220 MiB of new pages, how much depends on how the heap of this one process
#    came to lie: processes that run the same code differ by a tenth. If nothing is returned or
#    mapped, steps touch no new page, are shorter, and differ by a per cent or so. The contest's
#    rows `plain`, `plain, again` and `plain (as it comes)` show by how much.

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # malloc.h
_MMAP_BYTES = 128 * 1024
_TRIM_BYTES = 1024**2
_MOST_MAPPED = 65536
"""glibc's own choice of how many blocks it maps."""
_NEVER = -1
"""As a threshold for returning the heap's end."""
_LARGEST_HOLE = 1024**3

_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""PyTorch's own variable: blocks from 2 MiB on ask for huge pages. Read at its first allocation."""

_OTHERS_CHOICE = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")
_OTHERS_TUNABLES = ("glibc.malloc.mmap_", "glibc.malloc.trim_threshold")


def return_freed_memory() -> str:
    """Have freed blocks go back to the system from now on; say in a sentence what was done.

    Best called before the model is built: what glibc has kept so far goes back at once, but its
    address range is used again before new memory is mapped. Nothing happens where malloc is not
    glibc's, and where the environment sets these thresholds already. It lasts as long as the
    process; numbers do not change. It can double the time of a step: see Note [Freed memory].
    """
    library = _glibc_to_set()
    if isinstance(library, str):
        return library
    os.environ.setdefault(_HUGE_PAGES, "1")
    if not (
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        and library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        and library.mallopt(_M_MMAP_MAX, _MOST_MAPPED)
    ):
        return _REFUSED
    _State.is_returning = True
    close_holes()
    pages = "in huge pages" if _asks_for_huge_pages() else "without huge pages"
    return f"freed blocks of 128 KiB and more go back to the system, {pages}"


def keep_freed_memory() -> str:
    """Have freed blocks stay with the process from now on; say in a sentence what was done.

    Steps no longer touch new pages, which on a CPU is a part of their time that varies from process
    to process: see Note [Freed memory], rule 6. The process stays as large as it ever was, and may
    grow larger than its tensors at their peak, as holes between them cannot always be used. The
    opposite is `return_freed_memory`; the later call holds. Nothing happens where malloc is not
    glibc's, and where the environment sets these thresholds already. Numbers do not change.

    Limits: it holds for the heap of the main thread. In other threads glibc has heaps of 64 MiB,
    which it returns when they are empty.
    """
    library = _glibc_to_set()
    if isinstance(library, str):
        return library
    if not (library.mallopt(_M_TRIM_THRESHOLD, _NEVER) and library.mallopt(_M_MMAP_MAX, 0)):
        return _REFUSED
    _State.is_returning = False
    library.free.argtypes = [ctypes.c_void_p]
    while _State.fillings:
        library.free(_State.fillings.pop())
    return "freed memory stays with the process, and is used again"


_REFUSED = "freed memory is handled as glibc does: it refused to be told otherwise (mallopt)"


def _glibc_to_set() -> ctypes.CDLL | str:
    """glibc, if its settings are ours to change; otherwise a sentence that says why not."""
    chosen = _chosen_by_environment()
    if chosen:
        return f"freed memory is handled as {chosen} in the environment says; it was left so"
    library = _glibc()
    if library is None:
        return (
            "freed memory is handled as before: only glibc's malloc, on Linux, can be told what to "
            f"do with it, and this process ({sys.platform}) uses another"
        )
    return library


class _State:
    """Of the process.

    Attributes:
        is_returning: Whether freed memory goes back.
        fillings: Blocks in holes of the heap; see Note [Freed memory], rule 2.
    """

    is_returning = False
    fillings: ClassVar[list[int]] = []


def close_holes() -> int:
    """Keep tensors out of what has been freed in the heap since; the bytes of holes closed.

    Nothing happens unless `return_freed_memory` was called and took effect.
    """
    library = _glibc() if _State.is_returning else None
    if library is None:
        return 0
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    gc.collect()  # compiling leaves cycles, whose memory would make holes later
    library.malloc_trim(0)
    closed_bytes, size = 0, _LARGEST_HOLE
    while size >= _MMAP_BYTES:
        block = library.malloc(size)
        if block is not None and block < library.sbrk(0):  # what is mapped lies above the heap
            _State.fillings.append(block)
            closed_bytes += size
            continue
        library.free(block)
        size //= 2
    return closed_bytes


def _chosen_by_environment() -> str:
    """The variable by which somebody has chosen these settings; empty if nobody has."""
    named = [name for name in _OTHERS_CHOICE if name in os.environ]
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(each in tunables for each in _OTHERS_TUNABLES):
        named.append("GLIBC_TUNABLES")
    return ", ".join(named)


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _glibc() -> ctypes.CDLL | None:
    """glibc, if it is what `malloc` comes from; None with jemalloc, musl, and elsewhere."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - absent from musl
        found = _Symbol()
        if library.dladdr(ctypes.cast(library.malloc, ctypes.c_void_p), ctypes.byref(found)):
            return library if Path(os.fsdecode(found.file)).name.startswith("libc") else None
    return None


def _asks_for_huge_pages() -> bool:
    """Whether PyTorch asks for huge pages. It does not if it had allocated before it was told."""
    block = torch.empty(8 * 1024**2, dtype=torch.uint8, device="cpu")
    return "hg" in _mapping_flags(block.data_ptr() + block.nbytes // 2)


def _mapping_flags(address: int) -> list[str]:
    """The kernel's flags of the mapping around an address; none where it does not tell."""
    is_here = False
    for line in _lines_of("/proc/self/smaps"):
        first, *rest = line.split()
        if first == "VmFlags:":
            if is_here:
                return rest
        elif not first.endswith(":"):
            start, end = (int(each, 16) for each in first.split("-"))
            is_here = start <= address < end
    return []


def _lines_of(path: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(path) as file:
        yield from file
