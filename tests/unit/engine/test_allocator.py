"""Memory that goes back to the system, each time in a process of its own; bytes decide."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.engine import _allocator

glibc = pytest.mark.skipif(_allocator._glibc() is None, reason="malloc is not glibc's here")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

PROGRAM = """
import json, os, sys
import torch
from legroom.engine._allocator import (
    close_holes, keep_freed_memory, return_freed_memory
)
from legroom.meter._resident import resident_bytes

MIB = 2**20
blocks_kept = []

def touched(mebibytes):
    return torch.ones(mebibytes * MIB, dtype=torch.uint8)

def held_after_most_is_freed():
    "Of 160 MiB in blocks of 8, all but the last are freed."
    touched(24)  # freed: from here on glibc keeps blocks of up to 24 MiB
    before = resident_bytes()
    blocks = [touched(8) for _ in range(20)]
    del blocks[:-1]
    blocks_kept.extend(blocks)
    return (resident_bytes() - before) // MIB

def untold():
    return held_after_most_is_freed()

def told():
    return return_freed_memory(), held_after_most_is_freed()

def told_twice():
    return return_freed_memory(), return_freed_memory()

def told_late():
    before = held_after_most_is_freed()
    start = resident_bytes()
    return_freed_memory()
    returned = (start - resident_bytes()) // MIB
    start = resident_bytes()
    blocks = [touched(8) for _ in range(10)]  # would fit into what was freed in the heap
    blocks.clear()
    return before, returned, (resident_bytes() - start) // MIB

def holes_appear_later():
    return_freed_memory()
    small = [torch.ones(100 * 1024, dtype=torch.uint8) for _ in range(500)]  # in the heap
    blocks_kept.extend(small[::50])
    del small[:]
    closed = close_holes()
    start = resident_bytes()
    blocks = [touched(1) for _ in range(20)]
    blocks.clear()
    return closed // MIB, (resident_bytes() - start) // MIB

def untold_closes_nothing():
    return close_holes()

def new_pages_of_a_step():
    "The fewest of eight that hold 160 MiB in blocks of 8, and one of 64, and free them."
    import resource
    counts = []
    for _ in range(8):  # the heap may still grow in the first ones
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [touched(8) for _ in range(20)]
        touched(64)
        blocks.clear()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(counts) * 4096 // MIB

def kept():
    return keep_freed_memory(), new_pages_of_a_step(), held_after_most_is_freed()

def not_kept():
    return new_pages_of_a_step()

def kept_then_returned():
    keep_freed_memory()
    held_after_most_is_freed()
    return_freed_memory()
    return held_after_most_is_freed()

def returned_then_kept():
    return_freed_memory()
    held_after_most_is_freed()
    keep_freed_memory()
    return new_pages_of_a_step()

def told_after_an_allocation():
    touched(1)
    return return_freed_memory()

def told_without_huge_pages():
    os.environ["THP_MEM_ALLOC_ENABLE"] = "0"
    return return_freed_memory()

for name in sys.argv[1:]:  # each in a process of its own, which begins with nothing allocated
    if not os.fork():
        print(json.dumps([name, globals()[name]()]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def answers_of(*names, **environment):
    """What each function of the program returns, by name."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_", "THP_"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**ours, "OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def answers():
    return answers_of(
        "untold", "told", "told_twice", "told_late", "told_after_an_allocation",
        "told_without_huge_pages", "holes_appear_later", "untold_closes_nothing",
        "kept", "not_kept", "kept_then_returned", "returned_then_kept",
    )  # fmt: skip


@glibc
def test_freed_blocks_stay_without_it(answers):
    assert answers["untold"] > 120


@glibc
def test_freed_blocks_go_back_with_it(answers):
    said, held = answers["told"]
    assert said.startswith("freed blocks of 128 KiB and more go back to the system")
    assert 4 <= held <= 16


@glibc
def test_what_was_kept_so_far_goes_back(answers):
    held, returned, held_later = answers["told_late"]
    assert held > 120
    assert returned > 120
    assert held_later <= 8


@glibc
def test_holes_of_the_heap_are_closed_to_tensors(answers):
    closed, held = answers["holes_appear_later"]
    assert closed > 20
    assert held <= 4


@glibc
def test_holes_stay_open_unless_memory_goes_back(answers):
    assert answers["untold_closes_nothing"] == 0


@glibc
def test_kept_memory_touches_no_new_pages(answers):
    said, new_mib, held = answers["kept"]
    assert said == "freed memory stays with the process, and is used again"
    assert new_mib <= 1
    assert answers["not_kept"] > 60  # what is mapped or at the heap's end goes back
    assert held > -8  # and nothing was returned


@glibc
def test_the_later_choice_holds(answers):
    assert answers["kept_then_returned"] <= 16
    assert answers["returned_then_kept"] <= 1


@glibc
def test_calling_it_twice_is_safe(answers):
    assert len(set(answers["told_twice"])) == 1


@glibc
@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(),
    reason="this system has no huge pages to ask for",
)
def test_huge_pages_are_for_those_who_ask_early(answers):
    assert answers["told"][0].endswith("in huge pages")
    assert answers["told_after_an_allocation"].endswith("without huge pages")
    assert answers["told_without_huge_pages"].endswith("without huge pages")


@glibc
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "33554432"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432"),
    ],
)
def test_choices_of_the_environment_are_left(name, value):
    chosen = answers_of("told", "kept", **{name: value})
    (said, held), (said_of_kept, *_) = chosen["told"], chosen["kept"]
    assert said_of_kept == said
    assert said == f"freed memory is handled as {name} in the environment says; it was left so"
    assert held > 120


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(_allocator, "_chosen_by_environment", lambda: "")
    said = _allocator.return_freed_memory()
    assert said.endswith("and this process (darwin) uses another")


def test_preloaded_allocators_are_recognised(monkeypatch):
    def another(address, found):
        found._obj.file = b"/usr/lib/libjemalloc.so.2"
        return 1

    class Library:
        gnu_get_libc_version = malloc = _allocator.ctypes.CDLL(None).free
        dladdr = staticmethod(another)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(_allocator.ctypes, "CDLL", lambda name: Library())
    assert _allocator._glibc() is None
