"""What waits for what, on a device that does its work in any order that is allowed."""

import random

import pytest
import torch

from legroom.errors import TierError, TierSpaceError, UsageError
from legroom.tiers import Host
from legroom.tiers._layout import Layout
from tests.unit.tiers.simulated_device import SimulatedDevice

CPU = torch.device("cpu")
LAYOUT = Layout((10, 50), (1, 10), torch.float32)


def train(device, host, dice, *, steps=3, depth=6):
    """Forward and backward as a plan would have them; what computing found wrong."""
    wrong = []

    def disturb():
        """Computing takes memory that was just let go, and writes into it."""
        for _ in range(dice.randint(0, 2)):
            device.fill(device.new_tensor(LAYOUT, CPU), 255)

    for _ in range(steps):
        tickets, unsettled = [], []
        for number in range(depth):
            x = device.new_tensor(LAYOUT, CPU)
            device.fill(x, number)
            tickets.append(host.put(x))
            del x
            unsettled.append(number)
            while unsettled and dice.random() < 0.6:
                place = unsettled.pop(0)
                tickets[place] = host.settle(tickets[place])
            disturb()
        while tickets:
            number = len(tickets) - 1
            for ahead in range(dice.randint(0, min(3, number))):
                tickets[number - ahead - 1] = host.fetch(tickets[number - ahead - 1])
            ticket = tickets.pop()
            if dice.random() < 0.1:
                continue  # an exception: nobody gets it
            for _ in range(dice.choice([1, 1, 2])):
                y = host.get(ticket, LAYOUT.size, LAYOUT.stride, LAYOUT.dtype)
                device.check(y, number, wrong)
                del y
                disturb()
            del ticket
    device.finish()
    return wrong


def test_any_allowed_order_gives_the_same_bytes():
    for seed in range(60):
        dice = random.Random(seed)
        device = SimulatedDevice(dice)
        host = Host(device)
        assert train(device, host, dice) == [], seed
        used = host.in_use()
        assert (used.num_slots, used.held_bytes, used.in_flight_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    "ignored",
    [
        ("outward", "compute"),
        ("compute", "outward"),
        ("inward", "compute"),
        ("inward", "outward"),
        ("compute", "inward"),
    ],
    ids=lambda pair: f"{pair[0]}-for-{pair[1]}",
)
def test_every_wait_is_needed(ignored):
    """The simulation would notice if one were missing."""
    for seed in range(400):
        dice = random.Random(seed)
        device = SimulatedDevice(dice, ignored=ignored)
        if train(device, Host(device), dice):
            return
    pytest.fail(f"no order of work shows that {ignored} is missing")


def in_two_queues(seed, *, ignored=None):
    """One queue gets a tensor, another one puts the next into the same host memory."""
    wrong = []
    device = SimulatedDevice(random.Random(seed), ignored=ignored)
    host = Host(device)
    x = device.new_tensor(LAYOUT, CPU)
    device.fill(x, 3)
    ticket = host.settle(host.put(x))
    y = host.get(ticket, LAYOUT.size, LAYOUT.stride, LAYOUT.dtype)
    del ticket
    device.computing = "other"
    z = device.new_tensor(LAYOUT, CPU)
    device.fill(z, 9)
    ticket = host.put(z)
    device.computing = "compute"
    device.check(y, 3, wrong)
    device.finish()
    del ticket
    return wrong


def test_host_memory_is_not_used_too_early():
    """Note [Marks], rule 5: with one queue of computing the others imply it, with two not."""
    assert not any(in_two_queues(seed) for seed in range(100))
    assert any(in_two_queues(seed, ignored=("outward", "inward")) for seed in range(100))


def test_copies_hide_behind_computing():
    """Eight layers of 10 ms and copies of 2 ms: 160 ms of computing, and one copy in the open."""
    device = SimulatedDevice()
    host = Host(device)
    tickets = []
    for number in range(8):
        x = device.new_tensor(LAYOUT, CPU)
        device.run(lambda: None, 10.0)
        device.fill(x, number)
        tickets.append(host.put(x))
        del x
        if number:
            tickets[number - 1] = host.settle(tickets[number - 1])
    tickets[-1] = host.settle(tickets[-1])
    fetched = host.fetch(tickets.pop())
    for _ in range(8):
        ahead = host.fetch(tickets.pop()) if tickets else None
        host.get(fetched, LAYOUT.size, LAYOUT.stride, LAYOUT.dtype)
        device.run(lambda: None, 10.0)
        fetched = ahead
    computing_ms = 8 * 11 + 8 * 10
    assert computing_ms < device.finish() <= computing_ms + 4


def test_a_tensor_of_the_host_is_refused():
    host = Host(SimulatedDevice())
    with pytest.raises(UsageError, match=r"'h.0' is on 'cpu'; tier 'host' is for tensors of an"):
        host.put(torch.ones(3), label="h.0")
    assert host.in_use().num_slots == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_there_is_no_host_tier():
    with pytest.raises(TierError, match=r"no CUDA device here.\n  try: the disk"):
        Host.open()


def test_host_memory_that_is_not_there_is_named():
    class Poor(SimulatedDevice):
        def new_host_bytes(self, num_bytes):
            raise RuntimeError("cannot pin memory")

    device = Poor()
    host = Host(device)
    with pytest.raises(TierSpaceError, match=r"the host tier needs 64.00 MiB more") as caught:
        host.put(device.new_tensor(LAYOUT, CPU))
    assert "LEGROOM_DISK" not in str(caught.value)
    del caught


def test_slabs_are_used_again():
    device = SimulatedDevice()
    host = Host(device)
    host.put(device.new_tensor(LAYOUT, CPU))
    before = host.in_use().reserved_bytes
    for _ in range(100):
        ticket = host.settle(host.put(device.new_tensor(LAYOUT, CPU)))
        host.get(ticket, LAYOUT.size, LAYOUT.stride, LAYOUT.dtype)
        del ticket
    assert host.in_use().reserved_bytes == before
    device.finish()


def test_tensors_without_bytes_and_wrong_layouts():
    device = SimulatedDevice()
    host = Host(device)
    empty = Layout((0, 3), (3, 1), torch.float32)
    ticket = host.put(device.new_tensor(empty, CPU))
    assert host.get(host.fetch(ticket), empty.size, empty.stride, empty.dtype).shape == (0, 3)
    ticket = host.put(device.new_tensor(LAYOUT, CPU))
    with pytest.raises(UsageError, match="cannot be given back as"):
        host.get(ticket, (3,), (1,), torch.float32)


def test_a_closed_tier_says_so():
    device = SimulatedDevice()
    host = Host(device)
    ticket = host.put(device.new_tensor(LAYOUT, CPU))
    other = Host(device)
    with pytest.raises(TierError, match="is not of this 'host' tier"):
        other.settle(ticket)
    host.close()
    with pytest.raises(TierError, match="is closed"):
        host.settle(ticket)
    device.finish()
