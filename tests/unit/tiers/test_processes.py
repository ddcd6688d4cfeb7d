"""Forks, kills, ends of processes, and what stays the same for 200 steps."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from legroom import tiers
from tests.unit.tiers.holding import layout, round_trip, same_bits, used_when_idle

MiB = 1024**2


def in_child(act):
    """What `act` returns in a forked child, as text."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(act())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(theirs, text.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told(open_disk):
    disk = open_disk()
    x = torch.randn(MiB)
    ticket = disk.put(x)
    for ask in (
        lambda: disk.put(x),
        lambda: disk.settle(ticket),
        lambda: disk.get(ticket, *layout(x)),
        lambda: disk.reserve(1),
    ):
        assert "belongs to the process that this one was forked from" in in_child(ask)
    assert same_bits(disk.get(disk.fetch(ticket), *layout(x)), x)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_releases_in_a_child_do_nothing(open_disk):
    disk = open_disk(faulty=True)
    x = torch.randn(MiB)
    tickets = [disk.settle(disk.put(x))]

    def drop():
        tickets.clear()
        gc.collect()
        disk.close()
        return "done"

    assert in_child(drop) == "done"
    assert same_bits(disk.get(tickets[0], *layout(x)), x)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_opens_its_own(tmp_path):
    x = torch.randn(1000)
    with tiers.use(folder=tmp_path) as disk:
        disk.settle(disk.put(x))
        ours = tiers.disk()

        def train():
            return tiers.disk() is not ours and same_bits(round_trip(tiers.disk(), x), x)

        os.environ["LEGROOM_DISK"] = str(tmp_path)
        try:
            assert in_child(train) == "True"
        finally:
            del os.environ["LEGROOM_DISK"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_in_the_middle_of_transfers(open_disk):
    disk = open_disk(threads=4)
    x = torch.randn(2 * MiB)
    for _ in range(10):
        tickets = [disk.put(x) for _ in range(3)]
        tickets.append(disk.fetch(tickets[0]))
        assert in_child(lambda: "alive") == "alive"
        assert all(same_bits(disk.get(ticket, *layout(x)), x) for ticket in tickets)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((10,), float(index))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_loader_workers_leave_the_tier_alone(open_disk):
    disk = open_disk()
    ticket = disk.put(torch.ones(1000))
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    for _ in range(2):
        for batch in loader:
            assert same_bits(round_trip(disk, batch), batch)
    assert disk.get(ticket, (1000,), (1,), torch.float32).sum() == 1000


PROGRAM = """
    import sys, torch
    from legroom.tiers import Disk
    disk = Disk.open(sys.argv[1], allow_tmpfs=True)
    xs = [torch.full((1 << 20,), float(n)) for n in range(8)]
    tickets = [disk.put(x) for x in xs]
"""


def started(folder, more, **options):
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(more)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True, **options
    )


def test_a_killed_process_leaves_nothing(tmp_path):
    free_before = os.statvfs(tmp_path).f_bfree
    process = started(tmp_path, "print('up', flush=True)\nwhile True: [disk.put(x) for x in xs]")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []
    assert os.statvfs(tmp_path).f_frsize * (free_before - os.statvfs(tmp_path).f_bfree) < 1 << 30
    with tiers.Disk.open(tmp_path, allow_tmpfs=True).closing() as disk:
        x = torch.randn(1000)
        assert same_bits(round_trip(disk, x), x)


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "del disk", "disk.close()"])
def test_processes_end_with_tickets_outstanding(tmp_path, end):
    process = started(tmp_path, end, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    assert list(tmp_path.iterdir()) == []


def resident_bytes():
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_two_hundred_steps_grow_nothing(tmp_path):
    num_threads, descriptors = threading.active_count(), num_descriptors()
    xs = [torch.randn(count) for count in (100, 5000, 300_000, 70_000, 300_000)]
    with tiers.Disk.open(tmp_path, allow_tmpfs=True).closing() as disk:
        seen = []
        for step in range(200):
            tickets = [disk.put(x) for x in xs]
            tickets = [disk.settle(ticket) for ticket in tickets]
            while tickets:
                ticket = disk.fetch(tickets.pop())
                x = xs[len(tickets)]
                assert same_bits(disk.get(ticket, *layout(x)), x)
            del ticket
            if step in (20, 199):
                used = used_when_idle(disk)
                seen.append((used, threading.active_count(), num_descriptors(), resident_bytes()))
        (early, late) = seen
        assert early[:3] == late[:3]
        assert late[0].num_slots == 0
        assert late[3] - early[3] < 8 * MiB
    assert (threading.active_count(), num_descriptors()) == (num_threads, descriptors)


def test_resident_memory_falls_when_settled(tmp_path):
    """64 MiB, in a process whose heap has no hole for them: the system takes such a block back."""
    program = """
        from legroom.meter._resident import resident_bytes
        x = torch.ones(16 * 1024**2)
        full = resident_bytes()
        ticket = disk.put(x)
        del x
        ticket = disk.settle(ticket)
        print((full - resident_bytes()) // 1024**2)
        print(disk.get(ticket, (16 * 1024**2,), (1,), torch.float32).min().item())
    """
    said, _ = started(tmp_path, program).communicate(timeout=120)
    released_mib, smallest = said.split()
    assert int(released_mib) > 60
    assert float(smallest) == 1
