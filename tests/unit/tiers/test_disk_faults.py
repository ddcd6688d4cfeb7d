import errno
import threading
import time

import pytest
import torch

from legroom.errors import TierError, TierSpaceError, UsageError
from legroom.tiers import Disk
from legroom.tiers._memory import Buffer
from legroom.tiers._ticket import mark_own_thread
from tests.unit.tiers.faulty_file import FaultyFile, failing
from tests.unit.tiers.holding import layout, round_trip, same_bits, used_when_idle

MiB = 1024**2


@pytest.fixture(params=[False, True], ids=["threads", "synchronous"])
def faulty(request, open_disk):
    return open_disk(faulty=True, synchronous=request.param)


def nothing_is_left(disk):
    used = used_when_idle(disk)
    return (used.num_slots, used.in_flight_bytes, disk._extents.num_bytes) == (0, 0, 0)


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_when_reserving(tmp_path, full):
    disk = Disk(FaultyFile(tmp_path, limit_bytes=10 * MiB, full=full))
    with pytest.raises(TierSpaceError, match=r"needs 20.00 MiB more \(20971520 bytes\)") as caught:
        disk.reserve(20 * MiB)
    assert (caught.value.wanted_bytes, caught.value.free_bytes) == (20 * MiB, 10 * MiB)
    assert caught.value.folder == str(tmp_path)
    assert caught.value.__cause__.errno == full
    disk.reserve(10 * MiB)
    disk.close()


def test_the_system_says_that_the_disk_is_full(disk):
    """No seam here: more than any disk has."""
    with pytest.raises(TierSpaceError, match="are free") as caught:
        disk.reserve(1 << 52)
    assert caught.value.free_bytes > 0
    assert disk.in_use().reserved_bytes == 0
    x = torch.randn(1000)
    assert same_bits(round_trip(disk, x), x)


