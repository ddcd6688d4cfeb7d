import contextlib
import copy
import errno
import gc
import os
import random
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

import legroom
from legroom import tiers, ways
from legroom.errors import (
    SavedTensorModifiedError,
    TierError,
    TierSpaceError,
    UnknownNameError,
    UsageError,
)
from legroom.tiers import Disk
from tests.unit.tiers.faulty_file import FaultyFile, failing
from tests.unit.tiers.holding import used_when_idle
from tests.unit.tiers.interrupting import Interrupter

KiB = 1024


@pytest.fixture
def disk(tmp_path):
    tier = Disk(FaultyFile(tmp_path))
    tier.file = tier._file
    with tier.closing():
        yield tier


class Net(nn.Module):
    """Saves views, slices, masks, outputs and inputs."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.project = nn.Linear(32, 96)
        self.mix = nn.Linear(32, 32)
        self.convolve = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        for _ in range(2):
            q, k, v = self.project(self.norm(x)).chunk(3, -1)
            x = x + functional.dropout(torch.softmax(q @ k.transpose(1, 2), -1) @ v, 0.2)
            x = x + functional.gelu(self.mix(x)).tanh()
            x = torch.relu_(self.convolve(x)) + x.exp().clamp(max=3).pow(2)
        return x.mean()


@pytest.fixture
def net():
    torch.manual_seed(1)
    return Net()


@pytest.fixture
def x():
    return torch.randn(16, 8, 32)


def gradients(net, x, **options):
    torch.manual_seed(5)
    net.zero_grad()
    if options:
        with legroom.offload(**options) as moved:
            loss = net(x)
    else:
        moved, loss = None, net(x)
    loss.backward()
    return [loss.detach(), *(param.grad.clone() for param in net.parameters())], moved


def all_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("ahead_bytes", [0, 10 * KiB, 1 << 30])
@pytest.mark.parametrize("in_flight_bytes", [0, 20 * KiB, 1 << 30])
def test_gradients_have_the_same_bits(net, x, disk, in_flight_bytes, ahead_bytes):
    plain, _ = gradients(net, x)
    for min_bytes in (0, 8 * KiB):
        moved, session = gradients(
            net, x, tier=disk, min_bytes=min_bytes, in_flight_bytes=in_flight_bytes,
            ahead_bytes=ahead_bytes,
        )  # fmt: skip
        assert all_equal(plain, moved)
        assert session.num_moved > 5
    assert used_when_idle(disk).num_slots == 0


def test_synchronous_agrees(net, x, tmp_path, monkeypatch):
    monkeypatch.setenv("LEGROOM_DISK", str(tmp_path))
    plain, _ = gradients(net, x)
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        moved, session = gradients(net, x, synchronous=True, min_bytes=KiB)
        assert all_equal(plain, moved)
        assert session.num_moved > 5
        del session
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize("shrink", [None, ("bits", "float16")])
def test_autocast_inside(disk, shrink):
    net, x = Chain(depth=3, width=64), torch.randn(32, 64)

    def step(context):
        net.zero_grad()
        with context, torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(x).float().sum()
        loss.backward()
        return [param.grad.clone() for param in net.parameters()]

    plain = step(contextlib.nullcontext())
    moved = step(legroom.offload(tier=disk, min_bytes=1, shrink=shrink))
    assert all_equal(plain, moved)  # float16 holds every bfloat16 of this size


def test_the_tier_is_found_by_name(net, x, tmp_path):
    plain, _ = gradients(net, x)
    with tiers.use(folder=tmp_path) as disk:
        moved, _ = gradients(net, x, tier="disk", min_bytes=KiB)
        assert disk.in_use().reserved_bytes > 0
    assert all_equal(plain, moved)


class Chain(nn.Module):
    def __init__(self, depth=6, width=512):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_every_saved_tensor_is_on_the_disk(disk):
    net, x = Chain(), torch.randn(512, 512)
    with legroom.offload(tier=disk, in_flight_bytes=0, min_bytes=KiB):
        loss = net(x).sum()
    used = disk.in_use()
    assert used.held_bytes == 7 * 512 * 512 * 4
    assert used.in_flight_bytes == 0
    loss.backward()
    assert disk.in_use().held_bytes == 0


def test_allocator_peak_falls(disk):
    from torch.profiler import ProfilerActivity, profile

    net, x = Chain(depth=12), torch.randn(1024, 512)

    def peak(**options):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            if options:
                with legroom.offload(tier=disk, **options):
                    loss = net(x).sum()
            else:
                loss = net(x).sum()
            loss.backward()
            net.zero_grad()
        live = highest = 0
        for event in seen.profiler.kineto_results.events():
            if event.name() == "[memory]":
                live += event.nbytes()
                highest = max(highest, live)
        return highest

    plain = peak()
    moved = peak(in_flight_bytes=0, ahead_bytes=0)
    tensor = 1024 * 512 * 4
    assert plain > 12 * tensor
    gradient_bytes = sum(param.numel() * 4 for param in net.parameters())
    assert moved < gradient_bytes + 3 * tensor


def test_parameters_and_small_tensors_stay(disk):
    net = Chain(depth=2, width=64)
    with legroom.offload(tier=disk, min_bytes=1) as session:
        loss = net(torch.randn(4, 64, requires_grad=True)).sum()
    # weights (transposed) of both layers and the input are kept, two outputs of tanh are moved
    assert (session.num_moved, session.moved_bytes) == (2, 2 * 4 * 64 * 4)
    assert session.num_kept == 3
    loss.backward()
    with legroom.offload(tier=disk) as session:
        net(torch.randn(4, 64)).sum()
    assert session.num_moved == 0


def test_the_same_storage_is_written_once(disk):
    a = torch.randn(1000, requires_grad=True)
    with legroom.offload(tier=disk, min_bytes=1) as session:
        b = a.exp()
        loss = (b * b).sum() + (b.view(10, 100).t() * 2).sin().sum() + (b[::2] * b[1::2]).sum()
    assert session.num_shared >= 3
    plain = copy.deepcopy(a.detach()).requires_grad_()
    c = plain.exp()
    ((c * c).sum() + (c.view(10, 100).t() * 2).sin().sum() + (c[::2] * c[1::2]).sum()).backward()
    del b
    loss.backward()
    assert torch.equal(a.grad, plain.grad)


def test_what_changed_between_saves_is_another_tensor(disk):
    a = torch.randn(1000, requires_grad=True)
    with legroom.offload(tier=disk, min_bytes=1) as session:
        b = a.sin()  # saves a, which stays
        c = b * torch.ones(1000)
        first = c.detach()
        torch.sigmoid(a * first)  # saves first, version 0
        first.add_(1)
        loss = torch.sigmoid(a * first).sum()
    assert session.num_moved >= 3
    expected = copy.deepcopy(a.detach()).requires_grad_()
    torch.sigmoid(expected * (expected.sin().detach() + 1)).sum().backward()
    loss.backward()
    assert torch.equal(a.grad, expected.grad)


@pytest.mark.parametrize("min_bytes", [1, 1 << 30], ids=["moved", "kept"])
def test_changes_in_place_are_noticed(disk, min_bytes):
    a = torch.randn(1000, requires_grad=True)
    for change in (
        lambda b: b.add_(1),
        lambda b: b.view(10, 100).zero_(),
        lambda b: b.detach().mul_(2),
    ):
        for is_dropped in (False, True):
            with legroom.offload(tier=disk, min_bytes=min_bytes):
                b = a.exp()
                loss = (b * b).sum()
                change(b)
                if is_dropped:
                    del b
            with pytest.raises(SavedTensorModifiedError, match="modified by an inplace operation"):
                loss.backward()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_parameters_changed_before_backward_are_noticed(disk):
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with legroom.offload(tier=disk, min_bytes=1):
        loss = net(torch.randn(4, 8)).sum()
    with torch.no_grad():
        net[1].weight.add_(1)
    with pytest.raises(SavedTensorModifiedError, match=r"float32\[8, 8\]"):
        loss.backward()


def test_graphs_can_be_retained(net, x, disk):
    torch.manual_seed(5)
    net(x).backward()
    once = [param.grad.clone() for param in net.parameters()]
    net.zero_grad()
    torch.manual_seed(5)
    with legroom.offload(tier=disk, min_bytes=1):
        loss = net(x)
    loss.backward(retain_graph=True)
    assert all_equal(once, [param.grad for param in net.parameters()])
    net.zero_grad()
    loss.backward()
    assert all_equal(once, [param.grad for param in net.parameters()])
    del loss
    assert used_when_idle(disk).num_slots == 0


def test_several_forwards_before_one_backward(net, disk):
    xs = [torch.randn(4, 8, 32) for _ in range(3)]
    torch.manual_seed(5)
    sum(net(x) for x in xs).backward()
    plain = [param.grad.clone() for param in net.parameters()]
    net.zero_grad()
    torch.manual_seed(5)
    losses = []
    for x in xs:
        with legroom.offload(tier=disk, min_bytes=1):
            losses.append(net(x))
    sum(losses).backward()
    assert all_equal(plain, [param.grad for param in net.parameters()])


def test_backward_in_another_thread(net, x, disk):
    plain, _ = gradients(net, x)
    net.zero_grad()
    torch.manual_seed(5)
    with legroom.offload(tier=disk, min_bytes=1):
        loss = net(x)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert all_equal(plain[1:], [param.grad for param in net.parameters()])


def test_gradients_of_gradients(disk):
    a = torch.randn(300, requires_grad=True)

    def twice(context):
        with context:
            loss = (a.sin() * a.exp()).pow(2).sum()
            (first,) = torch.autograd.grad(loss, a, create_graph=True)
            penalty = first.pow(2).sum()
        return torch.autograd.grad(penalty, a)[0]

    plain = twice(contextlib.nullcontext())
    assert torch.equal(twice(legroom.offload(tier=disk, min_bytes=1)), plain)


def test_nested_uses_count_the_inner_one(net, x, disk):
    plain, _ = gradients(net, x)
    net.zero_grad()
    torch.manual_seed(5)
    with legroom.offload(tier=disk, min_bytes=1) as outer:
        with legroom.offload(tier=disk, min_bytes=1) as inner:
            loss = net(x)
        loss = loss * 1
    assert inner.num_moved > 5
    assert outer.num_moved == 0
    loss.backward()
    assert all_equal(plain[1:], [param.grad for param in net.parameters()])


def test_checkpointing_inside(disk):
    from torch.utils.checkpoint import checkpoint

    net, x = Chain(depth=3, width=32), torch.randn(8, 32)
    net(x).sum().backward()
    plain = [param.grad.clone() for param in net.parameters()]
    for use_reentrant in (False, True):
        net.zero_grad()
        with legroom.offload(tier=disk, min_bytes=1):
            h = x.clone().requires_grad_()
            for layer in net.layers:
                h = checkpoint(lambda v, m=layer: torch.tanh(m(v)), h, use_reentrant=use_reentrant)
            h.sum().backward()
        assert all_equal(plain, [param.grad for param in net.parameters()])


def test_an_exception_between_forward_and_backward(net, x, disk):
    def fail():
        with legroom.offload(tier=disk, min_bytes=1):
            loss = net(x)
            assert disk.in_use().num_slots > 0
            raise KeyError(str(loss.shape))

    with pytest.raises(KeyError):
        fail()
    gc.collect()
    assert used_when_idle(disk).num_slots == 0
    plain, _ = gradients(net, x)
    assert all_equal(plain, gradients(net, x, tier=disk, min_bytes=1)[0])


def test_a_full_disk_is_said_in_forward(net, x, tmp_path):
    disk = Disk(FaultyFile(tmp_path, limit_bytes=64 * KiB))
    before = [param.detach().clone() for param in net.parameters()]
    with disk.closing():
        with pytest.raises(TierSpaceError, match="LEGROOM_DISK"):
            gradients(net, x, tier=disk, min_bytes=1)
        gc.collect()
        assert used_when_idle(disk).num_slots == 0
    assert all_equal(before, [param.detach() for param in net.parameters()])


def test_a_failed_read_is_said_in_backward(net, x, disk):
    with legroom.offload(tier=disk, min_bytes=1, in_flight_bytes=0):
        loss = net(x)
    disk.file.on_read = failing(errno.EIO)
    with pytest.raises(TierError, match=r"saved tensor \d+, float32\[.*could not be read"):
        loss.backward()
    disk.file.on_read = None
    del loss
    gc.collect()
    plain, _ = gradients(net, x)
    assert all_equal(plain, gradients(net, x, tier=disk, min_bytes=1)[0])
    assert used_when_idle(disk).num_slots == 0


def test_a_failed_write_is_said(net, x, disk):
    disk.file.on_write = failing(errno.EIO)
    with pytest.raises(TierError, match="could not be written"):
        gradients(net, x, tier=disk, min_bytes=1, in_flight_bytes=0)


def test_masks_are_held_in_bits(disk):
    x = torch.randn(64, 64, requires_grad=True)

    def step(**options):
        torch.manual_seed(2)
        with legroom.offload(tier=disk, min_bytes=1, **options) as session:
            loss = (torch.where(x > 0, x.sin(), x) * x.detach().exp()).sum()
        return torch.autograd.grad(loss, x)[0], session

    plain, whole = step()
    shrunk, packed = step(shrink="bits")
    assert torch.equal(plain, shrunk)
    assert whole.num_moved == packed.num_moved
    assert whole.moved_bytes - packed.moved_bytes == 64 * 64 * 7 // 8


@pytest.mark.parametrize("name", ["bfloat16", "float8-e4m3", "integer8"])
def test_lossy_forms_are_near(disk, name):
    net, x = Chain(width=128), torch.randn(64, 128)
    net.forward = lambda x, forward=net.forward: forward(x).sum()
    plain, whole = gradients(net, x, tier=disk, min_bytes=1)
    shrunk, session = gradients(net, x, tier=disk, min_bytes=1, shrink=("bits", name))
    assert session.moved_bytes < 0.7 * whole.moved_bytes
    assert not all_equal(plain, shrunk)
    for exact, near in zip(plain, shrunk, strict=True):
        assert (near - exact).norm() <= 0.1 * exact.norm() + 1e-4


@pytest.mark.parametrize("name", ["sign", "sparse", "remake", "hold", "fewbit2", "sketch"])
def test_forms_that_need_a_plan_are_refused(name):
    assert name in ways.names()
    with pytest.raises(UsageError, match=f"shrink='{name}' cannot be used .*"):
        with legroom.offload(shrink=name):
            pass


def test_wrong_options_are_named(disk):
    for options, message in (
        ({"shrink": "bit"}, "unknown way 'bit'"),
        ({"tier": "disc"}, "unknown tier 'disc'"),
        ({"min_bytes": -1}, "min_bytes is -1"),
        ({"ahead_bytes": "1GiB"}, "ahead_bytes is '1GiB'"),
    ):
        with pytest.raises((UsageError, UnknownNameError), match=message):
            with legroom.offload(**options):
                pass


def test_sparse_and_conjugated_tensors_stay(disk):
    a = torch.randn(8, 8, requires_grad=True)
    c = torch.randn(64, dtype=torch.complex64, requires_grad=True)
    plain = torch.autograd.grad((c.conj() * c.exp()).abs().sum(), c)[0]
    with legroom.offload(tier=disk, min_bytes=1):
        sparse = torch.sparse.mm(torch.eye(8).to_sparse(), a).sin().sum()
        loss = (c.conj() * c.exp()).abs().sum()
    assert torch.equal(torch.autograd.grad(loss, c)[0], plain)
    assert torch.equal(torch.autograd.grad(sparse, a)[0], a.cos())


@pytest.fixture
def _quick_collections():
    """Only what a test makes is looked at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_quick_collections")
