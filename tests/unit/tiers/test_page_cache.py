"""Note [What counts as memory], rule 2: what is left of a tensor in the page cache."""

import ctypes
import mmap
import sys

import pytest
import torch

from tests.unit.tiers.holding import layout, same_bits

MiB = 1024**2
PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


def cached_bytes(file, num_bytes):
    """How much of a file the system holds in memory."""
    with mmap.mmap(file._descriptor, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        pages = (ctypes.c_ubyte * (num_bytes // PAGE))()
        description = ctypes.create_string_buffer(256)  # a Py_buffer: the address comes first
        python = ctypes.pythonapi
        python.PyObject_GetBuffer(
            ctypes.py_object(mapped), ctypes.byref(description), ctypes.c_int(0)
        )
        address = ctypes.c_void_p.from_buffer(description)
        found = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(num_bytes), pages)
        python.PyBuffer_Release(ctypes.byref(description))
    assert found == 0
    return PAGE * sum(page & 1 for page in pages)


@pytest.mark.parametrize("direct", [None, False], ids=["direct", "page-cache"])
def test_nothing_piles_up_in_the_page_cache(open_disk, direct):
    disk = open_disk(direct=direct)
    x = torch.randn(8 * MiB)
    ticket = disk.settle(disk.put(x))
    assert cached_bytes(disk._file, 32 * MiB) <= MiB
    assert same_bits(disk.get(ticket, *layout(x)), x)
    assert cached_bytes(disk._file, 32 * MiB) <= MiB


def test_the_page_cache_can_be_seen(open_disk):
    """The test above would notice."""
    disk = open_disk(direct=False)
    disk.reserve(8 * MiB)
    disk._file.write([memoryview(bytes(4 * MiB))], 0)
    assert cached_bytes(disk._file, 8 * MiB) >= 4 * MiB