def test_a_full_disk_is_said_when_putting(open_disk):
    disk = open_disk(limit_bytes=2 * MiB)
    x, y = torch.randn(MiB // 4), torch.randn(MiB // 2)
    ticket = disk.settle(disk.put(x))
    with pytest.raises(TierSpaceError, match=r"MiB more .* for 'h.4', where") as caught:
        disk.put(y, label="h.4")
    assert caught.value.label == "h.4"
    assert caught.value.__cause__.errno == errno.ENOSPC
    del caught
    assert disk.in_use().num_slots == 1
    assert same_bits(disk.get(ticket, *layout(x)), x)
    del ticket
    assert nothing_is_left(disk)
    z = y[: MiB // 4]
    assert same_bits(round_trip(disk, z), z)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_failed_write_is_said_when_settling(faulty, number):
    faulty.file.on_write = failing(number)
    ticket = faulty.put(torch.ones(1000), label="h.3.attn")
    for _ in range(2):
        with pytest.raises(
            TierError, match=r"'h.3.attn' \(3.91 KiB\) could not be written to tier 'disk'"
        ) as caught:
            faulty.settle(ticket)
        assert caught.value.__cause__.errno == number
    with pytest.raises(TierError, match="could not be written"):
        faulty.get(ticket, (1000,), (1,), torch.float32)
    faulty.file.on_write = None
    x = torch.randn(1000)
    assert same_bits(round_trip(faulty, x), x)
    del ticket, caught
    assert nothing_is_left(faulty)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_failed_read_is_said_when_getting(faulty, number):
    x, other = torch.randn(1000), torch.randn(2000)
    ticket, healthy = faulty.settle(faulty.put(x, label="h.3")), faulty.put(other)
    faulty.settle(healthy)
    faulty.file.on_read = failing(number, times=1)
    ticket = faulty.fetch(ticket)
    for _ in range(2):
        with pytest.raises(TierError, match=r"'h.3' .* could not be read from tier") as caught:
            faulty.get(ticket, *layout(x))
        assert caught.value.__cause__.errno == number
    with pytest.raises(TierError, match="could not be read"):
        faulty.fetch(ticket)
    assert same_bits(faulty.get(healthy, *layout(other)), other)
    del ticket, healthy, caught
    assert nothing_is_left(faulty)


def test_a_failed_write_reaches_who_has_fetched(open_disk):
    disk = open_disk(faulty=True)
    disk.file.gate.clear()
    disk.file.on_write = failing(errno.EIO)
    x = torch.ones(1000)
    ticket = disk.put(x)
    fetched = disk.fetch(ticket)
    disk.file.gate.set()
    with pytest.raises(TierError, match="could not be written"):
        disk.get(fetched, *layout(x))


def test_threads_survive_errors(open_disk):
    disk = open_disk(faulty=True)
    disk.file.on_write = failing(errno.EIO)
    for _ in range(20):
        with pytest.raises(TierError):
            disk.settle(disk.put(torch.ones(10)))
    assert disk.in_use().num_threads == 2


@pytest.mark.parametrize("direct", [None, False])
@pytest.mark.parametrize("most", [4096, 5000, 40_000])
def test_short_moves_go_on(open_disk, direct, most):
    disk = open_disk(faulty=True, direct=direct)
    disk.file.on_write = disk.file.on_read = lambda pieces, offset: (
        most if not disk.file.is_direct else max(4096, most // 4096 * 4096)
    )
    x = torch.randn(50_001)
    assert same_bits(round_trip(disk, x), x)
    assert len(disk.file.moves) > 2 * 200_000 // 40_960


def test_direct_moves_that_end_within_a_block_go_on(open_disk):
    """The system may stop anywhere; the rest of that block is moved again."""
    disk = open_disk(faulty=True)
    stopped = []

    class Stopping:
        def __init__(self, move):
            self.move = move

        def __call__(self, pieces, offset):
            count = self.move(pieces, offset)
            stopped.append(count)
            return count - 1000 if len(stopped) % 2 and count > 8192 else count

    disk.file.write, disk.file.read = Stopping(disk.file.write), Stopping(disk.file.read)
    x = torch.randn(50_001)
    assert same_bits(round_trip(disk, x), x)
    assert len(stopped) >= 4


def test_a_disk_that_takes_nothing_is_an_error(open_disk):
    disk = open_disk(faulty=True, direct=False)
    disk.file.write = lambda pieces, offset: 0
    with pytest.raises(TierError, match="Input/output error"):
        disk.settle(disk.put(torch.ones(1000)))


def test_a_file_cut_under_us_is_an_error(faulty):
    x = torch.randn(100_000)
    ticket = faulty.settle(faulty.put(x, label="h.1"))
    faulty.file.truncate(8192)
    with pytest.raises(TierError, match=r"'h.1' .* the file ends before the tensor does"):
        faulty.get(ticket, *layout(x))


def test_a_slow_disk_only_takes_longer(open_disk):
    disk = open_disk(faulty=True)
    disk.file.gate.clear()
    x = torch.randn(1000)
    ticket = disk.put(x)
    got = []
    thread = threading.Thread(target=lambda: got.append(disk.get(ticket, *layout(x))))
    thread.start()
    thread.join(0.2)
    assert got == []
    disk.file.gate.set()
    thread.join()
    assert same_bits(got[0], x)


def test_no_memory_to_come_back_to_loses_nothing(faulty, monkeypatch):
    x = torch.randn(1000)
    ticket = faulty.settle(faulty.put(x, label="h.2"))

    def exhausted(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty_strided", exhausted)
        for ask in (lambda: faulty.fetch(ticket), lambda: faulty.get(ticket, *layout(x))):
            with pytest.raises(TierError, match=r"'h.2' cannot come back .* no host memory"):
                ask()
    assert same_bits(faulty.get(ticket, *layout(x)), x)


def test_tickets_of_other_tiers_are_refused(disk, open_disk):
    other = open_disk()
    ticket = other.put(torch.ones(3))
    with pytest.raises(TierError, match="is not of this 'disk' tier"):
        disk.get(ticket, (3,), (1,), torch.float32)


def test_refused_tensors_leave_nothing(disk):
    with pytest.raises(UsageError, match=r"'h.0' cannot be put on a tier"):
        disk.put(torch.ones(4, 4)[:, :2], label="h.0")
    assert disk.in_use().num_slots == 0


def test_closing_with_tickets_outstanding_is_safe(open_disk):
    disk = open_disk(faulty=True)
    disk.file.gate.clear()
    tickets = [disk.put(torch.ones(100_000)) for _ in range(5)]
    last = tickets[-1]
    closer = threading.Thread(target=disk.close)
    closer.start()
    waited = []

    def wait():
        try:
            disk.settle(last)
        except TierError as error:
            waited.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(30)
    disk.file.gate.set()
    closer.join(30)
    assert len(waited) == 1
    assert disk.in_use().num_threads == 0
    with pytest.raises(TierError, match="is closed"):
        disk.put(torch.ones(1))
    with pytest.raises(TierError, match="is closed"):
        disk.get(tickets[0], (1,), (1,), torch.float32)
    del tickets[:]
    disk.close()


def test_no_threads_are_needed_to_close(open_disk):
    disk = open_disk()
    disk.close()
    assert not disk.is_usable


def test_fewer_than_one_thread_is_refused(open_disk):
    with pytest.raises(UsageError, match="threads is 0"):
        open_disk(threads=0)


def test_a_disk_that_hangs_does_not_hang_the_end(open_disk, monkeypatch):
    """What its thread is at stays in memory, since the thread may still come back."""
    monkeypatch.setattr("legroom.tiers._engine._CLOSING_SECONDS", 0.05)
    disk = open_disk(faulty=True, threads=1)
    disk.file.gate.clear()
    x = torch.ones(100_000)
    ticket = disk.put(x)
    while not disk.file.moves:
        time.sleep(0.001)
    disk.close()
    assert disk._slots[int(ticket)].source is not None
    assert disk._engine.num_threads == 1
    disk.file.gate.set()
    while disk._engine.num_threads:
        time.sleep(0.001)
    disk.file.close()


def test_threads_of_a_tier_release_nothing(disk):
    """Note [Tickets], rule 4: a collection of cycles may run in any thread."""
    tickets = [disk.settle(disk.put(torch.ones(1000)))]

    def drop():
        mark_own_thread()
        tickets.clear()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert len(disk._slots) == 1
    assert disk.in_use().num_slots == 0


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("legroom.tiers._memory.mmap.mmap", OSError(errno.ENOMEM, "Cannot allocate memory")),
        ("threading.Thread.start", RuntimeError("can't start new thread")),
    ],
)
def test_no_threads_are_an_error_of_the_tensor(open_disk, monkeypatch, what, error):
    """Who waits would wait for ever."""

    def refused(*args, **kwargs):
        raise error

    disk = open_disk()
    with monkeypatch.context() as patch:
        patch.setattr(what, refused)
        ticket = disk.put(torch.ones(1000), label="h.5")
        with pytest.raises(TierError, match=r"'h.5' .* could not be written .* no thread"):
            disk.settle(ticket)
    del ticket
    x = torch.randn(1000)
    assert same_bits(round_trip(disk, x), x)
    assert disk.in_use().num_threads == 2


def test_a_thread_that_has_no_memory_leaves_the_others(open_disk, monkeypatch):
    buffers = [Buffer(4096), OSError(errno.ENOMEM, "Cannot allocate memory")]

    def one_only(chunk_bytes):
        made = buffers.pop(0)
        if isinstance(made, OSError):
            raise made
        return made

    disk = open_disk(chunk_bytes=4096, faulty=True)
    x = torch.randn(10_000)
    with monkeypatch.context() as patch:
        patch.setattr("legroom.tiers._engine.Buffer", one_only)
        ticket = disk.put(x)
        assert disk.in_use().num_threads == 1
    assert same_bits(disk.get(ticket, *layout(x)), x)
    assert disk.in_use().num_threads == 2


def test_a_synchronous_tier_without_memory_says_so(open_disk, monkeypatch):
    disk = open_disk(synchronous=True)

    def refused(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr("legroom.tiers._memory.mmap.mmap", refused)
        with pytest.raises(TierError, match=r"'h.6' .* could not be written to tier 'disk'"):
            disk.settle(disk.put(torch.ones(1000), label="h.6"))
    x = torch.randn(1000)
    assert same_bits(round_trip(disk, x), x)


def test_a_removed_folder_changes_nothing(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    with Disk.open(folder, allow_tmpfs=True).closing() as disk:
        folder.rmdir()
        x = torch.randn(1000)
        assert same_bits(round_trip(disk, x), x)
        assert disk.free_bytes() > 0
        assert disk.describe()["where"] == str(folder)
        with pytest.raises(TierSpaceError):
            disk.reserve(1 << 60)


def test_who_waits_looks_up(open_disk, monkeypatch):
    """A signal right before a wait does not end it: its exception needs a line of Python."""
    monkeypatch.setattr("legroom.tiers._engine._LOOKING_UP_SECONDS", 0.01)
    disk = open_disk(faulty=True)
    disk.file.gate.clear()
    ticket = disk.put(torch.ones(1000))
    done = disk._engine._done
    waits = []

    class Interrupted:
        def wait(self, timeout=None):
            assert timeout is not None, "nobody would ever look up"
            waits.append(timeout)
            if len(waits) == 3:
                raise KeyboardInterrupt
            return done.wait(timeout)

        def __getattr__(self, name):
            return getattr(done, name)

    disk._engine._done = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        disk.settle(ticket)
    disk._engine._done = done
    disk.file.gate.set()
    disk.settle(ticket)
