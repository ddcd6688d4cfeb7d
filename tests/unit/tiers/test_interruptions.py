import gc
import random
import signal
import threading
import time

import pytest
import torch

from tests.unit.tiers.holding import layout, same_bits, used_when_idle
from tests.unit.tiers.interrupting import Interrupter

NUM_POINTS = 200
FILES = ["legroom/tiers/"]


def train(disk, xs, *, again):
    tickets = [again(lambda x=x: disk.put(x)) for x in xs]
    tickets = [again(lambda t=t: disk.settle(t)) for t in tickets]
    got = []
    while tickets:
        ticket = tickets.pop()
        expected = layout(xs[len(tickets)])
        ticket = again(lambda t=ticket: disk.fetch(t))
        got.append(again(lambda t=ticket, e=expected: disk.get(t, *e)))
    return got[::-1]


def once(ask):
    return ask()


def insistently(ask):
    while True:
        try:
            return ask()
        except KeyboardInterrupt:
            pass


def nothing_is_left(disk):
    used = used_when_idle(disk)
    if used.num_slots:
        gc.collect()
        used = used_when_idle(disk)
    return (used.num_slots, used.in_flight_bytes, disk._extents.num_bytes) == (0, 0, 0)


@pytest.fixture(params=[False, True], ids=["threads", "synchronous"])
def any_disk(request, open_disk):
    return open_disk(synchronous=request.param)


@pytest.fixture
def xs():
    return [torch.randn(count) for count in (10, 3000, 40_000)]


def points(disk, xs):
    counter = Interrupter(FILES)
    with counter.running():
        train(disk, xs, again=once)
    return random.Random(7).sample(range(1, counter.num_lines + 1), NUM_POINTS)


def test_interrupted_steps_leave_nothing(any_disk, xs):
    places = set()
    for at in points(any_disk, xs):
        interrupter = Interrupter(FILES, at=at)
        try:
            with interrupter.running():
                train(any_disk, xs, again=once)
        except KeyboardInterrupt:
            places.add(interrupter.where)
        assert nothing_is_left(any_disk), interrupter.where
        assert all(map(same_bits, train(any_disk, xs, again=once), xs))
    assert len(places) >= 50


def test_interrupted_calls_can_be_repeated(any_disk, xs):
    for at in points(any_disk, xs):
        interrupter = Interrupter(FILES, at=at)
        with interrupter.running():
            got = train(any_disk, xs, again=insistently)
        assert all(map(same_bits, got, xs)), interrupter.where
        del got
        assert nothing_is_left(any_disk), interrupter.where


@pytest.fixture
def ctrl_c():
    """A program in the background of a shell is started so that it ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_real_signals_while_waiting(open_disk, xs):
    disk = open_disk(faulty=True)
    dice = random.Random(3)
    num_interrupted = 0

    def press():
        time.sleep(dice.random() * 0.02)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        disk.file.gate.set()

    def counting(ask):
        nonlocal num_interrupted
        while True:
            try:
                return ask()
            except KeyboardInterrupt:
                num_interrupted += 1

    for _ in range(50):
        disk.file.gate.clear()
        presser = threading.Thread(target=press)
        before = num_interrupted
        try:
            presser.start()
            got = train(disk, xs, again=counting)
            presser.join()
        except KeyboardInterrupt:
            num_interrupted += 1
            presser.join()
            continue
        assert all(map(same_bits, got, xs))
        assert num_interrupted <= before + 1
    assert num_interrupted == 50
    del got
    assert nothing_is_left(disk)