def test_interrupted_steps_leave_nothing(net, x, disk):
    """Ctrl-C at 60 points of forward and backward, in the tier and in the hooks."""
    files = ["legroom/tiers/", "legroom/engine/hooks/"]
    options = {"tier": disk, "min_bytes": 1, "in_flight_bytes": 20 * KiB}
    plain, _ = gradients(net, x)
    counter = Interrupter(files)
    with counter.running():
        gradients(net, x, **options)
    places = set()
    for at in random.Random(4).sample(range(1, counter.num_lines), 60):
        interrupter = Interrupter(files, at=at)
        try:
            with interrupter.running():
                moved, _ = gradients(net, x, **options)
                assert all_equal(plain, moved)
        except KeyboardInterrupt:
            places.add(interrupter.where)
            torch.ones(1, requires_grad=True).sum().backward()  # Note [Saved tensors], rule 7
            if disk.in_use().num_slots:
                gc.collect()
        assert used_when_idle(disk).num_slots == 0, interrupter.where
        assert disk._extents.num_bytes == 0
    assert len(places) >= 30
    assert all_equal(plain, gradients(net, x, **options)[0])


def test_two_hundred_steps_grow_nothing(disk):
    net, x = Chain(depth=3, width=64), torch.randn(64, 64)
    seen = []
    for step in range(200):
        with legroom.offload(tier=disk, min_bytes=1):
            loss = net(x).sum()
        loss.backward()
        del loss
        if step in (10, 199):
            seen.append((used_when_idle(disk), disk.file.num_grown, threading.active_count()))
    assert seen[0] == seen[1]
    assert seen[0][0].num_slots == 0


def test_one_use_around_a_whole_training(disk):
    """Nothing of earlier steps stays with it."""
    net, x = Chain(depth=3, width=64), torch.randn(64, 64)
    with legroom.offload(tier=disk, min_bytes=1) as session:
        for _ in range(50):
            net(x).sum().backward()
    assert session.num_moved == 50 * 4
    assert len(session._in_order) == 0
    assert len(session._writing) <= 5
    assert used_when_idle(disk).num_slots == 0
