import gc
import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from legroom.errors import UsageError
from tests.unit.tiers.holding import layout, round_trip, same_bits, used_when_idle

MiB = 1024**2
KINDS = [
    pytest.param({}, id="as-it-is"),
    pytest.param({"direct": False}, id="page-cache"),
    pytest.param({"synchronous": True}, id="synchronous"),
    pytest.param({"threads": 4, "chunk_bytes": 8192}, id="small-chunks"),
]
DTYPES = [
    torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.fixture(params=KINDS)
def any_disk(request, open_disk, tmp_path):
    options = dict(request.param)
    faulty = "chunk_bytes" in options
    return open_disk(faulty=faulty, **options)


def some_bits(num_bytes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("num_bytes", [1, 64, 4095, 4096, 4097, 12288, 70001, 4 * MiB, 9 * MiB + 7])
def test_every_length_comes_back(any_disk, num_bytes):
    x = some_bits(num_bytes)
    assert same_bits(round_trip(any_disk, x), x)
    assert same_bits(round_trip(any_disk, x, fetched=False, settled=False), x)


@pytest.mark.parametrize("start", [0, 1, 64, 448, 4032, 5000])
def test_every_alignment_comes_back(any_disk, start):
    """What it comes back to lies elsewhere within a block; see Note [Chunks]."""
    x = some_bits(70_000)[start : start + 40_000]
    for _ in range(3):
        assert same_bits(round_trip(any_disk, x), x)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    some.sampled_from(DTYPES),
    some.lists(some.integers(0, 9), max_size=4),
    some.randoms(use_true_random=False),
)
def test_any_tensor_comes_back(disk, dtype, size, dice):
    order = list(range(len(size)))
    dice.shuffle(order)
    count = torch.Size(size).numel()
    bits = some_bits(max(1, count) * dtype.itemsize, seed=count)
    if dtype is torch.bool:
        bits = bits % 2
    x = bits.view(dtype)[:count].view(size).permute(order)
    assert same_bits(round_trip(disk, x), x)


def test_the_layout_asked_for_is_given(disk):
    x = torch.arange(24.0).view(2, 3, 4)
    ticket = disk.put(x)
    y = disk.get(ticket, (4, 6), (1, 4), torch.float32)
    assert y.stride() == (1, 4)
    assert y._base is None
    assert torch.equal(y, x.flatten().as_strided((4, 6), (1, 4)))


def test_other_lengths_are_refused(disk):
    ticket = disk.put(torch.ones(4), label="h.0.mlp")
    with pytest.raises(UsageError, match=r"'h.0.mlp' on tier 'disk' has 16 bytes"):
        disk.get(ticket, (5,), (1,), torch.float32)
    with pytest.raises(UsageError, match="does not lie densely"):
        disk.get(ticket, (4,), (2,), torch.float32)


def test_what_is_put_is_not_what_is_got(disk):
    x = torch.ones(1000)
    y = round_trip(disk, x)
    assert y.data_ptr() != x.data_ptr()
    x.zero_()
    assert y.sum() == 1000


def test_put_keeps_memory_until_settled(open_disk):
    disk = open_disk(faulty=True)
    disk.file.gate.clear()
    ticket = disk.put(torch.ones(MiB))
    assert disk.in_use().in_flight_bytes == 4 * MiB
    disk.file.gate.set()
    ticket = disk.settle(ticket)
    used = disk.in_use()
    assert (used.in_flight_bytes, used.held_bytes, used.num_slots) == (0, 4 * MiB, 1)
    ticket = disk.fetch(ticket)
    assert disk.in_use().in_flight_bytes == 4 * MiB
    y = disk.get(ticket, (MiB,), (1,), torch.float32)
    assert disk.in_use().in_flight_bytes == 0
    assert y.sum() == MiB


def test_a_slot_goes_with_its_last_ticket(disk):
    first = disk.put(torch.ones(1000))
    second = disk.settle(first)
    third = disk.fetch(second)
    del first
    assert disk.in_use().num_slots == 1
    del second
    assert disk.get(third, (1000,), (1,), torch.float32).sum() == 1000
    assert disk.in_use().num_slots == 1
    del third
    used = disk.in_use()
    assert (used.num_slots, used.held_bytes, used.in_flight_bytes) == (0, 0, 0)


def test_a_ticket_can_be_got_often(any_disk):
    x = some_bits(50_000)
    ticket = any_disk.put(x)
    got = [any_disk.get(ticket, *layout(x)) for _ in range(3)]
    assert all(same_bits(y, x) for y in got)
    assert len({y.data_ptr() for y in got}) == 3


def test_a_ticket_dropped_at_once_leaves_nothing(open_disk):
    disk = open_disk(faulty=True)
    disk.file.gate.clear()
    for _ in range(20):
        disk.put(torch.ones(100_000))
    disk.file.gate.set()
    assert used_when_idle(disk).num_slots == 0
    assert disk._extents.num_bytes == 0


def test_tensors_without_bytes_work(any_disk):
    x = torch.empty(3, 0, 2)
    assert same_bits(round_trip(any_disk, x), x)
    assert any_disk.in_use().reserved_bytes == 0


def test_finished_writes_are_reaped(disk):
    tickets = [disk.put(torch.ones(1000))]
    disk._engine.wait(next(iter(disk._slots.values())).write)
    tickets.append(disk.put(torch.ones(1000)))
    disk.settle(tickets[1])
    assert disk.in_use().in_flight_bytes == 0


def test_reads_go_before_writes(open_disk):
    disk = open_disk(faulty=True, threads=1)
    x = torch.ones(1000)
    ready = disk.settle(disk.put(x))
    disk.file.gate.clear()
    del disk.file.moves[:]
    tickets = [disk.put(x) for _ in range(5)]
    while not disk.file.moves:  # until the thread is at the first of them
        time.sleep(0.001)
    fetched = disk.fetch(ready)
    del disk.file.moves[:]
    disk.file.gate.set()
    disk.get(fetched, *layout(x))
    for ticket in tickets:
        disk.settle(ticket)
    assert [verb for verb, _ in disk.file.moves] == ["read", *["write"] * 4]


def test_a_write_that_is_awaited_goes_first(open_disk):
    """Whoever gets what is not yet written waits for one write, not for all before it."""
    disk = open_disk(faulty=True, threads=1)
    x = torch.ones(1000)
    disk.file.gate.clear()
    tickets = [disk.put(x) for _ in range(6)]
    while not disk.file.moves:
        time.sleep(0.001)
    getter = threading.Thread(target=disk.get, args=(tickets[-1], *layout(x)))
    getter.start()
    while disk._slots[int(tickets[-1])].read is None or not any(
        place[0] == 0 for place in disk._engine._queue
    ):
        time.sleep(0.001)
    disk.file.gate.set()
    getter.join()
    for ticket in tickets:
        disk.settle(ticket)
    written = [offset for verb, offset in disk.file.moves if verb == "write"]
    assert [sorted(written).index(offset) for offset in written] == [0, 5, 1, 2, 3, 4]
    assert disk.file.moves[2][0] == "read"


def test_chunks_of_one_tensor_run_together(open_disk):
    disk = open_disk(faulty=True, threads=2, chunk_bytes=65536)
    both = threading.Barrier(2, timeout=30)
    met = []

    def meet(pieces, offset):
        if not met:
            both.wait()
            met.append(True)

    disk.file.on_write = meet
    disk.settle(disk.put(torch.ones(2 * 65536 // 4)))
    assert met


def test_several_threads_use_one_tier(disk):
    wrong = []

    def train(seed):
        dice = torch.Generator().manual_seed(seed)
        for _ in range(15):
            xs = [torch.randn(20_000 + 1000 * n, generator=dice) for n in range(4)]
            tickets = [disk.settle(disk.put(x)) for x in xs]
            tickets = [disk.fetch(ticket) for ticket in reversed(tickets)]
            for x, ticket in zip(reversed(xs), tickets, strict=True):
                if not same_bits(disk.get(ticket, *layout(x)), x):
                    wrong.append(seed)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert disk.in_use().num_slots == 0


def test_two_threads_get_the_same_ticket(open_disk):
    disk = open_disk(faulty=True)
    x = some_bits(300_000)
    ticket = disk.settle(disk.put(x))
    disk.file.gate.clear()
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(disk.get(ticket, *layout(x)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    disk.file.gate.set()
    for thread in threads:
        thread.join()
    assert all(same_bits(y, x) for y in got)
    assert len({y.data_ptr() for y in got}) == 3


def test_reserved_space_is_not_grown_beyond(open_disk):
    disk = open_disk(faulty=True)
    disk.reserve(100 * MiB)
    assert disk.in_use().reserved_bytes == 100 * MiB
    tickets = [disk.put(torch.empty(MiB)) for _ in range(20)]
    assert disk.file.num_grown == 1
    disk.reserve(0)
    disk.reserve(10 * MiB)
    assert disk.in_use().reserved_bytes == 100 * MiB
    disk.reserve(90 * MiB)
    assert disk.in_use().reserved_bytes > 165 * MiB
    del tickets


def test_memory_is_released_in_the_calling_thread(disk):
    """Rule 4 of Note [Tickets], seen by what PyTorch's profiler sees."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        x = torch.ones(MiB)
        ticket = disk.put(x)
        del x
        ticket = disk.settle(ticket)
        y = disk.get(ticket, (MiB,), (1,), torch.float32)
        del y
    sizes = [
        event.nbytes()
        for event in seen.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    assert sum(size for size in sizes if abs(size) >= MiB) == 0
    assert [size for size in sizes if abs(size) >= MiB] == [4 * MiB, -4 * MiB] * 2


def test_cycles_release_their_slots(disk):
    class Loop:
        pass

    loop = Loop()
    loop.self, loop.ticket = loop, disk.put(torch.ones(1000))
    disk.settle(loop.ticket)
    del loop
    gc.collect()
    assert disk.in_use().num_slots == 0
